//! Variants (F11). The primary entry says which header fields select, and its id is part of the name of each variant.
//! An invalidation that drops the primary therefore need not know the variants, stored or in flight: no reader reaches
//! them afterwards.
//!
//! Two clients ask for one variant each, or for the same. The lease of the primary is that of the
//! [`protocol`](super::protocol), without losses. Variants have no lease here, which allows more to happen. An
//! invalidation does not touch variants.
//!
//! An expire marks the primary with a time, and drops its lease. A variant is stale if the stamp of its lease is below that
//! time. Stale variants are fetched again, and the mark stays.
//!
//! The primary here is called index in the code; its id is that of the fill that stored it. The code stores an index
//! and its first variant in one step, the model in two, because a reader may ask for them one after another. An index
//! may be stored in the place of a variant. It relates to its variants as the primary relates to it, and is reached
//! through the primary only, so one level represents all.
//!
//! Not modelled: callers that a leader redirects to a variant before its index is stored, which adds variants that no
//! other caller reaches. Also not modelled: a remembered index, which is confirmed before its target is used; and classes
//! of callers, whose markers are ordinary entries.

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
    /// An expire leaves the lease of the primary.
    ExpireKeepsLease,
    /// A variant is judged without its primary.
    JudgedAlone,
    /// The stamp of a variant is that of its fill.
    StampOfFill,
}

type Id = u8;
/// Number of expires before a grant, or up to an expire.
type Stamp = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Variant {
    of: Id,
    selected: u8,
    version: u8,
    stamp: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Primary {
    id: Id,
    /// When a caller has expired it, or 0.
    expired_at: Stamp,
}

/// The newest invalidation that was executed, and the newest invalidation or expire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Floor {
    dropped: u8,
    any: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    origin: u8,
    floor: Floor,
    lease: Option<Id>,
    primary: Option<Primary>,
    /// Sorted.
    variants: Vec<Variant>,
    expires: Stamp,
    last: Id,
    clients: [Client; 2],
    /// A client has got what was invalidated, or as fresh what was invalidated or expired.
    stale: bool,
    not_fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    left: u8,
    /// What had been executed when it asked.
    must: Floor,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Rest,
    /// Has read the primary.
    Primary(Primary),
    /// Leads the primary, and has read the origin.
    Leads(Fetched),
    /// Has stored either the variant or the primary, but not yet both.
    Half(Fetched),
    /// Has read the origin for a variant of that primary.
    Variant(Fetched),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Fetched {
    primary: Id,
    version: u8,
    stamp: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Commit,
    Invalidate,
    Expire,
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

    fn store_variant(&self, world: &mut World, c: usize, Fetched { primary, version, stamp }: Fetched) {
        let (of, selected) = (self.name(primary), self.selects[c]);
        let stamp = if self.broken(Broken::StampOfFill) { world.expires } else { stamp };
        world.variants.retain(|variant| (variant.of, variant.selected) != (of, selected));
        world.variants.push(Variant { of, selected, version, stamp });
        world.variants.sort_unstable();
    }

    fn fill_primary(&self, world: &mut World, Fetched { primary: id, .. }: Fetched) {
        if world.lease == Some(id) || self.broken(Broken::NoFence) {
            (world.primary, world.lease) = (Some(Primary { id, expired_at: 0 }), None);
        }
    }

    fn is_fresh(&self, variant: Variant, primary: Primary) -> bool {
        variant.stamp >= primary.expired_at || self.broken(Broken::JudgedAlone)
    }

    fn step(&self, world: &mut World, c: usize) -> Option<()> {
        let client = world.clients[c];
        let (version, stamp) = (world.origin, world.expires);
        let next = match client.at {
            At::Rest if client.left == 0 => return None,
            At::Rest => {
                (world.clients[c].must, world.clients[c].left) = (world.floor, client.left - 1);
                match (world.primary, world.lease) {
                    (Some(primary), _) => At::Primary(primary),
                    (None, None) => {
                        world.last += 1;
                        world.lease = Some(world.last);
                        At::Leads(Fetched { primary: world.last, version, stamp })
                    }
                    (None, Some(_)) => return None,
                }
            }
            At::Primary(primary) => {
                let wanted = (self.name(primary.id), self.selects[c]);
                match world.variants.iter().find(|variant| (variant.of, variant.selected) == wanted) {
                    Some(&variant) if self.is_fresh(variant, primary) => {
                        world.stale |= variant.version < client.must.dropped;
                        world.not_fresh |= variant.version < client.must.any;
                        At::Rest
                    }
                    Some(_) | None => At::Variant(Fetched { primary: primary.id, version, stamp }),
                }
            }
            At::Leads(fetched) => {
                if self.broken(Broken::PrimaryFirst) {
                    self.fill_primary(world, fetched);
                } else {
                    self.store_variant(world, c, fetched);
                }
                At::Half(fetched)
            }
            At::Half(fetched) => {
                if self.broken(Broken::PrimaryFirst) {
                    self.store_variant(world, c, fetched);
                } else {
                    self.fill_primary(world, fetched);
                }
                At::Rest
            }
            At::Variant(fetched) => {
                self.store_variant(world, c, fetched);
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
        let clients = [Client { left: self.asks, must: Floor::default(), at: At::Rest }; 2];
        let (lease, primary, variants, floor) = (None, None, Vec::new(), Floor::default());
        let (stale, not_fresh) = (false, false);
        let world =
            World { origin: 0, floor, lease, primary, variants, expires: 0, last: 0, clients, stale, not_fresh };
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.origin < COMMITS {
            actions.push(Action::Commit);
        }
        if world.floor.any < world.origin {
            actions.extend([Action::Invalidate, Action::Expire]);
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
            Action::Invalidate => {
                world.floor = Floor { dropped: world.origin, any: world.origin };
                (world.primary, world.lease) = (None, None);
            }
            Action::Expire => {
                world.floor.any = world.origin;
                world.expires += 1;
                world.primary = world.primary.map(|primary| Primary { expired_at: world.expires, ..primary });
                if !self.broken(Broken::ExpireKeepsLease) {
                    world.lease = None;
                }
            }
            Action::LeaseExpires => world.lease = None,
            Action::Step(c) => self.step(&mut world, c)?,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_READ, |_, world: &World| !world.stale),
            Property::always(NOT_AS_FRESH, |_, world: &World| !world.not_fresh),
            Property::always(NO_EMPTY_PRIMARY, |model: &Self, world: &World| {
                let is_of = |primary: Primary| move |variant: &Variant| variant.of == model.name(primary.id);
                world.primary.is_none_or(|primary| world.variants.iter().any(is_of(primary)))
            }),
            Property::sometimes(SECOND, |_, world: &World| world.variants.windows(2).any(|two| two[0].of == two[1].of)),
        ]
    }
}

const COMMITS: u8 = 2;
const NO_STALE_READ: &str = "I3: no reader gets a variant from before an invalidation";
const NOT_AS_FRESH: &str = "no reader gets as fresh a variant from before an expire";
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

/// The primary that is filled later has no mark.
#[test]
fn expire_drops_the_lease_of_the_primary() {
    breaks(Broken::ExpireKeepsLease, NOT_AS_FRESH);
}

#[test]
fn variant_is_judged_with_its_primary() {
    breaks(Broken::JudgedAlone, NOT_AS_FRESH);
}

/// The fetch may have begun before the expire.
#[test]
fn stamp_of_a_variant_is_that_of_its_lease() {
    breaks(Broken::StampOfFill, NOT_AS_FRESH);
}
