//! The near cache (F19). A process learns of invalidations by messages on a separate channel. It inserts a copy only if
//! neither such a message nor a reconnect came since the `GET` was sent.
//!
//! One process, one key. `GET` and the channel are different connections, so their replies overtake each other. A
//! connection that breaks loses the messages in flight, and the process notices later. How entries are stored is left
//! out: a stored entry is as new as the last invalidation, which the [`protocol`](super::protocol) guarantees.

use super::check::{fails, holds};
use stateright::{Model, Property};

struct NearCache {
    commits: u8,
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// Every reply is inserted.
    InsertsAnyway,
    /// A reconnect does not taint the `GET` in flight.
    ReconnectIgnored,
    /// Copies outlive the connection.
    KeptWithoutConnection,
    /// Copies outlive an invalidation by their own process.
    KeptOverOwn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    origin: u8,
    /// The commit of the newest invalidation that has been executed.
    floor: u8,
    stored: Option<u8>,
    channel: Channel,
    /// Messages in flight: the commits they invalidate.
    messages: Vec<u8>,
    get: Option<Get>,
    near: Option<u8>,
    /// The newest invalidation that the process has learned of, or that had been executed when it last subscribed.
    heard: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Channel {
    Up,
    /// Broken, but the process has not noticed yet.
    Cut,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Get {
    found: Option<Option<u8>>,
    /// Whether the reply may be inserted: no message and no reconnect came since the `GET` was sent.
    clean: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Commit,
    /// By another process.
    Invalidate,
    InvalidateHere,
    Fill,
    SendGet,
    ExecuteGet,
    Got,
    Hear,
    Cut,
    NoticeCut,
    Reconnect,
    Expire,
}

impl NearCache {
    fn broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
}

impl World {
    fn drop_copy(&mut self) {
        self.near = None;
        self.taint();
    }

    fn taint(&mut self) {
        if let Some(get) = &mut self.get {
            get.clean = false;
        }
    }

    fn invalidate(&mut self) {
        (self.floor, self.stored) = (self.origin, None);
    }
}

impl Model for NearCache {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let (messages, get, near) = (Vec::new(), None, None);
        vec![World { origin: 0, floor: 0, stored: None, channel: Channel::Up, messages, get, near, heard: 0 }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let may = |is: bool, action: Action| is.then_some(action);
        actions.extend(
            [
                may(world.origin < self.commits, Action::Commit),
                may(world.floor < world.origin, Action::Invalidate),
                may(world.floor < world.origin, Action::InvalidateHere),
                may(world.stored.is_none(), Action::Fill),
                may(world.get.is_none() && world.near.is_none(), Action::SendGet),
                may(world.get.is_some_and(|get| get.found.is_none()), Action::ExecuteGet),
                may(world.get.is_some_and(|get| get.found.is_some()), Action::Got),
                may(!world.messages.is_empty(), Action::Hear),
                may(world.channel == Channel::Up, Action::Cut),
                may(world.channel == Channel::Cut, Action::NoticeCut),
                may(world.channel == Channel::Down, Action::Reconnect),
                may(world.near.is_some(), Action::Expire),
            ]
            .into_iter()
            .flatten(),
        );
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Commit => world.origin += 1,
            Action::Invalidate => {
                world.invalidate();
                if world.channel == Channel::Up {
                    world.messages.push(world.floor);
                }
            }
            Action::InvalidateHere => {
                world.invalidate();
                world.heard = world.floor;
                if !self.broken(Broken::KeptOverOwn) {
                    world.drop_copy();
                }
            }
            Action::Fill => world.stored = Some(world.origin),
            Action::SendGet => world.get = Some(Get { found: None, clean: true }),
            Action::ExecuteGet => {
                let found = Some(world.stored);
                world.get = world.get.map(|get| Get { found, ..get });
            }
            Action::Got => {
                let get = world.get.take()?;
                if world.channel != Channel::Down && (get.clean || self.broken(Broken::InsertsAnyway)) {
                    world.near = get.found?;
                }
            }
            Action::Hear => {
                let version = world.messages.remove(0);
                world.heard = world.heard.max(version);
                world.drop_copy();
            }
            Action::Cut => {
                world.channel = Channel::Cut;
                world.messages.clear();
            }
            Action::NoticeCut => {
                world.channel = Channel::Down;
                if !self.broken(Broken::KeptWithoutConnection) {
                    world.near = None;
                }
            }
            Action::Reconnect => {
                world.channel = Channel::Up;
                world.heard = world.floor;
                if !self.broken(Broken::ReconnectIgnored) {
                    world.taint();
                }
            }
            Action::Expire => world.near = None,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_OLD_COPY, |_, world: &World| world.near.is_none_or(|version| version >= world.heard)),
            Property::sometimes(COPY, |model, world: &World| world.near == Some(model.commits)),
        ]
    }
}

const NO_OLD_COPY: &str = "I3: no copy that the process knows to be invalid";
const COPY: &str = "the newest version is copied";

fn breaks(rule: Broken) {
    fails(&format!("{rule:?}"), NearCache { commits: 2, broken: Some(rule) }, NO_OLD_COPY);
}

#[test]
fn near_cache_never_holds_an_entry_known_to_be_invalid() {
    holds("near cache", NearCache { commits: 3, broken: None }, &[COPY]);
}

#[test]
fn invalidation_during_a_get_forbids_inserting_its_reply() {
    breaks(Broken::InsertsAnyway);
}

#[test]
fn reconnect_during_a_get_forbids_inserting_its_reply() {
    breaks(Broken::ReconnectIgnored);
}

#[test]
fn copies_end_with_the_connection() {
    breaks(Broken::KeptWithoutConnection);
}

#[test]
fn copies_end_with_an_invalidation_by_their_own_process() {
    breaks(Broken::KeptOverOwn);
}
