//! What happens in one simulation: drawn from its seed, and from nothing else.

use fastrand::Rng;
use stampede_guard::{
    Policy,
    testing::{Fault, Operation},
};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) climate: Climate,
    pub(crate) processes: usize,
    pub(crate) keys: u64,
    pub(crate) settings: Settings,
    /// What each operation of each process takes on its way, throughout.
    pub(crate) latencies: Vec<Vec<(Operation, Fault)>>,
    /// In the order in which they begin.
    pub(crate) steps: Vec<(Duration, Step)>,
}

/// What may go wrong, and so what must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Climate {
    /// Nothing.
    Calm,
    /// The store of some processes is down from the beginning to the end.
    Outage,
    /// The origin fails half of the time, replies are slow, and what is there is stale and invalidated.
    Shaky,
    /// Processes die, leases and entries are lost, wake-ups too; but whatever is sent to the store is answered.
    Rough,
    /// Everything.
    Storm,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) fresh_for: Duration,
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) max_fetch: Duration,
    pub(crate) tombstone: Duration,
    pub(crate) pass_for: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ask(Ask),
    /// The origin has something new, and the process invalidates the key that much later.
    Write {
        process: usize,
        key: u64,
        pause: Duration,
    },
    Fault {
        process: usize,
        operation: Operation,
        times: usize,
        fault: Fault,
    },
    Heal(usize),
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
    pub(crate) process: usize,
    pub(crate) key: u64,
    pub(crate) how: How,
    pub(crate) takes: Duration,
    pub(crate) ends: Ends,
    /// A key that its fetch asks for in turn.
    pub(crate) within: Option<u64>,
    /// Dropped after that.
    pub(crate) patience: Option<Duration>,
    /// Polled once, and then not again for that long.
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
        let climate = match dice.u8(0..8) {
            0 | 1 => Climate::Calm,
            2 => Climate::Outage,
            3 => Climate::Shaky,
            4 | 5 => Climate::Rough,
            _ => Climate::Storm,
        };
        let (processes, keys) = (dice.usize(2..=4), dice.u64(1..=3));
        let settings = Settings::of(climate, dice);
        let latencies = (0..processes).map(|_| latencies(climate, dice)).collect();
        let mut plan = Self { climate, processes, keys, settings, latencies, steps: Vec::new() };
        // What happens at the same time to the same key is what matters.
        for _ in 0..dice.usize(1..5) {
            let (at, key) = (dice.u64(0..2500), dice.u64(0..keys));
            for _ in 0..dice.usize(1..4) {
                plan.herd(at + dice.u64(0..300), key, dice);
            }
            for _ in 0..dice.usize(0..5) {
                plan.disturbance(at + dice.u64(0..400), key, dice);
            }
        }
        plan.steps.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Callers at nearly one moment.
    fn herd(&mut self, at: u64, key: u64, dice: &mut Rng) {
        for _ in 0..dice.usize(1..8) {
            let ask = self.ask(key, dice);
            self.steps.push((ms(at + dice.u64(0..3) * dice.u64(0..20)), Step::Ask(ask)));
        }
    }

    fn ask(&self, key: u64, dice: &mut Rng) -> Ask {
        let (tame, calm) = (matches!(self.climate, Climate::Calm | Climate::Outage), self.climate == Climate::Calm);
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
        let slow = self.settings.max_fetch.as_millis() as u64 + 200;
        let takes = ms(if !tame && dice.u8(0..20) == 0 { slow } else { dice.u64(0..20) * dice.u64(0..20) });
        let within = (key + 1 < self.keys && self.climate != Climate::Outage && dice.u8(0..6) == 0).then_some(key + 1);
        // A scoped caller that goes away takes its call with it: then there are two.
        let stays = calm && how == How::Scoped;
        let patience = (!stays && dice.u8(0..5) == 0).then(|| ms(dice.u64(0..15) * dice.u64(0..30)));
        let held = (!tame && how == How::Scoped && dice.u8(0..6) == 0).then(|| ms(dice.u64(1..1500)));
        Ask { process: dice.usize(0..self.processes), key, how, takes, ends, within, patience, held }
    }

    fn disturbance(&mut self, at: u64, key: u64, dice: &mut Rng) {
        let (process, pause) = (dice.usize(0..self.processes), ms(dice.u64(0..4)));
        let step = match (self.climate, dice.u8(0..16)) {
            (Climate::Calm | Climate::Outage, _) => return,
            (Climate::Storm, 9..) => {
                let (operation, times, fault) = (OPERATIONS[dice.usize(0..6)], dice.usize(1..4), fault(dice));
                Step::Fault { process, operation, times, fault }
            }
            (Climate::Shaky, _) | (_, 0 | 11 | 12 | 13) => Step::Write { process, key, pause },
            (_, 1 | 14) => Step::InvalidateElsewhere(key),
            (_, 2 | 15) => Step::ExpireLease(key),
            (_, 3) => Step::Evict(key),
            (_, 4) => Step::Flush,
            (_, 5) => Step::LoseWakes(process),
            (_, 6) => Step::HearWakes(process),
            (_, 7) => Step::Kill(process),
            (_, 8) => Step::Revive(process),
            (_, 9) => Step::KillOnceItLeads(process),
            (_, _) => Step::Heal(process),
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
        let calm = climate == Climate::Calm;
        let patient = calm || climate == Climate::Rough && dice.bool();
        Self {
            fresh_for: one_of(
                dice,
                match climate {
                    Climate::Calm => &[200, 1000],
                    Climate::Shaky => &[20],
                    _ => &[20, 200, 1000],
                },
            ),
            stale_while_revalidate: one_of(dice, &[0, 0, 300, 2000]),
            stale_if_error: one_of(dice, if climate == Climate::Shaky { &[2000] } else { &[0, 0, 300, 2000] }),
            lease: one_of(dice, &[150, 400, 1000]),
            // For so long that nobody may need it, where the store answers.
            wait: one_of(dice, if patient { &[60_000] } else { &[300, 1500] }),
            max_fetch: one_of(dice, if calm { &[10_000] } else { &[500, 2000] }),
            tombstone: one_of(dice, &[0, 50, 200]),
            pass_for: one_of(dice, &[0, 100, 1000]),
        }
    }

    /// Whether waits end before their budget does, as nothing is lost for longer than a lease or a poll.
    pub(crate) fn is_patient(&self) -> bool {
        self.wait >= ms(60_000)
    }
}

/// Requests and replies that take their time, within the operation timeout; in an outage, the outage.
fn latencies(climate: Climate, dice: &mut Rng) -> Vec<(Operation, Fault)> {
    if climate == Climate::Outage && dice.u8(0..3) > 0 {
        let fault = [Fault::Fails, Fault::RequestLost, Fault::Hangs][dice.usize(0..3)].clone();
        return OPERATIONS.map(|operation| (operation, fault.clone())).to_vec();
    }
    // A network in which copies of requests are under way for a while.
    if climate == Climate::Storm && dice.u8(0..4) == 0 {
        return OPERATIONS.map(|operation| (operation, Fault::Repeated(ms(dice.u64(1..400))))).to_vec();
    }
    if climate == Climate::Shaky {
        return OPERATIONS.map(|operation| (operation, Fault::ReplyDelayed(ms(dice.u64(0..90))))).to_vec();
    }
    let slowness = dice.u64(0..15);
    // All requests equally: on one connection none overtakes another.
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

pub(crate) const OP_TIMEOUT: Duration = ms(100);

const OPERATIONS: [Operation; 6] =
    [Operation::Get, Operation::Lead, Operation::Fill, Operation::Abandon, Operation::Extend, Operation::Invalidate];
