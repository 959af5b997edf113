//! One computation for everybody who asks meanwhile.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, herd},
};
use stampede_guard::{Error, ErrorKind, Fetch, Fetched, MemoryStore, StampedeGuard};
use std::{sync::Arc, time::Duration};

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_on_a_cold_key_computes_once() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let callers = herd(1000, |_| {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move { guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer") }
    });
    let release = async {
        origin.arrived(1).await;
        origin.release(1);
    };
    let (answers, ()) = tokio::join!(callers, release);
    assert_eq!(answers, vec![1; 1000]);
    assert_eq!(origin.calls(), 1);
    guard.shutdown().await;
    let report = guard.report();
    assert_eq!((report.filled, report.filled + report.coalesced + report.hits), (1, 1000), "{report:?}");
    assert_eq!(guard.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_keys_are_computed_once_each() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let answers = herd(200 * 20, |i| {
        let (guard, origin, key) = (guard.clone(), origin.clone(), (i % 200) as u64);
        async move {
            let fetch = async move || {
                origin.work(20 * MS).await;
                Ok::<_, Down>(key)
            };
            guard.fetch(key, fetch).await.expect("an answer") == key
        }
    })
    .await;
    assert!(answers.into_iter().all(|right| right));
    assert_eq!(origin.calls(), 200);
    guard.shutdown().await;
    assert_eq!(guard.in_flight(), 0);
}

#[tokio::test]
async fn clones_with_other_settings_share_the_computation() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let clones = [guard.clone(), guard.clone().wait(SECOND), guard.clone().max_payload(1 << 10)];
    let callers = clones.map(|guard| {
        let origin = origin.clone();
        async move { guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer") }
    });
    let release = async {
        origin.arrived(1).await;
        origin.open();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    assert_eq!(answers, [1, 1, 1]);
}

#[tokio::test]
async fn namespaces_and_guards_keep_apart() {
    let origin = Origin::new();
    let store = Arc::new(MemoryStore::default());
    let one = StampedeGuard::new(store.clone());
    for guard in [one.clone(), one.clone().namespace("other"), one.clone().schema(1), StampedeGuard::in_memory()] {
        let origin = origin.clone();
        guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer");
    }
    assert_eq!(origin.calls(), 4);
    let unused = never::<usize>;
    assert_eq!(StampedeGuard::new(store).fetch("k", unused).await.expect("a hit"), 1);
}

/// Two engines over one store are as two processes: the lease decides, not the flight.
#[tokio::test(flavor = "multi_thread")]
async fn two_guards_over_one_store_compute_once() {
    let (store, origin) = (Arc::new(MemoryStore::default()), Origin::gated());
    let guards = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)];
    let callers = herd(200, |i| {
        let (guard, origin) = (guards[i % 2].clone(), origin.clone());
        async move { guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer") }
    });
    let release = async {
        origin.arrived(1).await;
        origin.open();
    };
    let (answers, ()) = tokio::join!(callers, release);
    assert_eq!(answers, vec![1; 200]);
}

/// Seen to hang with the list of led keys taken out of `Caller::answer`.
#[tokio::test]
async fn a_fetch_within_a_fetch_of_the_same_key_runs_at_once() {
    let guard = StampedeGuard::in_memory();
    let inner = guard.clone();
    let fetch = async move || inner.fetch("k", async || Ok::<_, Down>(2)).await.map(|inner| inner + 1);
    let answer: i32 = tokio::time::timeout(SECOND, guard.fetch("k", fetch)).await.expect("no waiting").expect("3");
    assert_eq!(answer, 3);
    let scoped = guard.fetch_scoped("s", || async { guard.fetch_scoped("s", || async { Ok::<_, Down>(2) }).await });
    assert_eq!(tokio::time::timeout(SECOND, scoped).await.expect("no waiting").expect("2"), 2);
}

#[tokio::test]
async fn neither_another_guard_nor_a_detour_in_between_makes_it_wait_for_itself() {
    let store = Arc::new(MemoryStore::default());
    let (a, b) = (StampedeGuard::new(store.clone()), StampedeGuard::new(store));
    let outer = a.clone();
    let fetch =
        async move || b.clone().fetch("other", async move || a.fetch("k", async || Ok::<_, Down>(7)).await).await;
    let answer: i32 = tokio::time::timeout(SECOND, outer.fetch("k", fetch)).await.expect("no waiting").expect("7");
    assert_eq!(answer, 7);
}

/// An embedded store in front of another one: the inner guard is no less of a guard.
#[tokio::test]
async fn two_tiers_are_two_caches() {
    let [near, far] = [StampedeGuard::in_memory(), StampedeGuard::in_memory()];
    let origin = Origin::new();
    for _ in 0..3 {
        let (far, origin) = (far.clone(), origin.clone());
        let fetch = async move || far.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await;
        assert_eq!(near.fetch("k", fetch).await.expect("an answer"), 1);
        near.invalidate("k").await.expect("acknowledged");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn an_error_reaches_everybody_who_waited_and_is_not_stored() {
    let (guard, origin) = (StampedeGuard::in_memory().tombstone(Duration::ZERO), Origin::gated());
    let callers = herd(50, |_| {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.call().await;
                Err::<u8, _>(Down)
            };
            guard.fetch("k", fetch).await.expect_err("it is down")
        }
    });
    let release = async {
        origin.arrived(1).await;
        origin.open();
    };
    let (errors, ()) = tokio::join!(callers, release);
    for error in errors {
        assert_eq!((error.kind(), error.origin::<Down>()), (ErrorKind::Origin, Some(&Down)));
        assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<Down>()));
    }
    assert_eq!(origin.calls(), 1);
    guard.shutdown().await;
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("it is up again"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tombstone_holds_off_those_who_come_later() {
    let guard = StampedeGuard::in_memory();
    let down = || guard.fetch("k", async || Err::<u8, _>(Down));
    assert_eq!(down().await.expect_err("down").kind(), ErrorKind::Origin);
    guard.shutdown().await;
    let error = guard.fetch("k", never::<u8>).await.expect_err("held off");
    assert_eq!((error.kind(), error.code()), (ErrorKind::FailedElsewhere, 0));
    assert!(error.retry_in().is_some_and(|retry_in| retry_in <= SECOND), "{error:?}");
    tokio::time::sleep(SECOND).await;
    assert_eq!(down().await.expect_err("down").kind(), ErrorKind::Origin, "tried again");
    guard.shutdown().await;
    tokio::time::sleep(SECOND + SECOND / 2).await;
    assert_eq!(down().await.expect_err("down").kind(), ErrorKind::FailedElsewhere, "twice as long");
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(5)).await.expect("it is up"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_takes_too_long_is_aborted_and_frees_the_key() {
    let guard = StampedeGuard::in_memory().max_fetch(3 * SECOND).tombstone(Duration::ZERO);
    let fetch = || guard.fetch("k", async || std::future::pending::<Result<u8, Down>>().await);
    let (a, b) = tokio::join!(fetch(), fetch());
    for error in [a, b].map(|answer| answer.expect_err("aborted")) {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("max_fetch"), "{error}");
    }
    guard.shutdown().await;
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("the key is free"), 1);
}

/// Seen to fail with the heartbeat taken out of `Leading::keep`: a second guard computes as well.
#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_as_long_as_its_fetch_runs() {
    let (store, origin) = (Arc::new(MemoryStore::default()), Origin::new());
    let guards =
        [StampedeGuard::new(store.clone()), StampedeGuard::new(store)].map(|g| g.lease(SECOND).wait(60 * SECOND));
    let callers = guards.each_ref().map(|guard| {
        let origin = origin.clone();
        guard.fetch("k", async move || {
            origin.work(20 * SECOND).await;
            Ok::<_, Down>(1)
        })
    });
    for answer in futures_util::future::join_all(callers).await {
        assert_eq!(answer.expect("an answer"), 1);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_the_wait_budget_a_process_computes_for_itself_once() {
    let (store, origin) = (Arc::new(MemoryStore::default()), Origin::new());
    let slow = StampedeGuard::new(store.clone());
    let stuck = slow.fetch("k", async || {
        tokio::time::sleep(50 * SECOND).await;
        Ok::<_, Down>(0)
    });
    let impatient = StampedeGuard::new(store).wait(2 * SECOND);
    let others = async {
        tokio::time::sleep(MS).await;
        let callers = (0..20).map(|_| {
            let origin = origin.clone();
            impatient.fetch("k", async move || {
                origin.work(5 * SECOND).await;
                Ok::<_, Down>(1)
            })
        });
        futures_util::future::join_all(callers).await
    };
    let (stuck, others) = tokio::join!(stuck, others);
    assert_eq!(stuck.expect("an answer"), 0);
    assert!(others.into_iter().all(|answer| answer.is_ok_and(|value| value == 1)));
    assert_eq!(origin.calls(), 1);
    let unused = never::<i32>;
    assert_eq!(slow.fetch("k", unused).await.expect("a hit"), 0, "what was computed locally is not stored");
    assert!(impatient.report().waits_given_up > 0);
}

/// As within a `spawn` of the user's own, which hides whom the task computes for.
#[tokio::test(start_paused = true)]
async fn a_hidden_cycle_ends_with_the_wait_budget() {
    let guard = StampedeGuard::in_memory().wait(SECOND);
    let inner = guard.clone();
    let fetch = async move || {
        let hidden = tokio::spawn(async move { inner.fetch("k", async || Ok::<_, Down>(1)).await });
        hidden.await.expect("no panic")
    };
    let answer: Result<i32, Error> = guard.fetch("k", fetch).await;
    assert_eq!(answer.expect("an answer"), 1);
}

#[tokio::test]
async fn a_fetcher_sees_what_it_may_know() {
    let guard = StampedeGuard::in_memory();
    let tokens = futures_util::future::join_all((0..3_u64).map(|i| {
        guard.fetch_with(i, async |cx: Fetch<u64>| {
            assert!(cx.stale().is_none() && cx.deadline().is_some());
            Ok::<_, Down>(Fetched::new(cx.fencing_token().expect("it leads")))
        })
    }))
    .await;
    let tokens: Vec<_> = tokens.into_iter().map(|token| token.expect("an answer")).collect();
    assert!(tokens.is_sorted() && tokens[0] < tokens[2], "{tokens:?}");
}

#[test]
fn a_guard_outlives_the_runtimes_it_is_used_in() {
    let guard = StampedeGuard::in_memory();
    for expected in [1, 1] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let answer = runtime.block_on(guard.fetch("k", async || Ok::<_, Down>(1)));
        assert_eq!(answer.expect("an answer"), expected);
    }
}
