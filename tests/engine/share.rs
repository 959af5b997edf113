//! Who may have an answer: everybody, those who wait now, nobody else.

use crate::{Down, MS, SECOND, support::Origin};
use stampede_guard::{Fetch, Fetched, StampedeGuard};
use std::time::Duration;

async fn ask(
    guard: &StampedeGuard,
    origin: &Origin,
    terms: impl Fn(Fetched<usize>) -> Fetched<usize> + Send + Sync + 'static,
) -> usize {
    let origin = origin.clone();
    let fetch = async move |_: Fetch<usize>| Ok::<_, Down>(terms(Fetched::new(origin.call().await)));
    guard.fetch_with("k", fetch).await.expect("an answer")
}

/// Without a marker, which would let them go as well. Seen to fail (one at a time) with `Share::Nobody` landing as
/// `Vacant`.
#[tokio::test]
async fn private_answers_release_everybody_at_once() {
    let (guard, origin) = (StampedeGuard::in_memory().pass_for(Duration::ZERO), Origin::gated());
    // All of one task: each has joined before the first one is answered.
    let callers = (0..50).map(|_| ask(&guard, &origin, Fetched::private));
    let release = async {
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(50).await; // all others at once: none is released before the last one has come
        origin.open();
    };
    let (mut answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    answers.sort_unstable();
    assert_eq!(answers, (1..=50).collect::<Vec<_>>(), "each one has its own");
}

#[tokio::test]
async fn after_a_private_answer_nobody_waits_for_a_while() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    origin.release(1);
    ask(&guard, &origin, Fetched::private).await;
    guard.shutdown().await;
    let callers = (0..20).map(|_| ask(&guard, &origin, Fetched::private));
    let release = async {
        origin.arrived(21).await;
        origin.open();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    assert_eq!(answers.len(), 20);
    assert_eq!(guard.report().bypassed, 20);
}

#[tokio::test]
async fn a_marker_ends_when_an_answer_may_be_shared_again() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    for terms in [Fetched::private, Fetched::do_not_store] {
        guard.invalidate("k").await.expect("acknowledged");
        let calls = origin.calls();
        assert_eq!(ask(&guard, &origin, terms).await, calls + 1);
        guard.shutdown().await;
        assert_eq!(ask(&guard, &origin, |fetched| fetched).await, calls + 2);
        guard.shutdown().await;
        assert_eq!(ask(&guard, &origin, |fetched| fetched).await, calls + 2, "stored in the place of the marker");
    }
}

#[tokio::test]
async fn what_is_not_stored_is_shared_with_those_who_wait_now() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    for round in 1..=2 {
        let callers = (0..20).map(|_| ask(&guard, &origin, Fetched::do_not_store));
        let release = async {
            origin.arrived(round).await;
            origin.release(1);
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
        assert_eq!(answers, vec![round; 20]);
        guard.shutdown().await;
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
        guard.shutdown().await;
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_marker_is_forgotten_after_its_time() {
    let (guard, origin) = (StampedeGuard::in_memory().pass_for(5 * SECOND), Origin::new());
    ask(&guard, &origin, Fetched::private).await;
    guard.shutdown().await;
    tokio::time::sleep(6 * SECOND).await;
    ask(&guard, &origin, Fetched::private).await;
    assert_eq!(guard.report().filled, 2, "it led again");
    let never = StampedeGuard::in_memory().pass_for(Duration::ZERO);
    for _ in 0..2 {
        ask(&never, &origin, Fetched::private).await;
        never.shutdown().await;
    }
    assert_eq!(never.report().filled, 2);
}
