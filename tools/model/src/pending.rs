//! Pending invalidations. A process does not read a value that it has invalidated, whether the store has acknowledged or
//! not, and also not from a server that has lost the invalidation and takes over. Nor does it read as fresh what it has
//! expired. An expire that is sent again is an invalidation, and so is one of a name in the table. For the table, a put is
//! the invalidation that it begins with.
//!
//! One process, one key, a server and its replica. The replica may lag until the ten seconds after an acknowledgement
//! are over. Requests fail before or after their execution, and overtake each other. Another process fills the entry. A
//! read that is sent before a failover may be executed after it.

use super::check::{fails, holds};
use stateright::{Model, Property};

struct Invalidations {
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// An invalidation that fails is forgotten.
    FailureForgotten,
    /// Any acknowledgement ends a pending invalidation.
    EndedByEarlier,
    /// The table is not asked after a read.
    OnlyBeforeRead,
    /// A read counts although an invalidation was repeated meanwhile.
    NotCompared,
    /// What another connection has acknowledged counts.
    NotRepeated,
    /// An acknowledged invalidation is forgotten before a replica has it.
    ForgottenEarly,
    /// A repetition does not count for its own connection.
    RepeatedForEver,
    /// An expire is sent although an invalidation is not acknowledged yet, and ends it.
    ExpireEndsInvalidation,
    /// An expire is sent although an invalidation was acknowledged recently, perhaps by a server that is gone.
    ExpireEndsAcknowledged,
    /// What is repeated is the last request, even if it is an expire.
    RepeatedAsExpire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Verb {
    Invalidate,
    Expire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    version: u8,
    is_expired: bool,
}

/// The newest request, and the newest invalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Floor {
    any: u8,
    dropped: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    origin: u8,
    /// The entries of the server and of its replica.
    stored: [Option<Entry>; 2],
    /// Which of them is the master, and to which one the process is connected.
    master: usize,
    connected: usize,
    /// Invalidations in flight.
    sent: Vec<Sent>,
    known: Known,
    /// The newest that was requested, and the newest whose caller has its result.
    requested: Floor,
    returned: Floor,
    read: Option<Read>,
    /// What the last read has returned, and what had returned before it began.
    served: Option<(Option<Entry>, Floor)>,
    /// What the caller of each request has asked for.
    asked: [Verb; 1 + COMMITS as usize],
    /// How often each request was repeated after its acknowledgement.
    repeats: [u8; 1 + COMMITS as usize],
}

/// By the commit that it follows, which is also the number of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Sent {
    request: u8,
    verb: Verb,
    executed_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Nothing,
    Pending(u8),
    Acknowledged { request: u8, by: usize, is_replicated: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Read {
    floor: Floor,
    /// Whether something was invalidated since it began, by the numbers of the process.
    is_outdated: bool,
    found: Option<Option<Entry>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Commit,
    Fill,
    Replicate,
    FailOver,
    Reconnect,
    Request(Verb),
    /// Sends the pending invalidation again.
    SendAgain,
    Execute(usize),
    Acknowledged(usize),
    Failed(usize),
    TenSeconds,
    Ask,
    ExecuteRead,
    Got,
}

impl Known {
    fn request(self) -> Option<u8> {
        match self {
            Self::Nothing => None,
            Self::Pending(request) | Self::Acknowledged { request, .. } => Some(request),
        }
    }
}

impl Floor {
    fn raise(&mut self, request: u8, verb: Verb) {
        self.any = self.any.max(request);
        if verb == Verb::Invalidate {
            self.dropped = self.dropped.max(request);
        }
    }
}

impl World {
    /// Gives the caller of this request its result. It may have asked for an expire, which was sent as an invalidation.
    fn returns(&mut self, request: u8) {
        let verb = self.asked[usize::from(request)];
        self.returned.raise(request, verb);
    }

    /// Makes the process forget what it is about to read.
    fn forget(&mut self) {
        self.read = self.read.map(|read| Read { is_outdated: true, ..read });
    }
}

impl Invalidations {
    fn broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Reports whether answers do not count.
    fn concerns(&self, world: &World) -> bool {
        match world.known {
            Known::Nothing => false,
            Known::Pending(_) => true,
            Known::Acknowledged { by, .. } => by != world.connected && !self.broken(Broken::NotRepeated),
        }
    }

    fn acknowledged(&self, world: &mut World, request: u8, by: usize) {
        match world.known {
            Known::Pending(pending) if pending > request && !self.broken(Broken::EndedByEarlier) => return,
            Known::Acknowledged { request: later, .. } if later > request => return,
            _ => {}
        }
        let by = if self.broken(Broken::RepeatedForEver) { 0 } else { by };
        world.known = Known::Acknowledged { request, by, is_replicated: false };
    }

    fn failed(&self, world: &mut World, request: u8) {
        let later = match world.known {
            Known::Acknowledged { request: later, .. } if later >= request => return,
            Known::Pending(pending) => pending.max(request),
            _ => request,
        };
        if !self.broken(Broken::FailureForgotten) {
            world.known = Known::Pending(later);
        }
    }
}

impl Model for Invalidations {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            origin: 0,
            stored: [Some(Entry { version: 0, is_expired: false }); 2],
            master: 0,
            connected: 0,
            sent: Vec::new(),
            known: Known::Nothing,
            requested: Floor::default(),
            returned: Floor::default(),
            read: None,
            served: None,
            asked: [Verb::Invalidate; 1 + COMMITS as usize],
            repeats: [0; 1 + COMMITS as usize],
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let may = |is: bool, action: Action| is.then_some(action);
        let is_connected = world.connected == world.master;
        let may_forget = match world.known {
            Known::Acknowledged { by, is_replicated, .. } => {
                by == world.connected && (is_replicated || by == 1 || self.broken(Broken::ForgottenEarly))
            }
            _ => false,
        };
        // An attempt that is in flight is shared.
        let may_send =
            self.concerns(world) && !world.sent.iter().any(|sent| world.known.request() == Some(sent.request));
        actions.extend(may(world.origin < COMMITS, Action::Commit));
        actions.extend(may(world.stored[world.master].is_none(), Action::Fill));
        actions.extend(may(world.master == 0, Action::Replicate));
        actions.extend(may(world.master == 0, Action::FailOver));
        actions.extend(may(!is_connected, Action::Reconnect));
        for verb in [Verb::Invalidate, Verb::Expire] {
            actions.extend(may(world.requested.any < world.origin, Action::Request(verb)));
        }
        actions.extend(may(may_send, Action::SendAgain));
        actions.extend(may(may_forget, Action::TenSeconds));
        actions.extend(may(world.read.is_none() && !self.concerns(world), Action::Ask));
        actions.extend(may(is_connected && world.read.is_some_and(|read| read.found.is_none()), Action::ExecuteRead));
        actions.extend(may(world.read.is_some_and(|read| read.found.is_some()), Action::Got));
        for (n, sent) in world.sent.iter().enumerate() {
            actions.extend(may(is_connected && sent.executed_by.is_none(), Action::Execute(n)));
            actions.extend(may(sent.executed_by.is_some(), Action::Acknowledged(n)));
            actions.push(Action::Failed(n));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Commit => world.origin += 1,
            Action::Fill => {
                world.stored[world.master] = Some(Entry { version: world.origin, is_expired: false });
            }
            Action::Replicate => {
                world.stored[1] = world.stored[0];
                if let Known::Acknowledged { is_replicated, .. } = &mut world.known {
                    *is_replicated = true;
                }
            }
            Action::FailOver => world.master = 1,
            Action::Reconnect => world.connected = world.master,
            Action::Request(verb) => {
                world.requested.raise(world.origin, verb);
                world.asked[usize::from(world.origin)] = verb;
                let is_alone = match world.known {
                    Known::Nothing => world.sent.is_empty() || self.broken(Broken::ExpireEndsInvalidation),
                    Known::Pending(_) => self.broken(Broken::ExpireEndsInvalidation),
                    Known::Acknowledged { .. } => self.broken(Broken::ExpireEndsAcknowledged),
                };
                let verb = if is_alone { verb } else { Verb::Invalidate };
                world.sent.push(Sent { request: world.origin, verb, executed_by: None });
            }
            Action::SendAgain => {
                let request = world.known.request()?;
                if let Known::Acknowledged { .. } = world.known {
                    world.repeats[usize::from(request)] += 1;
                    world.forget();
                }
                world.known = Known::Pending(request);
                let is_expire = self.broken(Broken::RepeatedAsExpire) && request > world.requested.dropped;
                let verb = if is_expire { Verb::Expire } else { Verb::Invalidate };
                world.sent.push(Sent { request, verb, executed_by: None });
            }
            Action::Execute(n) => {
                let is_kept = world.sent[n].verb == Verb::Expire;
                let kept = world.stored[world.master].filter(|_| is_kept);
                world.stored[world.master] = kept.map(|entry| Entry { is_expired: true, ..entry });
                world.sent[n].executed_by = Some(world.master);
            }
            Action::Acknowledged(n) => {
                let Sent { request, executed_by, .. } = world.sent.remove(n);
                self.acknowledged(&mut world, request, executed_by?);
                world.forget();
                world.returns(request);
            }
            Action::Failed(n) => {
                let Sent { request, .. } = world.sent.remove(n);
                self.failed(&mut world, request);
                world.forget();
                world.returns(request);
            }
            Action::TenSeconds => world.known = Known::Nothing,
            Action::Ask => world.read = Some(Read { floor: world.returned, is_outdated: false, found: None }),
            Action::ExecuteRead => {
                let found = Some(world.stored[world.master]);
                world.read = world.read.map(|read| Read { found, ..read });
            }
            Action::Got => {
                let Read { floor, is_outdated, found } = world.read.take()?;
                let counts = !self.concerns(&world) && (!is_outdated || self.broken(Broken::NotCompared));
                if counts || self.broken(Broken::OnlyBeforeRead) {
                    world.served = Some((found?, floor));
                }
            }
        }
        world.sent.sort_unstable();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_OLD_READ, |_, world: &World| {
                let is_good = |entry: Entry, floor: Floor| {
                    entry.version >= if entry.is_expired { floor.dropped } else { floor.any }
                };
                world.served.is_none_or(|(found, floor)| found.is_none_or(|entry| is_good(entry, floor)))
            }),
            Property::always(ONCE, |_, world: &World| world.repeats.iter().all(|repeats| *repeats < 2)),
            Property::sometimes(AGAIN, |_, world: &World| {
                let is_newest = |(found, floor): (Option<Entry>, Floor)| {
                    found.is_some_and(|entry| entry.version == COMMITS) && floor.any == COMMITS
                };
                world.served.is_some_and(is_newest) && world.connected == 1
            }),
        ]
    }
}

const COMMITS: u8 = 2;
const NO_OLD_READ: &str = "I3: the process has read what it had invalidated, or as fresh what it had expired";
const ONCE: &str = "an acknowledged invalidation is repeated once for each connection";
const AGAIN: &str = "the newest value is read from the server that has taken over";

fn breaks(rule: Broken, property: &str) {
    fails(&format!("{rule:?}"), Invalidations { broken: Some(rule) }, property);
}

#[test]
fn process_reads_no_value_that_it_has_invalidated() {
    holds("pending invalidations", Invalidations { broken: None }, &[AGAIN]);
}

#[test]
fn invalidation_that_fails_is_pending() {
    breaks(Broken::FailureForgotten, NO_OLD_READ);
}

#[test]
fn pending_invalidation_ends_with_one_of_its_time() {
    breaks(Broken::EndedByEarlier, NO_OLD_READ);
}

#[test]
fn read_looks_for_pending_invalidations_at_its_end() {
    breaks(Broken::OnlyBeforeRead, NO_OLD_READ);
}

#[test]
fn read_does_not_count_after_a_repetition() {
    breaks(Broken::NotCompared, NO_OLD_READ);
}

#[test]
fn invalidation_of_another_connection_is_repeated() {
    breaks(Broken::NotRepeated, NO_OLD_READ);
}

#[test]
fn acknowledged_invalidation_is_kept_until_a_replica_has_it() {
    breaks(Broken::ForgottenEarly, NO_OLD_READ);
}

#[test]
fn expire_does_not_end_a_pending_invalidation() {
    breaks(Broken::ExpireEndsInvalidation, NO_OLD_READ);
}

/// The expire is acknowledged by the server that has lost the invalidation, before that is repeated.
#[test]
fn expire_does_not_end_an_acknowledged_invalidation() {
    breaks(Broken::ExpireEndsAcknowledged, NO_OLD_READ);
}

#[test]
fn invalidation_is_repeated_after_an_expire() {
    breaks(Broken::RepeatedAsExpire, NO_OLD_READ);
}

#[test]
fn repetition_counts_for_its_connection() {
    breaks(Broken::RepeatedForEver, ONCE);
}
