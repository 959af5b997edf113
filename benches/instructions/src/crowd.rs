//! The paths of 64 concurrent callers over Redis, in one thread.

use crate::paths::{over_redis, row};
use stampede_guard::StampedeGuard;
use std::{
    future::{Future, poll_fn},
    hint::black_box,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{runtime::Runtime, task::JoinSet};

pub(crate) const HIT: &str = "redis hit, 64 callers";
pub(crate) const MISS: &str = "redis miss, 64 callers";
/// How often the tasks of the callers poll their fetches. Counted without callgrind.
pub(crate) const POLLS: &str = "polls per 100 redis hits, 64 callers";

/// Measures hits, each caller on a key of its own.
pub(crate) async fn hit(operations: u32, url: &str) {
    let guard = warm(url).await;
    run(WARM_UP + operations, fetch(&guard)).await;
    assert_hits(&guard, WARM_UP + operations);
}

/// Measures misses, each on a new key, including their fills.
pub(crate) async fn miss(operations: u32, url: &str) {
    let guard = over_redis(url).await;
    let fetch = fetch(&guard);
    run(WARM_UP + operations, move |caller, n| fetch(1_000_000 + n * CALLERS + caller, n)).await;
    guard.drain().await;
    let stats = guard.stats();
    assert_eq!(stats.misses, u64::from(WARM_UP + operations), "{stats:?}");
}

/// Counts the polls of the fetches of 100 hits.
pub(crate) fn polls_of_100_hits(runtime: &Runtime, url: &str) -> u64 {
    runtime.block_on(async {
        let guard = warm(url).await;
        let (fetch, polls) = (fetch(&guard), Arc::new(AtomicU64::new(0)));
        let counted = polls.clone();
        run(WARM_UP + FEW + MORE, move |caller, n| {
            let (fetch, polls) = (fetch(caller, n), counted.clone());
            async move {
                let mut fetch = pin!(fetch);
                poll_fn(|cx| {
                    polls.fetch_add(1, Relaxed);
                    fetch.as_mut().poll(cx)
                })
                .await;
            }
        })
        .await;
        assert_hits(&guard, WARM_UP + FEW + MORE);
        (polls.load(Relaxed) * 100) / u64::from(WARM_UP + FEW + MORE)
    })
}

/// Returns a guard over a Redis that has an entry for each caller.
async fn warm(url: &str) -> StampedeGuard {
    let guard = over_redis(url).await;
    run(CALLERS, fetch(&guard)).await;
    guard.drain().await;
    guard
}

/// Returns the operation that fetches the key with the number of its caller.
fn fetch(guard: &StampedeGuard) -> impl Fn(u32, u32) -> Operation + Clone + Send + use<> {
    let guard = guard.clone();
    move |caller, _| {
        let guard = guard.clone();
        Box::pin(async move { drop(black_box(guard.fetch(u64::from(caller), row).await)) })
    }
}

/// Runs this number of operations in one task per caller. An operation gets the number of its caller and its own.
async fn run<F>(operations: u32, operation: impl Fn(u32, u32) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let operation = operation.clone();
        callers.spawn(async move {
            for n in 0..operations / CALLERS {
                operation(caller, n).await;
            }
        });
    }
    callers.join_all().await;
}

fn assert_hits(guard: &StampedeGuard, hits: u32) {
    let stats = guard.stats();
    assert_eq!(stats.hits, u64::from(hits), "{stats:?}");
}

type Operation = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

const CALLERS: u32 = 64;
/// Operations of the shorter run, whose cost cancels out. As [`MORE`], a multiple of the callers.
pub(crate) const FEW: u32 = 10 * CALLERS;
/// Additional operations of the longer run, which are counted.
pub(crate) const MORE: u32 = 30 * CALLERS;
const WARM_UP: u32 = 4 * CALLERS;
