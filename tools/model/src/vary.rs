//! Variants (F11). The primary entry says which header fields select, and its id is part of the name of each variant.
//! An invalidation that drops the primary therefore need not know the variants, stored or in flight: no reader reaches
//! them afterwards.
//!
//! Two clients ask for one variant each, or for the same. The lease of the primary is that of the
//! [`protocol`](super::protocol), without losses. Variants have no lease here, which allows more to happen. An
//! invalidation does not touch variants.
//!
//! The primary here is called index in the code; its id is that of the fill that stored it. The code stores an index
//! and its first variant in one step, the model in two, because a reader may ask for them one after another. An index
//! may be stored in the place of a variant. It relates to its variants as the primary relates to it, and is reached
//! through the primary only, so one level represents all.
//!
//! Not modelled: callers that a leader redirects to a variant before its index is stored, which adds variants that no
//! other caller reaches. Also not modelled: a remembered index, which is confirmed before its target is used; stale
//! variants; and classes of callers, whose markers are ordinary entries.

use super::check::{fails, holds};
use stateright::{Model, Property};

struct Vary {
    /// The variant that each client's request selects.
    selects: [u8; 2],
    asks: u8,
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// A variant is named by its key alone.
    NamedByKey,
    /// The primary is stored before its first variant.
    PrimaryFirst,
    /// The primary is stored without a lease.
    NoFence,
}

type Id = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    origin: u8,
    floor: u8,
    lease: Option<Id>,
    primary: Option<Id>,
    /// The id of the primary, the selected variant and its version. Sorted.
    variants: Vec<(Id, u8, u8)>,
    last: Id,
    clients: [Client; 2],
    stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    left: u8,
    /// The newest invalidation that had been executed when it asked.
    must: u8,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Rest,
    /// Has read the primary.
    Primary(Id),
    /// Leads the primary, and has read the origin.
    Leads(Id, u8),
    /// Has stored either the variant or the primary, but not yet both.
    Half(Id, u8),
    /// Has read the origin for a variant of that primary.
    Variant(Id, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Commit,
    Invalidate,
    LeaseExpires,
    /// The client's next step.
    Step(usize),
}

impl Vary {
    fn broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Returns the part of a variant's name that comes from its primary.
    fn name(&self, primary: Id) -> Id {
        if self.broken(Broken::NamedByKey) { 0 } else { primary }
    }

    fn store_variant(&self, world: &mut World, c: usize, primary: Id, version: u8) {
        let (name, selects) = (self.name(primary), self.selects[c]);
        world.variants.retain(|&(of, selected, _)| (of, selected) != (name, selects));
        world.variants.push((name, selects, version));
        world.variants.sort_unstable();
    }

    fn fill_primary(&self, world: &mut World, id: Id) {
        if world.lease == Some(id) || self.broken(Broken::NoFence) {
            (world.primary, world.lease) = (Some(id), None);
        }
    }

    fn step(&self, world: &mut World, c: usize) -> Option<()> {
        let client = world.clients[c];
        let next = match client.at {
            At::Rest if client.left == 0 => return None,
            At::Rest => {
                (world.clients[c].must, world.clients[c].left) = (world.floor, client.left - 1);
                match (world.primary, world.lease) {
                    (Some(id), _) => At::Primary(id),
                    (None, None) => {
                        world.last += 1;
                        world.lease = Some(world.last);
                        At::Leads(world.last, world.origin)
                    }
                    (None, Some(_)) => return None,
                }
            }
            At::Primary(id) => {
                let wanted = (self.name(id), self.selects[c]);
                match world.variants.iter().find(|&&(of, selected, _)| (of, selected) == wanted) {
                    Some(&(_, _, version)) => {
                        world.stale |= version < client.must;
                        At::Rest
                    }
                    None => At::Variant(id, world.origin),
                }
            }
            At::Leads(id, version) => {
                if self.broken(Broken::PrimaryFirst) {
                    self.fill_primary(world, id);
                } else {
                    self.store_variant(world, c, id, version);
                }
                At::Half(id, version)
            }
            At::Half(id, version) => {
                if self.broken(Broken::PrimaryFirst) {
                    self.store_variant(world, c, id, version);
                } else {
                    self.fill_primary(world, id);
                }
                At::Rest
            }
            At::Variant(id, version) => {
                self.store_variant(world, c, id, version);
                At::Rest
            }
        };
        world.clients[c].at = next;
        Some(())
    }
}

impl Model for Vary {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let clients = [Client { left: self.asks, must: 0, at: At::Rest }; 2];
        let (lease, primary, variants) = (None, None, Vec::new());
        vec![World { origin: 0, floor: 0, lease, primary, variants, last: 0, clients, stale: false }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.origin < COMMITS {
            actions.push(Action::Commit);
        }
        if world.floor < world.origin {
            actions.push(Action::Invalidate);
        }
        if world.lease.is_some() {
            actions.push(Action::LeaseExpires);
        }
        actions.extend([Action::Step(0), Action::Step(1)]);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Commit => world.origin += 1,
            Action::Invalidate => (world.floor, world.primary, world.lease) = (world.origin, None, None),
            Action::LeaseExpires => world.lease = None,
            Action::Step(c) => self.step(&mut world, c)?,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_READ, |_, world: &World| !world.stale),
            Property::always(NO_EMPTY_PRIMARY, |model: &Self, world: &World| {
                world.primary.is_none_or(|id| world.variants.iter().any(|&(of, ..)| of == model.name(id)))
            }),
            Property::sometimes(SECOND, |_, world: &World| world.variants.windows(2).any(|two| two[0].0 == two[1].0)),
        ]
    }
}

const COMMITS: u8 = 2;
const NO_STALE_READ: &str = "I3: no reader gets a variant from before an invalidation";
const NO_EMPTY_PRIMARY: &str = "a reader that finds a primary finds its first variant";
const SECOND: &str = "two variants of one primary";

fn breaks(rule: Broken, property: &str) {
    fails(&format!("{rule:?}"), Vary { selects: [0, 1], asks: 2, broken: Some(rule) }, property);
}

#[test]
fn variants_end_with_their_primary() {
    holds("vary", Vary { selects: [0, 1], asks: 2, broken: None }, &[SECOND]);
    holds("vary, one variant", Vary { selects: [0, 0], asks: 2, broken: None }, &[]);
}

#[test]
fn a_variant_is_named_by_the_id_of_its_primary() {
    breaks(Broken::NamedByKey, NO_STALE_READ);
}

#[test]
fn the_first_variant_is_stored_before_its_primary() {
    breaks(Broken::PrimaryFirst, NO_EMPTY_PRIMARY);
}

#[test]
fn a_primary_is_filled_under_its_lease() {
    breaks(Broken::NoFence, NO_STALE_READ);
}
