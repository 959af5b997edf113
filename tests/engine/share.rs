//! Sharing of a response: with every caller, with current waiters only, or with none.

use crate::{Down, MS, SECOND, support::Origin};
use stampede_guard::{FetchContext, FetchOutcome, StampedeGuard};
use std::time::Duration;

/// Fetches `count:k`.
async fn ask(
    guard: &StampedeGuard,
    origin: &Origin,
    terms: impl Fn(FetchOutcome<usize>) -> FetchOutcome<usize> + Send + Sync + 'static,
) -> usize {
    let origin = origin.clone();
    let fetch = async move |_: FetchContext<usize>| Ok::<_, Down>(terms(FetchOutcome::new(origin.call().await)));
    guard.cache("count").entry("k").fetch_with(fetch).await.expect("an answer")
}

/// Without a hit-for-pass marker, which would release the waiters as well. Seen to fail (callers are released one at a
/// time) when `Shareability::Private` ends the flight as `Abandoned`.
#[tokio::test]
async fn private_response_releases_all_waiters_at_once() {
    let (guard, origin) = (StampedeGuard::in_memory().uncacheable_ttl(Duration::ZERO), Origin::gated());
    // One task polls all callers, so each has joined before the first response.
    let callers = (0..50).map(|_| ask(&guard, &origin, FetchOutcome::private));
    let release = async {
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(50).await; // the other 49 run at once: none returns before the last one arrives
        origin.open();
    };
    let (mut answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    answers.sort_unstable();
    assert_eq!(answers, (1..=50).collect::<Vec<_>>(), "each caller has a response of its own");
}

#[tokio::test]
async fn callers_do_not_wait_after_a_private_response() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    origin.release(1);
    ask(&guard, &origin, FetchOutcome::private).await;
    guard.drain().await;
    let callers = (0..20).map(|_| ask(&guard, &origin, FetchOutcome::private));
    let release = async {
        origin.arrived(21).await;
        origin.open();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    assert_eq!(answers.len(), 20);
    assert_eq!(guard.stats().bypassed, 20);
}

#[tokio::test]
async fn hit_for_pass_marker_is_replaced_by_a_shareable_response() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    for terms in [FetchOutcome::private, FetchOutcome::do_not_store] {
        guard.invalidate("count:k").await.expect("acknowledged");
        let calls = origin.calls();
        assert_eq!(ask(&guard, &origin, terms).await, calls + 1);
        guard.drain().await;
        assert_eq!(ask(&guard, &origin, |fetched| fetched).await, calls + 2);
        guard.drain().await;
        assert_eq!(ask(&guard, &origin, |fetched| fetched).await, calls + 2, "stored in place of the marker");
    }
}

#[tokio::test]
async fn do_not_store_response_is_shared_with_current_waiters() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    for round in 1..=2 {
        let callers = (0..20).map(|_| ask(&guard, &origin, FetchOutcome::do_not_store));
        let release = async {
            origin.arrived(round).await;
            origin.release(1);
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
        assert_eq!(answers, vec![round; 20]);
        guard.drain().await;
    }
}

#[tokio::test]
async fn a_value_over_the_cap_is_answered_and_shared_but_not_stored() {
    let (guard, origin) = (StampedeGuard::in_memory().max_payload(1000), Origin::new());
    let large = || {
        let origin = origin.clone();
        guard.fetch("k", async move || {
            origin.work(5 * MS).await;
            Ok::<_, Down>(vec![7_u8; 1001])
        })
    };
    for _ in 0..2 {
        let (a, b) = tokio::join!(large(), large());
        assert_eq!((a.expect("an answer").len(), b.expect("an answer").len()), (1001, 1001));
        guard.drain().await;
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn hit_for_pass_marker_expires_after_its_ttl() {
    let (guard, origin) = (StampedeGuard::in_memory().uncacheable_ttl(5 * SECOND), Origin::new());
    ask(&guard, &origin, FetchOutcome::private).await;
    guard.drain().await;
    tokio::time::sleep(6 * SECOND).await;
    ask(&guard, &origin, FetchOutcome::private).await;
    assert_eq!(guard.stats().misses, 2, "it led again");
    let never = StampedeGuard::in_memory().uncacheable_ttl(Duration::ZERO);
    for _ in 0..2 {
        ask(&never, &origin, FetchOutcome::private).await;
        never.drain().await;
    }
    assert_eq!(never.stats().misses, 2);
}
