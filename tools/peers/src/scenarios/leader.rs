//! The future of the leader is dropped while other callers wait for it.

use super::{Bench, COMPUTE, HANGS, asked, warm};
use crate::{
    Result,
    child::{self, Child},
    origin::Origin,
    subject::{Entry, Kind, Setting, Subject},
    table::{Cell, Column, Table},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};

pub(crate) const NAME: &str = "leader dropped";

#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    /// The waiters ask another instance, with its own connections.
    elsewhere: bool,
}

#[derive(Serialize, Deserialize)]
struct Done {
    calls: usize,
    /// Time after the moment at which the leader's fetch would have ended.
    recovery: f64,
    /// Number of waiters that were not answered.
    hang: usize,
}

pub(crate) async fn run(bench: &Bench) -> Result<Table> {
    let how = format!(
        "A caller leads, and 100 waiters ask for the key 10 ms later. 25 ms after its start, half-way through the 50 \
         ms of the fetch, the leader's future is dropped. Calls include that of the leader. Recovery is the time of \
         the last waiter's answer, counted from the moment at which the leader's fetch would have ended. The waiters \
         are once on the leader's own instance, and once on another instance with its own connections, as if in \
         another process. Waiters give up after {} s.",
        PATIENCE.as_secs()
    );
    let mut table = Table::new(NAME, "Leader dropped, 100 waiters", how, COLUMNS);
    let mut hung: BTreeMap<_, usize> = BTreeMap::new();
    for repeat in 1..=bench.repeats() {
        for entry in bench.subjects(&[Kind::Shared, Kind::Local]) {
            let mut cell = Cell::new();
            for (elsewhere, calls, recovery, whose) in PLACES {
                let times = hung.entry((entry.name, elsewhere)).or_default();
                if *times == 2 || (elsewhere && entry.kind == Kind::Local) {
                    continue;
                }
                bench.server.flush().await?;
                let task = super::Task::Leader(Task { elsewhere });
                let done: Done = Child::start(entry, bench.server.url(), task)?.whole().await?;
                cell.insert(calls, done.calls as f64);
                if done.hang == 0 {
                    cell.insert(recovery, done.recovery);
                } else {
                    *times += 1;
                    let what = format!("repeat {repeat}: {} waiters on {whose} instance without an answer", done.hang);
                    table.row(entry.name).note(format!("{what} after {} s", PATIENCE.as_secs()));
                }
            }
            bench.progress(NAME, &format!("{repeat}/{}: {}: {cell:.1?}", bench.repeats(), entry.name));
            table.row(entry.name).cells.push(cell);
        }
    }
    Ok(table)
}

impl Task {
    pub(super) async fn be(self, entry: &Entry, url: String) -> Result<()> {
        let (leading, origin) = warm(entry, url.clone(), COMPUTE, false).await?;
        let leading: Arc<dyn Subject> = leading.into();
        let waited_on = if self.elsewhere { another(entry, url, &origin).await? } else { leading.clone() };
        child::ready().await?;

        let began = tokio::time::Instant::now();
        let leader = tokio::spawn(async move { leading.get("cold").await });
        sleep_until(began + Duration::from_millis(10)).await;
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let subject = waited_on.clone();
            waiters.spawn(async move { (asked(&*subject, "cold", PATIENCE).await, Instant::now()) });
        }
        sleep_until(began + Duration::from_millis(25)).await;
        leader.abort();
        let answers = waiters.join_all().await;
        let hang = answers.iter().filter(|(answer, _)| answer.as_ref().is_err_and(|error| error == HANGS)).count();
        let last = answers.iter().map(|(_, at)| *at).max().ok_or("no waiters")?;
        let end = origin.first().ok_or("the leader did not lead")? + COMPUTE;
        let recovery = last.saturating_duration_since(end).as_secs_f64() * 1e3;
        child::say(&Done { calls: origin.calls(), recovery, hang })
    }
}

/// Creates a second instance in front of the same origin, and opens its connections.
async fn another(entry: &Entry, url: String, origin: &Origin) -> Result<Arc<dyn Subject>> {
    let subject = (entry.make)(Setting { url, origin: origin.clone() }).await?;
    for _ in 0..2 {
        asked(&*subject, "warm-other", PATIENCE).await?;
        sleep(Duration::from_millis(20)).await;
    }
    subject.settle().await;
    Ok(subject.into())
}

const WAITERS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);
const PLACES: [(bool, &str, &str, &str); 2] =
    [(false, CALLS, RECOVERY, "the leader's"), (true, CALLS_THERE, RECOVERY_THERE, "the other")];
const COLUMNS: &[Column] = &[
    Column { name: CALLS, digits: 0 },
    Column { name: RECOVERY, digits: 1 },
    Column { name: CALLS_THERE, digits: 0 },
    Column { name: RECOVERY_THERE, digits: 1 },
];

pub(crate) const CALLS: &str = "calls, same instance";
pub(crate) const RECOVERY: &str = "recovery, ms";
pub(crate) const CALLS_THERE: &str = "calls, other instance";
pub(crate) const RECOVERY_THERE: &str = "recovery there, ms";
