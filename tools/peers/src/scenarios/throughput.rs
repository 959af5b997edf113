//! The throughput of hits and misses with 64 callers.

use super::{Bench, CAP, asked, warm};
use crate::{
    Result,
    child::{self, Child},
    subject::{Entry, Kind, Subject},
    table::{Cell, Column, Table},
};
use serde::{Deserialize, Serialize};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

pub(crate) const HIT: &str = "hit";
pub(crate) const SAME: &str = "hit of one key";
pub(crate) const MISS: &str = "miss";

#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    /// Number of hot keys. With 0, every request has a new key.
    hot: usize,
    span: Duration,
}

#[derive(Serialize, Deserialize)]
struct Done {
    per_second: f64,
    failed: usize,
    error: Option<String>,
}

pub(crate) async fn run(bench: &Bench, name: &'static str) -> Result<Table> {
    let (title, hot, what) = match name {
        HIT => (
            "Hit: 64 callers, each with a hot key of its own, 1 KiB",
            CALLERS,
            "Each caller asks repeatedly for its own key.",
        ),
        SAME => (
            "Hit: 64 callers of one hot key, 1 KiB",
            1,
            "All callers ask repeatedly for one key. stampede-guard sends one GET for concurrent requests, so more \
             answers than GETs are possible. It shares nothing else.",
        ),
        _ => (
            "Miss: 64 callers, a new key each time, compute 0",
            0,
            "No key is requested twice; the origin answers at once, with 1 KiB. The floor is a GET of an absent key, \
             which stores nothing.",
        ),
    };
    let how =
        format!("{what} Answers per second of one process, and their ratio to the plain GETs of the same repeat.");
    let mut table = Table::new(name, title, how, COLUMNS);
    let span = Duration::from_millis(if bench.quick() { 250 } else { 500 });
    for repeat in 1..=bench.repeats() {
        let mut floor = f64::NAN;
        // The floor comes first, because all other subjects are compared with it.
        let mut entries = bench.subjects(&[Kind::Floor, Kind::Shared, Kind::Local]);
        entries.sort_by_key(|entry| entry.kind != Kind::Floor);
        for entry in entries {
            bench.server.flush().await?;
            let task = super::Task::Throughput(Task { hot, span });
            let done: Done = Child::start(entry, bench.server.url(), task)?.whole().await?;
            if entry.kind == Kind::Floor {
                floor = done.per_second;
            }
            let ratio = done.per_second / floor;
            bench.progress(
                name,
                &format!("{repeat}/{}: {}: {:.0}/s, {ratio:.2}", bench.repeats(), entry.name, done.per_second),
            );
            let row = table.row(entry.name);
            if let Some(error) = done.error {
                row.note(format!("{} failed: {error}", done.failed));
            }
            row.cells.push(Cell::from([("per second", done.per_second), ("of raw GET", ratio)]));
        }
    }
    Ok(table)
}

impl Task {
    pub(super) async fn be(self, entry: &Entry, url: String) -> Result<()> {
        let (subject, _) = warm(entry, url.clone(), Duration::ZERO, false).await?;
        let subject: Arc<dyn Subject> = subject.into();
        self.fill(entry, &*subject, url).await?;
        child::ready().await?;
        let (began, mut callers) = (Instant::now(), JoinSet::new());
        for caller in 0..CALLERS {
            let (subject, hot, until) = (subject.clone(), self.hot, began + self.span);
            callers.spawn(async move {
                let (mut answers, mut failed, mut error) = (0, 0, None);
                let mut key = if hot == 0 { String::new() } else { format!("hot-{}", caller % hot) };
                while answers % ROUND != 0 || Instant::now() < until {
                    if hot == 0 {
                        key = format!("miss-{caller}-{answers}");
                    }
                    if let Err(what) = subject.get(&key).await {
                        failed += 1;
                        error = Some(what);
                    }
                    answers += 1;
                }
                (answers, failed, error)
            });
        }
        let (mut answers, mut failed, mut error) = (0, 0, None);
        for (one, bad, what) in callers.join_all().await {
            answers += one;
            failed += bad;
            error = error.or(what);
        }
        let per_second = answers as f64 / began.elapsed().as_secs_f64();
        child::say(&Done { per_second, failed, error })
    }

    /// Fills the hot keys through the subject, or directly if the subject stores nothing.
    async fn fill(&self, entry: &Entry, subject: &dyn Subject, url: String) -> Result<()> {
        for hot in 0..self.hot {
            let key = format!("hot-{hot}");
            if entry.kind == Kind::Floor {
                let mut connection = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
                let () = redis::AsyncCommands::set(&mut connection, &key, crate::origin::value()).await?;
            }
            let got = asked(subject, &key, CAP).await?;
            if got != crate::origin::SIZE {
                return Err(format!("{key} has {got} bytes").into());
            }
        }
        subject.settle().await;
        Ok(())
    }
}

const CALLERS: usize = 64;
/// Requests between two readings of the clock.
const ROUND: usize = 8;
const COLUMNS: &[Column] = &[Column { name: "per second", digits: 0 }, Column { name: "of raw GET", digits: 2 }];
