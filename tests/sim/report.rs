//! The figures of each seed, so that two builds of the engine can be compared over the same plans.

use crate::{
    plan::Plan,
    run::Outcome,
    world::{Answer, Asked},
};
use stampede_guard::ErrorKind;
use std::{fmt::Write, time::Duration};

/// What callers and origin saw in one run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    origin_calls: usize,
    /// Number of answers whose fresh lifetime had passed when their caller asked.
    stale: usize,
    /// Number of callers that were rejected.
    rejected: usize,
    /// For each answered caller, the time from its request to its answer.
    waits: Vec<Duration>,
}

impl Figures {
    pub(crate) fn of(plan: &Plan, outcome: &Outcome) -> Self {
        let (calls, asked) = (&outcome.record.calls, &outcome.record.asked);
        let is_stale = |asked: &Asked, answer| {
            let Answer::Value(value) = answer else { return false };
            calls[value.call].ended.is_some_and(|ended| ended + plan.settings.fresh_for < asked.at)
        };
        let answers = || asked.iter().filter_map(|asked| asked.answer.map(|(at, answer)| (asked, at, answer)));
        Self {
            origin_calls: calls.len(),
            stale: answers().filter(|(asked, _, answer)| is_stale(asked, *answer)).count(),
            rejected: answers().filter(|(_, _, answer)| *answer == Answer::Error(ErrorKind::Overloaded)).count(),
            waits: answers()
                .filter(|(_, _, answer)| *answer != Answer::Dropped)
                .map(|(asked, at, _)| at - asked.at)
                .collect(),
        }
    }

    fn line(&self, name: &str) -> String {
        let Self { origin_calls, stale, rejected, waits } = self;
        format!("{name},{origin_calls},{stale},{rejected},{}", percentile_99(waits).as_millis())
    }
}

/// Returns one line per seed, and one for all of them together.
pub(crate) fn report<'a>(figures: impl Iterator<Item = (u64, &'a Figures)>) -> String {
    let mut all = Figures { origin_calls: 0, stale: 0, rejected: 0, waits: Vec::new() };
    let mut report = "seed,origin_calls,stale,rejected,wait_p99_ms\n".to_owned();
    for (seed, figures) in figures {
        let _ = writeln!(report, "{}", figures.line(&seed.to_string()));
        all.origin_calls += figures.origin_calls;
        all.stale += figures.stale;
        all.rejected += figures.rejected;
        all.waits.extend(&figures.waits);
    }
    let _ = writeln!(report, "{}", all.line("all"));
    report
}

/// Returns the shortest time that 99 of 100 do not exceed.
fn percentile_99(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let rank = (times.len() * 99).div_ceil(100);
    rank.checked_sub(1).map_or(Duration::ZERO, |index| times[index])
}

#[test]
fn the_report_has_a_line_for_each_seed_and_one_for_all() {
    let figures = |waits: &[u64]| Figures {
        origin_calls: 2,
        stale: 1,
        rejected: 0,
        waits: waits.iter().copied().map(Duration::from_millis).collect(),
    };
    let (one, other) = (figures(&[5, 30, 7]), figures(&[]));
    let expected = "seed,origin_calls,stale,rejected,wait_p99_ms\n0,2,1,0,30\n1,2,1,0,0\nall,4,2,0,30\n";
    assert_eq!(report([(0, &one), (1, &other)].into_iter()), expected);
    let hundred: Vec<_> = (1..=100).map(Duration::from_millis).collect();
    assert_eq!(percentile_99(&hundred), Duration::from_millis(99));
}
