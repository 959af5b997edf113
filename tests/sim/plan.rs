//! The plan of one simulation, drawn from its seed alone.

use fastrand::Rng;
use stampede_guard::{
    Policy, WaitTimeout,
    testing::{Fault, Operation},
};
use std::{ops::Range, time::Duration};

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) climate: Climate,
    pub(crate) nodes: usize,
    pub(crate) keys: u64,
    pub(crate) settings: Settings,
    /// The faults that apply to an operation of a node throughout the run.
    pub(crate) latencies: Vec<Vec<(Operation, Fault)>>,
    /// When the store answers no node.
    pub(crate) silence: Option<Range<Duration>>,
    /// Sorted by start time.
    pub(crate) steps: Vec<(Duration, Step)>,
}

/// The kinds of faults that occur, which decide what must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Climate {
    /// No faults, but wake-ups may be lost.
    Calm,
    /// The store falls silent once, for less time than a lease needs to expire.
    Silence,
    /// The store of some nodes is down from the beginning to the end.
    StoreFailure,
    /// The origin fails half of the time, replies are slow, and entries become stale and are invalidated.
    Shaky,
    /// Processes die, and leases, entries and wake-ups are lost, but every request to the store is answered.
    Rough,
    /// All faults.
    Storm,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) fresh_for: Duration,
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) on_wait_timeout: WaitTimeout,
    pub(crate) max_fallback_fetches: usize,
    pub(crate) fetch_timeout: Duration,
    pub(crate) failure_ttl: Duration,
    pub(crate) uncacheable_ttl: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ask(Ask),
    /// The origin writes a new version, and the node invalidates the key after `pause`.
    Write {
        node: usize,
        key: u64,
        pause: Duration,
    },
    Fault {
        node: usize,
        operation: Operation,
        times: usize,
        fault: Fault,
    },
    Heal(usize),
    FallSilent(Fault),
    AnswerAgain,
    Kill(usize),
    KillOnceItLeads(usize),
    Revive(usize),
    LoseWakes(usize),
    HearWakes(usize),
    InvalidateElsewhere(u64),
    ExpireLease(u64),
    Evict(u64),
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) node: usize,
    pub(crate) key: u64,
    pub(crate) how: How,
    pub(crate) takes: Duration,
    pub(crate) ends: Ends,
    /// A key that the fetch requests in turn.
    pub(crate) within: Option<u64>,
    /// The caller is dropped after this time.
    pub(crate) patience: Option<Duration>,
    /// The caller's future is polled once, and then not for this time.
    pub(crate) held: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Owned,
    Shared,
    Scoped,
    Private,
    NotStored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Well,
    Badly,
    Panicking,
}

impl Settings {
    pub(crate) fn policy(&self) -> Policy {
        Policy::fresh_for(self.fresh_for)
            .stale_while_revalidate(self.stale_while_revalidate)
            .stale_if_error(self.stale_if_error)
            .jitter(0.0)
    }
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let dice = &mut Rng::with_seed(seed);
        let climate = match dice.u8(0..10) {
            0 | 1 => Climate::Calm,
            2 | 3 => Climate::Silence,
            4 => Climate::StoreFailure,
            5 => Climate::Shaky,
            6 | 7 => Climate::Rough,
            _ => Climate::Storm,
        };
        let (nodes, keys) = (dice.usize(2..=4), dice.u64(1..=3));
        let settings = Settings::of(climate, dice);
        let latencies = (0..nodes).map(|_| latencies(climate, dice)).collect();
        let mut plan = Self { climate, nodes, keys, settings, latencies, silence: None, steps: Vec::new() };
        // Events of one key are drawn close together, because only concurrent events interact.
        for _ in 0..dice.usize(1..5) {
            let (at, key) = (dice.u64(0..2500), dice.u64(0..keys));
            for _ in 0..dice.usize(1..4) {
                plan.herd(at + dice.u64(0..300), key, dice);
            }
            for _ in 0..dice.usize(0..5) {
                plan.disturbance(at + dice.u64(0..400), key, dice);
            }
        }
        if climate == Climate::Silence {
            plan.fall_silent(dice);
        }
        plan.steps.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Adds a silence that is too short for a lease to expire, as its leader extends it every third of its
    /// time-to-live. A circuit breaker that opens closes again within a lease, too.
    fn fall_silent(&mut self, dice: &mut Rng) {
        let from = ms(dice.u64(100..8000));
        let silence = from..from + ms(dice.u64(50..1000));
        let fault = [Fault::Hangs, Fault::RequestLost][dice.usize(0..2)].clone();
        self.steps.push((silence.start, Step::FallSilent(fault)));
        self.steps.push((silence.end, Step::AnswerAgain));
        self.silence = Some(silence);
    }

    /// Adds callers that ask at nearly the same time.
    fn herd(&mut self, at: u64, key: u64, dice: &mut Rng) {
        for _ in 0..dice.usize(1..8) {
            let ask = self.ask(key, dice);
            self.steps.push((ms(at + dice.u64(0..3) * dice.u64(0..20)), Step::Ask(ask)));
        }
    }

    fn ask(&self, key: u64, dice: &mut Rng) -> Ask {
        let calm = matches!(self.climate, Climate::Calm | Climate::Silence);
        let tame = calm || self.climate == Climate::StoreFailure;
        let how = match dice.u8(0..10) {
            0 if !tame => How::Private,
            1 if !tame => How::NotStored,
            2 | 3 => How::Scoped,
            4 => How::Shared,
            _ => How::Owned,
        };
        let ends = match dice.u8(0..12) {
            2..7 if self.climate == Climate::Shaky => Ends::Badly,
            0 if !calm => Ends::Badly,
            1 if !calm => Ends::Panicking,
            _ => Ends::Well,
        };
        let takes = match dice.u8(0..20) {
            0 if !tame => self.settings.fetch_timeout + ms(200),
            1..6 => self.settings.lease.mul_f64(1.0 + 6.0 * dice.f64()),
            _ => ms(dice.u64(0..20) * dice.u64(0..20)),
        };
        let nests = !matches!(self.climate, Climate::StoreFailure | Climate::Silence);
        let within = (key + 1 < self.keys && nests && dice.u8(0..6) == 0).then_some(key + 1);
        // A dropped scoped caller drops its call, and its joiners ask the store, which may be silent.
        let stays = self.climate == Climate::Silence && how == How::Scoped;
        let patience = (!stays && dice.u8(0..5) == 0).then(|| ms(dice.u64(0..15) * dice.u64(0..30)));
        let held = (!tame && how == How::Scoped && dice.u8(0..6) == 0).then(|| ms(dice.u64(1..1500)));
        Ask { node: dice.usize(0..self.nodes), key, how, takes, ends, within, patience, held }
    }

    fn disturbance(&mut self, at: u64, key: u64, dice: &mut Rng) {
        let (node, pause) = (dice.usize(0..self.nodes), ms(dice.u64(0..4)));
        let step = match (self.climate, dice.u8(0..16)) {
            (Climate::Calm, 0..8) => Step::LoseWakes(node),
            (Climate::Calm, 8..12) => Step::HearWakes(node),
            (Climate::Calm | Climate::Silence | Climate::StoreFailure, _) => return,
            (Climate::Storm, 9..) => {
                let (operation, times, fault) = (OPERATIONS[dice.usize(0..6)], dice.usize(1..4), fault(dice));
                Step::Fault { node, operation, times, fault }
            }
            (Climate::Shaky, _) | (_, 0 | 11 | 12 | 13) => Step::Write { node, key, pause },
            (_, 1 | 14) => Step::InvalidateElsewhere(key),
            (_, 2 | 15) => Step::ExpireLease(key),
            (_, 3) => Step::Evict(key),
            (_, 4) => Step::Flush,
            (_, 5) => Step::LoseWakes(node),
            (_, 6) => Step::HearWakes(node),
            (_, 7) => Step::Kill(node),
            (_, 8) => Step::Revive(node),
            (_, 9) => Step::KillOnceItLeads(node),
            (_, _) => Step::Heal(node),
        };
        self.steps.push((ms(at), step));
    }

    pub(crate) fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.steps.iter().filter_map(|(_, step)| if let Step::Ask(ask) = step { Some(ask) } else { None })
    }

    pub(crate) fn any(&self, which: impl Fn(&Step) -> bool) -> bool {
        self.steps.iter().any(|(_, step)| which(step))
    }
}

impl Settings {
    fn of(climate: Climate, dice: &mut Rng) -> Self {
        let one_of = |dice: &mut Rng, choice: &[u64]| ms(choice[dice.usize(0..choice.len())]);
        let tame = matches!(climate, Climate::Calm | Climate::Silence | Climate::StoreFailure);
        let patient = match climate {
            Climate::Silence => true,
            Climate::Calm | Climate::Rough => dice.bool(),
            Climate::StoreFailure | Climate::Shaky | Climate::Storm => false,
        };
        Self {
            fresh_for: one_of(
                dice,
                match climate {
                    Climate::Calm => &[200, 1000],
                    Climate::Silence => &[1000, 60_000],
                    Climate::Shaky => &[20],
                    _ => &[20, 200, 1000],
                },
            ),
            stale_while_revalidate: one_of(dice, &[0, 0, 300, 2000]),
            stale_if_error: one_of(dice, if climate == Climate::Shaky { &[2000] } else { &[0, 0, 300, 2000] }),
            lease: one_of(dice, if climate == Climate::Silence { &[3000, 6000] } else { &[150, 400, 1000] }),
            wait: one_of(dice, if patient { &[PATIENT] } else { &[300, 1500] }),
            on_wait_timeout: if dice.bool() { WaitTimeout::Reject } else { WaitTimeout::Fetch },
            max_fallback_fetches: [1, 2, 64][dice.usize(0..3)],
            fetch_timeout: one_of(dice, if tame { &[60_000] } else { &[500, 2000, 8000] }),
            failure_ttl: one_of(dice, &[0, 50, 200]),
            uncacheable_ttl: one_of(dice, &[0, 100, 1000]),
        }
    }

    /// Reports whether waits must end before the wait timeout, because every loss costs at most a lease.
    pub(crate) fn is_patient(&self) -> bool {
        self.wait >= ms(PATIENT)
    }
}

/// Requests and replies that are slow but within the store timeout; in an outage, the fault of the outage.
fn latencies(climate: Climate, dice: &mut Rng) -> Vec<(Operation, Fault)> {
    if climate == Climate::StoreFailure && dice.u8(0..3) > 0 {
        let fault = [Fault::Fails, Fault::RequestLost, Fault::Hangs][dice.usize(0..3)].clone();
        return OPERATIONS.map(|operation| (operation, fault.clone())).to_vec();
    }
    // A network that delivers late copies of requests.
    if climate == Climate::Storm && dice.u8(0..4) == 0 {
        return OPERATIONS.map(|operation| (operation, Fault::Repeated(ms(dice.u64(1..400))))).to_vec();
    }
    if climate == Climate::Shaky {
        return OPERATIONS.map(|operation| (operation, Fault::ReplyDelayed(ms(dice.u64(0..90))))).to_vec();
    }
    let slowness = dice.u64(0..15);
    // All requests take the same time, because requests on one connection do not overtake each other.
    if dice.bool() {
        return OPERATIONS.map(|operation| (operation, Fault::RequestDelayed(ms(slowness)))).to_vec();
    }
    OPERATIONS.map(|operation| (operation, Fault::ReplyDelayed(ms(dice.u64(0..=slowness))))).to_vec()
}

fn fault(dice: &mut Rng) -> Fault {
    let span = ms(dice.u64(0..30) * dice.u64(0..30));
    match dice.u8(0..8) {
        0 => Fault::Fails,
        1 => Fault::RequestLost,
        2 => Fault::ReplyLost,
        3 => Fault::Hangs,
        4 => Fault::RequestDelayed(span),
        5 => Fault::ReplyDelayed(span),
        _ => Fault::Repeated(span),
    }
}

pub(crate) const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// A wait timeout, in milliseconds, that is longer than any caller needs to wait if the store answers.
const PATIENT: u64 = 60_000;

pub(crate) const STORE_TIMEOUT: Duration = ms(100);

pub(crate) const OPERATIONS: [Operation; 6] = [
    Operation::Get,
    Operation::GetOrLease,
    Operation::Fill,
    Operation::Release,
    Operation::Extend,
    Operation::Invalidate,
];
