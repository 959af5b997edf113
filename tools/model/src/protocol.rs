//! The protocol as a model, and the properties that must hold.

use super::{
    action::Action,
    config::Config,
    server::{FillCondition, Lease, Mark},
    state::{At, Call, Fault, Flight, Phase, Process, Reader, Reply, Request, World},
    step::Step,
};
use stateright::{Model, Property};

impl Model for Config {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.begin()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // States after the first fault need no successors.
        if !world.faults.any() {
            self.possible(world, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut step = Step::new(self, world);
        step.take(action);
        Some(step.done())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, world: &World| one_holder(world)),
            Property::always(NO_OLD_OVER_NEW, |_, world: &World| !world.faults.has(Fault::OldOverNew)),
            Property::always(NO_STALE_SET, |_, world: &World| !world.faults.has(Fault::StaleSet)),
            Property::always(NO_STALE_READ, |_, world: &World| !world.faults.has(Fault::StaleRead)),
            Property::always(ONLY_WHAT_STANDS, |_, world: &World| !world.faults.has(Fault::StaleIfError)),
            Property::always(PRIVATE, |_, world: &World| !world.faults.has(Fault::Leak)),
            Property::always(FOR_A_CALLER, |_, world: &World| !world.faults.has(Fault::ForNoCaller)),
            Property::always(STORED, |_, world: &World| !world.faults.has(Fault::Absent)),
            Property::always(NOT_TAKEN, |_, world: &World| !world.faults.has(Fault::Taken)),
            Property::always(LAST_HOLDER, |_, world: &World| !world.faults.has(Fault::Refused)),
            Property::always(NO_OLD_REFRESH, |_, world: &World| !world.faults.has(Fault::OldRefresh)),
            Property::always(CREATES_NOTHING, |_, world: &World| !world.faults.has(Fault::Created)),
            Property::sometimes(WAITS, |_, world: &World| any_flight(world, |flight| flight.phase == Phase::Waiting)),
            Property::sometimes(JOINED, |_, world: &World| joined(world)),
            Property::sometimes(FENCED, |_, world: &World| {
                any_flight(world, |flight| flight.call == Some(Call::Answered(Reply::Fenced)))
            }),
            Property::sometimes(REFUSED, |_, world: &World| {
                any_flight(world, |flight| flight.call == Some(Call::Answered(Reply::Refused)))
            }),
            Property::sometimes(FORGIVES, |_, world: &World| {
                let forgives = |flight: &Flight| matches!(flight.call, Some(Call::Answered(Reply::Held(_))));
                any_flight(world, |flight| matches!(flight.phase, Phase::Releasing { .. }) && forgives(flight))
            }),
            Property::sometimes(ALONE, |_, world: &World| {
                any_flight(world, |flight| matches!(flight.phase, Phase::Local { .. }))
            }),
            Property::sometimes(MARKED, |_, world: &World| world.server.v.is_some_and(|entry| entry.is_marker())),
            Property::sometimes(PROMOTED, |_, world: &World| {
                world
                    .late
                    .iter()
                    .any(|late| matches!(late, Request::Fill { condition: FillCondition::ReplaceMarker(_), .. }))
            }),
            Property::sometimes(GHOST, |_, world: &World| ghost(world)),
            Property::sometimes(LATE, |_, world: &World| {
                let is_marked = matches!(world.server.l, Lease::Held { mark: Mark::Fresh, .. });
                is_marked && any_flight(world, |flight| matches!(flight.phase, Phase::Filling { .. }))
            }),
            Property::sometimes(SUCCEEDED, |_, world: &World| {
                any_flight(world, |flight| matches!(flight.phase, Phase::Leading { ended: true, .. }))
            }),
        ]
    }
}

/// I1: a leader has the lease and keeps it until it releases it. It also loses the lease when a question takes it after
/// its end, when it expires, when an invalidation drops it, when a fill that replaces a marker ends it, or when the
/// server fails over. So only the last holder can fill, and two flights fetch at the same time only after one of these
/// events.
pub(crate) const ONE_HOLDER: &str = "I1: only the last holder can fill";
/// I2: no entry replaces a newer one.
pub(crate) const NO_OLD_OVER_NEW: &str = "I2: no old entry over a newer one";
/// I2, I3: no fill is stored that read the origin before an invalidation that has been executed.
pub(crate) const NO_STALE_SET: &str = "I3: no stale set";
/// I3: no reader gets a value invalidated by an invalidation that its process had learned of before the reader asked.
pub(crate) const NO_STALE_READ: &str = "I3: no stale read";
/// An entry served instead of an error, or at the end of the wait, was valid when the store was asked last.
pub(crate) const ONLY_WHAT_STANDS: &str = "stale if error: only what stands";
/// I8: a response for one caller is neither stored nor given to another caller.
pub(crate) const PRIVATE: &str = "I8: private answers stay private";
/// A fetch begins only if a caller wants its result, or as a refresh in the background.
pub(crate) const FOR_A_CALLER: &str = "a fetch is for a caller";
/// A fill that is reported as stored has stored its entry.
pub(crate) const STORED: &str = "what is stored is there";
/// No question takes a lease while the server has not executed an extension that was sent before the end of the lease.
pub(crate) const NOT_TAKEN: &str = "a stall of the server takes no lease";
/// I1, I2: the server refuses no fill and no extension of the holder that the lease names, whether it has ended or not.
pub(crate) const LAST_HOLDER: &str = "I2: the last holder can fill";
/// A refresh returns only a value whose fetch began after the call.
pub(crate) const NO_OLD_REFRESH: &str = "a refresh returns no value from before its call";
/// An expire stores nothing.
pub(crate) const CREATES_NOTHING: &str = "an expire creates no entry";

/// Not guarantees, but states that a run must reach. Without them a property could hold because nothing was tried.
pub(crate) const WAITS: &str = "a process waits for another process";
pub(crate) const JOINED: &str = "two readers share a flight";
pub(crate) const FENCED: &str = "a fill is fenced";
pub(crate) const REFUSED: &str = "a fill is refused";
pub(crate) const FORGIVES: &str = "an entry stands in for a fetch that failed";
pub(crate) const ALONE: &str = "a process fetches without the store";
pub(crate) const MARKED: &str = "a hit-for-pass marker is stored";
pub(crate) const PROMOTED: &str = "a response is about to replace a marker";
pub(crate) const GHOST: &str = "a lease is orphaned";
pub(crate) const LATE: &str = "a fill is sent under a marked lease";
pub(crate) const SUCCEEDED: &str = "a leader has lost its lease";

fn any_flight(world: &World, is: impl FnMut(&Flight) -> bool) -> bool {
    world.processes.iter().flat_map(|process| &process.flights).any(is)
}

fn joined(world: &World) -> bool {
    let aboard = |reader: &Reader| matches!(reader.at, At::Aboard { .. });
    world.processes.iter().any(|process| process.readers.windows(2).any(|two| two.iter().all(aboard)))
}

fn ghost(world: &World) -> bool {
    let Lease::Held { token, .. } = world.server.l else { return false };
    !any_flight(world, |flight| flight.phase.token() == Some(token))
}

fn one_holder(world: &World) -> bool {
    world.processes.iter().flat_map(|process| &process.flights).all(|flight| match flight.phase {
        Phase::Leading { token, stamp, ended: false, .. } => world.server.l.is_of((token, stamp)),
        _ => true,
    })
}

/// Reports whether no flight runs and every reader has finished.
pub(crate) fn rests(world: &World) -> bool {
    let at_rest = |process: &Process| {
        process.flights.is_empty() && process.readers.iter().all(|reader| reader.at == At::Rest && reader.left == 0)
    };
    world.processes.iter().all(at_rest)
}
