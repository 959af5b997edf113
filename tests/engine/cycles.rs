//! Computations that need each other.

use crate::{MS, SECOND};
use futures_util::future::{BoxFuture, join_all};
use stampede_guard::{Error, StampedeGuard};
use tokio::time::{Instant, sleep};

/// A key whose computation takes a moment, then asks for those behind it, one within the other.
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

/// Asks for all of these at once; how often a cycle was seen.
async fn together(chains: &[&'static [&'static str]]) -> u64 {
    let guard = StampedeGuard::in_memory();
    let asked = Instant::now();
    for answer in join_all(chains.iter().map(|chain| ask(guard.clone(), chain))).await {
        answer.expect("an answer");
    }
    assert!(asked.elapsed() < SECOND, "nobody waits for his own end: {:?}", asked.elapsed());
    guard.shutdown().await;
    assert_eq!(guard.in_flight(), 0);
    guard.report().cycles
}

/// Seen to fail (they wait for the budget) without the look at who waits for whom.
#[tokio::test(start_paused = true)]
async fn two_computations_that_need_each_other_are_not_stuck() {
    assert!(together(&[&["a", "b"], &["b", "a"]]).await >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_cycle_of_many_is_seen() {
    assert!(together(&[&["a", "b"], &["b", "c"], &["c", "d"], &["d", "a"]]).await >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_cycle_by_way_of_an_inner_computation_is_seen() {
    assert!(together(&[&["a", "x", "y", "b"], &["b", "z", "a"]]).await >= 1);
}

#[tokio::test(start_paused = true)]
async fn computations_that_share_a_part_are_no_cycle() {
    assert_eq!(together(&[&["a", "c", "d"], &["b", "c", "d"], &["c", "d"], &["b", "d"]]).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_it_asked_before_is_forgotten() {
    let guard = StampedeGuard::in_memory();
    for chain in [&["a", "b"][..], &["b", "a"], &["a", "b"]] {
        ask(guard.clone(), chain).await.expect("an answer");
        guard.invalidate("a").await.expect("acknowledged");
        guard.invalidate("b").await.expect("acknowledged");
    }
    assert_eq!(guard.report().cycles, 0);
}
