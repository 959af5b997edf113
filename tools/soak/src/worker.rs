//! One process of the fleet: the load, and the checks that nothing is left after it.

use crate::{
    Result,
    args::{Duty, Sabotage},
    check::Settled,
    load::{self, Load},
    message::{Count, Message, tell},
    source::Source,
};
use stampede_guard::{Policy, StampedeGuard};
use std::{
    fs, io, panic,
    process::exit,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{interval, sleep, timeout},
};

/// Works until the parent says so, then cleans up, then waits for the parent to exit.
pub(crate) async fn work(duty: &Duty) -> Result<()> {
    let mut orders = orders();
    tell_of_panics();
    let tasks = Handle::current().metrics().num_alive_tasks();
    let guard = guard(duty)?;
    let load = Arc::new(Load::new(guard.clone(), Source::new(duty), Arc::new(Settled::default()), duty));
    let hearing = tokio::spawn(load.clone().hear());
    let callers = load::start(&load, duty.seed, &orders);
    let mut memory = Vec::new();
    let mut ticks = interval(TICK);
    while !*orders.borrow_and_update() {
        tokio::select! {
            ended = orders.changed() => ended?,
            _ = ticks.tick() => {
                if duty.sabotage == Some(Sabotage::Memory) {
                    std::mem::forget(vec![1_u8; (2 * ALLOWANCE as usize) << 10]);
                }
                let count = load.count();
                memory.push(count.memory);
                tell(&Message::Count(count));
            }
        }
    }
    callers.join_all().await;
    hearing.abort();
    let _ = hearing.await;
    let count = load.count();
    memory.push(count.memory);
    if let Some(grown) = grown(&memory) {
        tell(&Message::Violation(grown));
    }
    if duty.sabotage == Some(Sabotage::Leases) {
        keep_a_lease(duty).await?;
    }
    leave(guard, load, tasks).await;
    tell(&Message::Done(count));
    while orders.changed().await.is_ok() {}
    Ok(())
}

/// Returns a guard with short times, so that many events happen within a minute.
fn guard(duty: &Duty) -> Result<StampedeGuard> {
    let policy = Policy::fresh_for(Duration::from_secs(1))
        .stale_while_revalidate(Duration::from_secs(1))
        .stale_if_error(Duration::from_secs(10));
    Ok(StampedeGuard::new(redis::Client::open(&*duty.redis)?)
        .namespace(&duty.namespace)
        .policy(policy)
        .lease_ttl(LEASE)
        .failure_ttl(Duration::from_millis(100))
        .uncacheable_ttl(Duration::from_secs(2)))
}

/// Checks that nothing of the guard is left: no work, no flight, no task.
async fn leave(guard: StampedeGuard, load: Arc<Load>, tasks: usize) {
    let drained = async { while guard.drain().await > 0 {} };
    if timeout(PATIENCE, drained).await.is_err() {
        tell(&Message::Violation(format!("work is left after {PATIENCE:?}")));
    }
    if !soon(|| guard.in_flight() == 0).await {
        tell(&Message::Violation(format!("{} flights have no end", guard.in_flight())));
    }
    drop((guard, load));
    let alive = || Handle::current().metrics().num_alive_tasks();
    if !soon(|| alive() <= tasks).await {
        tell(&Message::Violation(format!("{} tasks are left", alive() - tasks)));
    }
}

async fn soon(holds: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !holds() && began.elapsed() < PATIENCE {
        sleep(Duration::from_millis(10)).await;
    }
    holds()
}

/// Checks the growth of memory. The first half is warm-up; afterwards memory may exceed its maximum only by what an
/// allocator keeps.
fn grown(memory: &[u64]) -> Option<String> {
    let (first, then) = memory.split_at(memory.len().div_ceil(2));
    let (warm, end) = (first.iter().max()?, then.iter().rev().take(3).min()?);
    (*end > warm + ALLOWANCE).then(|| format!("memory grew from {warm} to {end} KiB"))
}

/// Returns the resident memory in KiB, or 0 if the system does not report it.
pub(crate) fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    resident.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Returns a receiver that becomes `true` when the parent says `end`. The process exits if the parent ends earlier.
///
/// A separate thread reads standard input, because such a read can be neither awaited nor cancelled.
fn orders() -> watch::Receiver<bool> {
    let (order, orders) = watch::channel(false);
    thread::spawn(move || {
        for line in io::stdin().lines() {
            match line.as_deref() {
                Ok("end") => _ = order.send(true),
                _ => exit(1),
            }
        }
        if !*order.borrow() {
            exit(1);
        }
    });
    orders
}

/// Reports every panic, except the deliberate panics of the load.
fn tell_of_panics() {
    panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<&str>() != Some(&load::PANIC) {
            tell(&Message::Violation(format!("a panic: {info}")));
        }
    }));
}

async fn keep_a_lease(duty: &Duty) -> Result<()> {
    let mut connection = redis::Client::open(&*duty.redis)?.get_multiplexed_async_connection().await?;
    let name = format!("{{{}:rsabotage}}:l", duty.namespace);
    let lease = format!("H{}{}0", "x".repeat(16), "0".repeat(16));
    redis::cmd("SET").arg(name).arg(lease).arg("PX").arg(60_000).exec_async(&mut connection).await?;
    Ok(())
}

impl Load {
    fn count(&self) -> Count {
        Count { memory: memory(), ..self.counted() }
    }
}

/// The lease TTL without a heartbeat.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);
/// In KiB.
const ALLOWANCE: u64 = 24 << 10;
