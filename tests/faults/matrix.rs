//! Each fault with each operation, and the table of its cost.

use crate::{
    MS,
    fault::Fault,
    operation::Operation,
    witness::{MOST_AT_ONCE, Seen, Witness},
    world::World,
};
use std::{collections::HashMap, fmt, time::Duration};
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep},
};

/// The cost of one fault for one operation.
struct Cell {
    seen: Seen,
    /// Latency of the slowest answer, minus the slowest answer of the same operation without the fault.
    added: Duration,
    /// Maximum number of origin calls for ten concurrent callers.
    calls: usize,
    /// Maximum number of concurrent origin calls of one process for one key.
    peak: usize,
    /// Time from the end of the fault until each process hits what the other one fills.
    recovery: Duration,
}

async fn cell(fault: Fault, operation: Operation) -> Cell {
    let world = World::new(fault.is_of_network(), operation.policy()).await;
    let witness = Witness::with_filler(world.guards.clone(), operation.filler());
    once(operation, (&world, &witness), "plain", None).await;
    world.quiet().await;
    let plain = witness.take();

    let (key, mut calls) = once(operation, (&world, &witness), "struck", Some(fault)).await;
    let struck = Instant::now();
    for round in 1.. {
        if struck.elapsed() >= fault.lasts() {
            break;
        }
        sleep(5 * MS).await;
        calls = calls.max(operation.again(&witness, &operation.key(&key, round)).await);
    }
    fault.heal(&world).await;
    let recovery = witness.shared_again().await;
    operation.settle(&witness, &key).await;
    world.quiet().await;

    if witness.peak() > MOST_AT_ONCE {
        witness.complain(format!("{} concurrent calls of one process for one key", witness.peak()));
    }
    if calls > MOST_CALLS {
        witness.complain(format!("{calls} calls for one key"));
    }
    let mut seen = witness.take();
    seen.broken.extend(plain.broken);
    Cell { added: seen.slowest.saturating_sub(plain.slowest), seen, calls, peak: witness.peak(), recovery }
}

/// Retries until the fault has struck at its worst moment. Returns the key and the number of origin calls.
async fn once(
    operation: Operation,
    (world, witness): (&World, &Witness),
    name: &str,
    fault: Option<Fault>,
) -> (String, usize) {
    for attempt in 0..ATTEMPTS {
        let key = format!("{name}-{attempt}");
        if let Some(calls) = operation.once((world, witness), &key, fault).await {
            return (key, calls);
        }
    }
    panic!("{operation:?} did not come about in {ATTEMPTS} attempts");
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{} · {} · {}", self.added.as_millis(), self.calls, self.recovery.as_millis())
    }
}

/// Few cells run at a time, so that they do not slow each other down.
///
/// Seen to fail if local flights are not joined (ten calls for one key), and if failed invalidations are not retried
/// (the old value stays).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn matrix() {
    let mut todo = Fault::ALL.into_iter().flat_map(|fault| Operation::ALL.map(|operation| (fault, operation)));
    let (mut running, mut names) = (JoinSet::new(), HashMap::new());
    let (mut cells, mut broken) = (Vec::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE
            && let Some((fault, operation)) = todo.next()
        {
            // Runs on a thread of its own because starting and killing servers blocks.
            let handle = Handle::current();
            let run = move || (fault, operation, handle.block_on(cell(fault, operation)));
            names.insert(running.spawn_blocking(run).id(), (fault, operation));
        }
        match running.join_next().await {
            Some(Ok(done)) => cells.push(done),
            Some(Err(error)) => broken.push(format!("{:?}: {error}", names[&error.id()])),
            None => break,
        }
    }

    println!("| fault | {} |", Operation::ALL.map(Operation::name).join(" | "));
    println!("|---{}|", "|---".repeat(Operation::ALL.len()));
    for fault in Fault::ALL {
        let shown = Operation::ALL.map(|operation| {
            let cell = cells.iter().find(|cell| (cell.0, cell.1) == (fault, operation));
            cell.map_or("failed".to_owned(), |(.., cell)| cell.to_string())
        });
        println!("| {} | {} |", fault.name(), shown.join(" | "));
    }
    let requests: usize = cells.iter().map(|(.., cell)| cell.seen.requests).sum();
    let peak = cells.iter().map(|(.., cell)| cell.peak).max().unwrap_or_default();
    for (fault, operation, cell) in cells {
        let named = |what| format!("{}, {}: {what}", fault.name(), operation.name());
        broken.extend(cell.seen.broken.into_iter().map(named));
    }
    println!("\n{requests} requests, {} violations, at most {peak} concurrent calls per process and key", broken.len());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

const AT_ONCE: usize = 4;
/// Maximum number of attempts to reach the worst moment. On a busy machine a waiter may give up on the server too
/// early.
const ATTEMPTS: usize = 10;
/// Maximum number of origin calls for ten callers in two processes: one per process, and some for callers that come too
/// late on a busy machine. Without sharing there would be ten.
const MOST_CALLS: usize = 6;
