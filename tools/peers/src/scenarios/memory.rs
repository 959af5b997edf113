//! The memory of a waiting caller, and of a key that is no longer requested.

use super::Bench;
use crate::{
    Result,
    child::{self, Child},
    origin::Origin,
    subjects::own,
    table::{Cell, Column, Table},
};
use serde::{Deserialize, Serialize};
use std::{fs, mem::size_of_val, time::Duration};
use tokio::{task::JoinSet, time::sleep};

pub(crate) const NAME: &str = "memory";

#[derive(Serialize, Deserialize)]
pub(crate) struct Task;

#[derive(Serialize, Deserialize)]
struct Done {
    waiter: f64,
    future: f64,
    idle: f64,
    answered: usize,
    calls: usize,
}

pub(crate) async fn run(bench: &Bench) -> Result<Table> {
    let mut table = Table::new(NAME, "Memory of stampede-guard", HOW.to_owned(), COLUMNS);
    for repeat in 1..=bench.repeats() {
        bench.server.flush().await?;
        let child = Child::start(&own::FETCH, bench.server.url(), super::Task::Memory(Task))?;
        let Done { waiter, future, idle, answered, calls } = child.whole().await?;
        let cell = Cell::from([(WAITER, waiter), (FUTURE, future), (IDLE, idle)]);
        bench.progress(NAME, &format!("{repeat}/{}: {cell:.0?}", bench.repeats()));
        let row = table.row(own::FETCH.name);
        if (answered, calls) != (WAITERS, 1) {
            row.note(format!("{answered} of {WAITERS} answered, {calls} calls"));
        }
        row.cells.push(cell);
    }
    Ok(table)
}

impl Task {
    pub(super) async fn be(self, url: String) -> Result<()> {
        let guard = own::guard(redis::Client::open(url)?).max_waiters(WAITERS);
        let origin = Origin::new(Duration::from_millis(1_500), false);
        let fetch = |key: String| {
            let (guard, origin) = (guard.clone(), origin.clone());
            async move {
                let call = {
                    let key = key.clone();
                    async move || origin.value(&key).await
                };
                guard.fetch::<String, _, _, _>(key, call).await.map(|value| value.len())
            }
        };
        let keys = async |keys: std::ops::Range<usize>| {
            for key in keys {
                fetch(format!("warm-{key}")).await?;
            }
            guard.drain().await;
            resident()
        };
        // Allocates what the process needs once: pools, buffers, grown tables.
        keys(0..KEYS).await?;
        child::ready().await?;
        let before = keys(KEYS..2 * KEYS).await?;
        let idle = (keys(2 * KEYS..4 * KEYS).await? - before) / (2 * KEYS) as f64;

        let leader = tokio::spawn(fetch("herd".to_owned()));
        sleep(Duration::from_millis(100)).await;
        let (before, mut waiters, mut future) = (resident()?, JoinSet::new(), 0);
        for _ in 0..WAITERS {
            let waiter = fetch("herd".to_owned());
            future = size_of_val(&waiter);
            waiters.spawn(waiter);
        }
        sleep(Duration::from_millis(700)).await;
        let waiter = (resident()? - before) / WAITERS as f64 - future as f64;
        let answered = waiters.join_all().await.into_iter().filter(Result::is_ok).count();
        leader.await??;
        child::say(&Done { waiter, future: future as f64, idle, answered, calls: origin.calls() })
    }
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> Result<f64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = pages.split(' ').nth(1).ok_or("statm has no second field")?.parse()?;
    Ok(pages * 4096.0)
}

const WAITERS: usize = 10_000;
const KEYS: usize = 5_000;
const HOW: &str = "Per waiter: the growth of the resident memory of a process while 10,000 tasks wait for one key, \
    divided by their number, minus the size of their futures (each holds its guard, its key and the closure). The \
    headers of the tasks and the overhead of the allocator are included. Per idle key: 10,000 keys are filled one \
    after another, after 10,000 earlier keys, and are not requested again.";
const COLUMNS: &[Column] =
    &[Column { name: WAITER, digits: 0 }, Column { name: FUTURE, digits: 0 }, Column { name: IDLE, digits: 0 }];

pub(crate) const WAITER: &str = "per waiter, bytes";
pub(crate) const FUTURE: &str = "its future, bytes";
pub(crate) const IDLE: &str = "per idle key, bytes";
