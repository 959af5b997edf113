//! Deadlock detection between fetches that need each other.

use crate::{MS, SECOND};
use futures_util::future::{BoxFuture, join_all};
use stampede_guard::{Error, StampedeGuard};
use tokio::time::{Instant, sleep};

/// Fetches the first key of the chain. Its fetch takes 100 ms and then fetches the rest of the chain, each key nested
/// in the one before.
fn ask(guard: StampedeGuard, chain: &'static [&'static str]) -> BoxFuture<'static, Result<usize, Error>> {
    let (key, rest) = chain.split_first().expect("a key");
    let inner = guard.clone();
    Box::pin(async move {
        guard
            .fetch(*key, async move || {
                sleep(100 * MS).await;
                match rest {
                    [] => Ok(1),
                    rest => ask(inner, rest).await.map(|depth| depth + 1),
                }
            })
            .await
    })
}

/// Runs all chains concurrently and returns the number of cycles that were detected.
async fn together(chains: &[&'static [&'static str]]) -> u64 {
    let guard = StampedeGuard::in_memory();
    let asked = Instant::now();
    for answer in join_all(chains.iter().map(|chain| ask(guard.clone(), chain))).await {
        answer.expect("an answer");
    }
    assert!(asked.elapsed() < SECOND, "a fetch waited for itself: {:?}", asked.elapsed());
    guard.drain().await;
    assert_eq!(guard.in_flight(), 0);
    guard.stats().deadlocks_avoided
}

/// Seen to fail (both wait until the wait timeout) without the wait-for graph.
#[tokio::test(start_paused = true)]
async fn two_fetches_that_need_each_other_do_not_deadlock() {
    assert!(together(&[&["a", "b"], &["b", "a"]]).await >= 1);
}

#[tokio::test(start_paused = true)]
async fn cycle_of_four_keys_is_detected() {
    assert!(together(&[&["a", "b"], &["b", "c"], &["c", "d"], &["d", "a"]]).await >= 1);
}

#[tokio::test(start_paused = true)]
async fn cycle_through_nested_fetches_is_detected() {
    assert!(together(&[&["a", "x", "y", "b"], &["b", "z", "a"]]).await >= 1);
}

#[tokio::test(start_paused = true)]
async fn shared_dependency_is_not_a_cycle() {
    assert_eq!(together(&[&["a", "c", "d"], &["b", "c", "d"], &["c", "d"], &["b", "d"]]).await, 0);
}

#[tokio::test(start_paused = true)]
async fn wait_edges_of_finished_fetches_are_removed() {
    let guard = StampedeGuard::in_memory();
    for chain in [&["a", "b"][..], &["b", "a"], &["a", "b"]] {
        ask(guard.clone(), chain).await.expect("an answer");
        guard.invalidate("a").await.expect("acknowledged");
        guard.invalidate("b").await.expect("acknowledged");
    }
    assert_eq!(guard.stats().deadlocks_avoided, 0);
}
