//! The plan of one simulation, drawn from its seed alone, each field [independently](Dice) of the others.

use crate::dice::Dice;
use stampede_guard::{
    Policy,
    testing::{Fault, Operation},
};
use std::{ops::Range, time::Duration};

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) climate: Climate,
    pub(crate) nodes: usize,
    pub(crate) keys: u64,
    pub(crate) settings: Settings,
    /// Whether the store takes most of the store timeout for each reply, and most callers leave before or soon after
    /// it.
    pub(crate) is_slow: bool,
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
    /// The store falls silent once, for less than a lease.
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
    pub(crate) keep_for_validation: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) max_fallback_fetches: usize,
    pub(crate) fetch_timeout: Duration,
    pub(crate) failure_ttl: Duration,
    pub(crate) uncacheable_ttl: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ask(Ask),
    /// The node lets the value of the key expire.
    ExpireValue {
        node: usize,
        key: u64,
    },
    /// The origin writes a new version, and the node invalidates the key after `pause`, or puts the new version.
    Write {
        node: usize,
        key: u64,
        pause: Duration,
        puts: bool,
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
    /// The fetch renews the stored value if the origin has no newer version.
    Validating,
    /// The caller refreshes, as `Validating` fetches.
    Refreshing,
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
            .keep_for_validation(self.keep_for_validation)
            .jitter(0.0)
    }
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let dice = Dice::of(seed);
        let climate = match dice.field("climate").u8(0..10) {
            0 | 1 => Climate::Calm,
            2 | 3 => Climate::Silence,
            4 => Climate::StoreFailure,
            5 => Climate::Shaky,
            6 | 7 => Climate::Rough,
            _ => Climate::Storm,
        };
        let (nodes, keys) = (dice.field("nodes").usize(2..=4), dice.field("keys").u64(1..=3));
        let settings = Settings::of(climate, dice.part("settings"));
        // Without other faults, because otherwise replies may be later than the store timeout.
        let is_slow = matches!(climate, Climate::Calm | Climate::Rough) && dice.field("is slow").u8(0..2) == 0;
        let latencies = dice.parts("latencies", nodes).map(|dice| latencies(climate, is_slow, dice)).collect();
        let mut plan = Self { climate, nodes, keys, settings, is_slow, latencies, silence: None, steps: Vec::new() };
        // Events of one key are drawn close together, because only concurrent events interact.
        for dice in dice.parts("event", dice.field("events").usize(1..5)) {
            let (at, key) = (dice.field("at").u64(0..2500), dice.field("key").u64(0..keys));
            for dice in dice.parts("herd", dice.field("herds").usize(1..4)) {
                plan.herd(at + dice.field("at").u64(0..300), key, dice);
            }
            for dice in dice.parts("disturbance", dice.field("disturbances").usize(0..5)) {
                plan.disturbance(at + dice.field("at").u64(0..400), key, dice);
            }
        }
        if climate == Climate::Silence {
            plan.fall_silent(dice.part("silence"));
        }
        plan.steps.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Adds a silence after which a circuit breaker closes again within a lease, for which waiters stay. A silence of
    /// more than two thirds of a lease ends a lease that its leader extends.
    fn fall_silent(&mut self, dice: Dice) {
        let from = ms(dice.field("from").u64(100..8000));
        let longest = self.settings.lease.as_millis() as u64 - 1300;
        let silence = from..from + ms(dice.field("length").u64(50..longest));
        let fault = dice.one_of("fault", &[Fault::Hangs, Fault::RequestLost]);
        self.steps.push((silence.start, Step::FallSilent(fault)));
        self.steps.push((silence.end, Step::AnswerAgain));
        self.silence = Some(silence);
    }

    /// Adds callers that ask at nearly the same time.
    fn herd(&mut self, at: u64, key: u64, dice: Dice) {
        for dice in dice.parts("ask", dice.field("asks").usize(1..8)) {
            let mut after = dice.field("after");
            let ask = self.ask(key, dice);
            self.steps.push((ms(at + after.u64(0..3) * after.u64(0..20)), Step::Ask(ask)));
        }
    }

    fn ask(&self, key: u64, dice: Dice) -> Ask {
        let calm = matches!(self.climate, Climate::Calm | Climate::Silence);
        let tame = calm || self.climate == Climate::StoreFailure;
        let how = match dice.field("how").u8(0..10) {
            0 if !tame => How::Private,
            1 if !tame => How::NotStored,
            2 | 3 => How::Scoped,
            4 => How::Shared,
            5 | 6 => How::Validating,
            _ if dice.field("refreshes").u8(0..4) == 0 => How::Refreshing,
            _ => How::Owned,
        };
        let ends = match dice.field("ends").u8(0..12) {
            2..7 if self.climate == Climate::Shaky => Ends::Badly,
            0 if !calm => Ends::Badly,
            1 if !calm => Ends::Panicking,
            _ => Ends::Well,
        };
        let mut takes = dice.field("takes");
        let takes = match takes.u8(0..20) {
            0 if !tame => self.settings.fetch_timeout + ms(200),
            1..6 => self.settings.lease.mul_f64(1.0 + 6.0 * takes.f64()),
            _ => ms(takes.u64(0..20) * takes.u64(0..20)),
        };
        let nests = !matches!(self.climate, Climate::StoreFailure | Climate::Silence);
        let within = (key + 1 < self.keys && nests && dice.field("within").u8(0..6) == 0).then_some(key + 1);
        // A dropped scoped caller drops its call, and its joiners ask the store, which may be silent.
        let stays = self.climate == Climate::Silence && how == How::Scoped;
        let mut patience = dice.field("patience");
        let patience = (!stays && patience.u8(0..5) == 0).then(|| ms(patience.u64(0..15) * patience.u64(0..30)));
        let mut leaves = dice.field("leaves a slow store");
        let leaves = (self.is_slow && leaves.u8(0..4) > 0).then(|| ms(leaves.u64(0..150)));
        let patience = leaves.or(patience);
        let mut held = dice.field("held");
        let held = (!tame && how == How::Scoped && held.u8(0..6) == 0).then(|| ms(held.u64(1..1500)));
        Ask { node: self.node(dice), key, how, takes, ends, within, patience, held }
    }

    fn node(&self, dice: Dice) -> usize {
        dice.field("node").usize(0..self.nodes)
    }

    fn disturbance(&mut self, at: u64, key: u64, dice: Dice) {
        let node = self.node(dice);
        let step = match (self.climate, dice.field("step").u8(0..16)) {
            (Climate::Calm, 0..8) => Step::LoseWakes(node),
            (Climate::Calm, 8..12) => Step::HearWakes(node),
            (Climate::Calm | Climate::Silence | Climate::StoreFailure, _) => return,
            (Climate::Storm, 9..) => Step::Fault {
                node,
                operation: dice.one_of("operation", &OPERATIONS),
                times: dice.field("times").usize(1..4),
                fault: fault(dice),
            },
            (Climate::Shaky, _) | (_, 0 | 11 | 12 | 13) if dice.field("expires").u8(0..4) == 0 => {
                Step::ExpireValue { node, key }
            }
            (Climate::Shaky, _) | (_, 0 | 11 | 12 | 13) => {
                let pause = ms(dice.field("pause").u64(0..4));
                Step::Write { node, key, pause, puts: dice.field("puts").u8(0..3) == 0 }
            }
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

    /// Returns the time that an operation of the node takes.
    pub(crate) fn latency(&self, node: usize, operation: Operation) -> Duration {
        let delay = |fault: &Fault| match fault {
            Fault::RequestDelayed(span) | Fault::ReplyDelayed(span) => *span,
            _ => Duration::ZERO,
        };
        self.latencies[node].iter().filter(|(of, _)| *of == operation).map(|(_, fault)| delay(fault)).sum()
    }

    pub(crate) fn any(&self, which: impl Fn(&Step) -> bool) -> bool {
        self.steps.iter().any(|(_, step)| which(step))
    }
}

impl Settings {
    fn of(climate: Climate, dice: Dice) -> Self {
        let tame = matches!(climate, Climate::Calm | Climate::Silence | Climate::StoreFailure);
        let patient = match climate {
            Climate::Silence => true,
            Climate::Calm | Climate::Rough => dice.field("patient").bool(),
            Climate::StoreFailure | Climate::Shaky | Climate::Storm => false,
        };
        let fresh_for: &[_] = match climate {
            Climate::Calm => &[200, 1000],
            Climate::Silence => &[1000, 60_000],
            Climate::Shaky => &[20],
            _ => &[20, 200, 1000],
        };
        let stale: &[_] = &[0, 0, 300, 2000];
        let lease: &[_] = if climate == Climate::Silence { &[3000, 6000] } else { &[150, 400, 1000] };
        Self {
            fresh_for: dice.ms("fresh_for", fresh_for),
            stale_while_revalidate: dice.ms("stale_while_revalidate", stale),
            stale_if_error: dice.ms("stale_if_error", if climate == Climate::Shaky { &[2000] } else { stale }),
            keep_for_validation: dice.ms("keep_for_validation", stale),
            lease: dice.ms("lease", lease),
            wait: dice.ms("wait", if patient { &[PATIENT] } else { &[300, 1500] }),
            max_fallback_fetches: dice.one_of("max_fallback_fetches", &[1, 2, 64]),
            fetch_timeout: dice.ms("fetch_timeout", if tame { &[60_000] } else { &[500, 2000, 8000] }),
            failure_ttl: dice.ms("failure_ttl", &[0, 50, 200]),
            uncacheable_ttl: dice.ms("uncacheable_ttl", &[0, 100, 1000]),
        }
    }

    /// Reports whether waits must end before the wait timeout, because every loss costs at most a lease.
    pub(crate) fn is_patient(&self) -> bool {
        self.wait >= ms(PATIENT)
    }
}

/// Requests and replies that are slow but within the store timeout; in an outage, the fault of the outage.
fn latencies(climate: Climate, is_slow: bool, dice: Dice) -> Vec<(Operation, Fault)> {
    let span =
        |range: Range<u64>| OPERATIONS.map(|operation| ms(dice.field(&format!("{operation:?}")).u64(range.clone())));
    let with =
        |spans: [Duration; 6], fault: fn(Duration) -> Fault| OPERATIONS.into_iter().zip(spans.map(fault)).collect();
    if climate == Climate::StoreFailure && dice.field("is down").u8(0..3) > 0 {
        let fault = dice.one_of("fault", &[Fault::Fails, Fault::RequestLost, Fault::Hangs]);
        return OPERATIONS.map(|operation| (operation, fault.clone())).to_vec();
    }
    // A network that delivers late copies of requests.
    if climate == Climate::Storm && dice.field("repeats").u8(0..4) == 0 {
        return with(span(1..400), Fault::Repeated);
    }
    if climate == Climate::Shaky {
        return with(span(0..90), Fault::ReplyDelayed);
    }
    let slowness = if is_slow { dice.field("latency").u64(40..97) } else { dice.field("slowness").u64(0..15) };
    // All requests take the same time, because requests on one connection do not overtake each other.
    if dice.field("delays requests").bool() {
        return with([ms(slowness); 6], Fault::RequestDelayed);
    }
    with(span(if is_slow { 20..slowness + 1 } else { 0..slowness + 1 }), Fault::ReplyDelayed)
}

fn fault(dice: Dice) -> Fault {
    let mut span = dice.field("span");
    let span = ms(span.u64(0..30) * span.u64(0..30));
    match dice.field("fault").u8(0..8) {
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
