//! Tags (F12). Tags are known only at the head of a response, and are stored on other servers than the entries they
//! tag, so no lease can fence them. An entry records when its fetch began, and a tag when it was invalidated, each by
//! the clock of its own server. An entry is valid if and only if `invalidated + margin < begun`.
//!
//! One tag, one key, time in ticks of the margin, two clocks that differ by at most one tick. Each fill may take any
//! time.

use super::check::{fails, holds};
use stateright::{Model, Property};

struct Tags {
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// An entry records when it was filled.
    ByFill,
    /// Both clocks are assumed to be equal.
    NoMargin,
    /// An entry begun at the limit is valid.
    NotAfter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    /// How far the clock of the entry's server is ahead of the clock of the tag's server, plus 1.
    ahead: u8,
    origin: u8,
    /// The commit of the newest invalidation.
    floor: u8,
    invalidated: Option<u8>,
    /// Fetches in progress.
    computing: Vec<Computation>,
    stored: Option<Computation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Computation {
    begun: u8,
    /// The version that it has read from the origin.
    version: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Commit,
    Invalidate,
    Begin,
    Read(usize),
    Fill(usize),
}

impl World {
    fn entry_clock(&self) -> u8 {
        self.now + self.ahead
    }

    fn tag_clock(&self) -> u8 {
        self.now + 1
    }
}

impl Tags {
    fn counts(&self, world: &World) -> bool {
        let Some(stored) = world.stored else { return false };
        world.invalidated.is_none_or(|invalidated| match self.broken {
            Some(Broken::NoMargin) => invalidated < stored.begun,
            Some(Broken::NotAfter) => invalidated + MARGIN <= stored.begun,
            Some(Broken::ByFill) | None => invalidated + MARGIN < stored.begun,
        })
    }
}

impl Model for Tags {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let begin = |ahead| {
            let (invalidated, computing, stored) = (None, Vec::new(), None);
            World { now: 0, ahead, origin: 0, floor: 0, invalidated, computing, stored }
        };
        (0..=2 * MARGIN).map(begin).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let may = |is: bool, action: Action| is.then_some(action);
        actions.extend(may(world.now < TICKS, Action::Tick));
        actions.extend(may(world.origin < COMMITS, Action::Commit));
        actions.extend(may(world.floor < world.origin, Action::Invalidate));
        actions.extend(may(world.computing.len() < 2, Action::Begin));
        for (n, computation) in world.computing.iter().enumerate() {
            actions.push(if computation.version.is_none() { Action::Read(n) } else { Action::Fill(n) });
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Tick => world.now += 1,
            Action::Commit => world.origin += 1,
            Action::Invalidate => (world.floor, world.invalidated) = (world.origin, Some(world.tag_clock())),
            Action::Begin => world.computing.push(Computation { begun: world.entry_clock(), version: None }),
            Action::Read(n) => world.computing[n].version = Some(world.origin),
            Action::Fill(n) => {
                let mut filled = world.computing.remove(n);
                if self.broken == Some(Broken::ByFill) {
                    filled.begun = world.entry_clock();
                }
                world.stored = Some(filled);
            }
        }
        world.computing.sort_unstable();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_READ, |model: &Self, world: &World| {
                !model.counts(world) || world.stored.and_then(|stored| stored.version) >= Some(world.floor)
            }),
            Property::sometimes(AGAIN, |model: &Self, world: &World| world.floor == COMMITS && model.counts(world)),
        ]
    }
}

/// In ticks; the largest difference between the clocks.
const MARGIN: u8 = 1;
const TICKS: u8 = 4;
const COMMITS: u8 = 2;
const NO_STALE_READ: &str = "I3: a valid entry was read after the invalidation of its tag";
const AGAIN: &str = "an entry is valid after the last invalidation";

fn breaks(rule: Broken) {
    fails(&format!("{rule:?}"), Tags { broken: Some(rule) }, NO_STALE_READ);
}

#[test]
fn entry_begun_before_a_tag_invalidation_is_invalid() {
    holds("tags", Tags { broken: None }, &[AGAIN]);
}

#[test]
fn tag_check_uses_the_start_of_the_fetch_not_of_the_fill() {
    breaks(Broken::ByFill);
}

#[test]
fn tag_check_needs_a_margin_between_clocks() {
    breaks(Broken::NoMargin);
}

#[test]
fn tag_check_excludes_the_limit_of_the_margin() {
    breaks(Broken::NotAfter);
}
