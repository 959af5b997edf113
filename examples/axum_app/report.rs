//! The result: a table, a sentence, a line of JSON.

use crate::herd::Answers;
use serde::Serialize;
use std::{fmt, time::Duration};

/// Both runs of a herd. Displays as the table and a summary.
pub(crate) struct Report {
    pub(crate) requests: usize,
    pub(crate) processes: usize,
    pub(crate) keys: usize,
    pub(crate) delay: Duration,
    pub(crate) without: Run,
    pub(crate) with: Run,
}

/// One run of the herd.
pub(crate) struct Run {
    pub(crate) answers: Answers,
    pub(crate) origin_calls: u64,
    pub(crate) redis_commands: u64,
}

impl Report {
    /// Returns the guarded run as JSON, for scripts.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Summary {
            requests: self.requests,
            processes: self.processes,
            keys: self.keys,
            origin_calls: self.with.origin_calls,
            failed: self.with.answers.failed,
            compute_ms: self.delay.as_millis(),
            last_answer_ms: self.with.answers.last().as_millis(),
            redis_commands: self.with.redis_commands,
        })
    }

    fn words(&self) -> String {
        let asked = self.without.origin_calls;
        let saved = asked.saturating_sub(self.with.origin_calls);
        let how = match (self.keys, self.with.origin_calls) {
            (1, 1) => "one request computed the report, all others waited for its answer".to_owned(),
            (keys, calls) if calls == keys as u64 => format!("each of the {keys} reports was computed once"),
            (1, calls) => format!("the report was computed {calls} times"),
            (keys, calls) => format!("{keys} reports were computed {calls} times in all"),
        };
        let spared = self.delay.as_secs_f64() * saved as f64;
        let cost = match self.with.redis_commands {
            0 => String::new(),
            commands => format!(" for {commands} Redis commands"),
        };
        format!(
            "{saved} of {asked} expensive calls were saved: {how}.\n\
             The origin was spared {spared:.1} s of work{cost}."
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = |cell: fn(&Run) -> String| [&self.without, &self.with].map(cell);
        row(f, "", ["without guard", "with guard"])?;
        row(f, "requests", [self.requests; 2])?;
        row(f, "processes", [self.processes; 2])?;
        row(f, "origin calls", both(|run| run.origin_calls.to_string()))?;
        row(f, "failed", both(|run| run.answers.failed.to_string()))?;
        row(f, "first answer (ms)", both(|run| ms(run.answers.first())))?;
        row(f, "p50 (ms)", both(|run| ms(run.answers.percentile(50))))?;
        row(f, "p99 (ms)", both(|run| ms(run.answers.percentile(99))))?;
        row(f, "last answer (ms)", both(|run| ms(run.answers.last())))?;
        row(f, "Redis commands", both(|run| run.redis_commands.to_string()))?;
        for (name, run) in [("without", &self.without), ("with", &self.with)] {
            if let Some(failure) = &run.answers.first_failure {
                writeln!(f, "\n{} requests failed {name} the guard, one of them so: {failure}", run.answers.failed)?;
            }
        }
        write!(f, "\n{}", self.words())
    }
}

#[derive(Serialize)]
struct Summary {
    requests: usize,
    processes: usize,
    keys: usize,
    origin_calls: u64,
    failed: usize,
    compute_ms: u128,
    last_answer_ms: u128,
    redis_commands: u64,
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, [without, with]: [impl fmt::Display; 2]) -> fmt::Result {
    writeln!(f, "{name:<18}{without:>15}{with:>15}")
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
