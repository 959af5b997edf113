//! Coalescing: concurrent callers of one key share one fetch.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, herd},
};
use stampede_guard::{
    Error, ErrorKind, FetchContext, FetchOutcome, MemoryStore, Policy, StampedeGuard,
    testing::{FakeRedis, Fault, Gate, Operation},
};
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
    guard.drain().await;
    let report = guard.stats();
    assert_eq!((report.misses, report.misses + report.coalesced + report.hits), (1, 1000), "{report:?}");
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
    guard.drain().await;
    assert_eq!(guard.in_flight(), 0);
}

#[tokio::test]
async fn clones_with_other_settings_share_the_computation() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let clones = [guard.clone(), guard.clone().wait_timeout(SECOND), guard.clone().max_payload(1 << 10)];
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
async fn namespaces_schemas_and_stores_do_not_share_entries() {
    let origin = Origin::new();
    let store = Arc::new(MemoryStore::default());
    let one = StampedeGuard::new(store.clone());
    for guard in
        [one.clone(), one.clone().namespace("other"), one.clone().schema_version(1), StampedeGuard::in_memory()]
    {
        let origin = origin.clone();
        guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer");
    }
    assert_eq!(origin.calls(), 4);
    let unused = never::<usize>;
    assert_eq!(StampedeGuard::new(store).fetch("k", unused).await.expect("a hit"), 1);
}

/// Two engines over one store behave like two processes: they coordinate through the lease, not through a flight.
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

/// Seen to hang without the list of the current task's fetches (`ACTIVE_FETCHES`).
#[tokio::test]
async fn a_fetch_within_a_fetch_of_the_same_key_runs_at_once() {
    let guard = StampedeGuard::in_memory();
    let inner = guard.clone();
    let fetch = async move || inner.fetch("k", async || Ok::<_, Down>(2)).await.map(|inner| inner + 1);
    let answer: i32 = tokio::time::timeout(SECOND, guard.fetch("k", fetch)).await.expect("no waiting").expect("3");
    assert_eq!(answer, 3);
    let values = guard.cache("value");
    let inner = || values.entry("s").fetch_scoped(|| async { Ok::<_, Down>(2) });
    let scoped = values.entry("s").fetch_scoped(inner);
    assert_eq!(tokio::time::timeout(SECOND, scoped).await.expect("no waiting").expect("2"), 2);
}

#[tokio::test]
async fn nested_fetch_through_another_guard_does_not_deadlock() {
    let store = Arc::new(MemoryStore::default());
    let (a, b) = (StampedeGuard::new(store.clone()), StampedeGuard::new(store));
    let outer = a.clone();
    let fetch =
        async move || b.clone().fetch("other", async move || a.fetch("k", async || Ok::<_, Down>(7)).await).await;
    let answer: i32 = tokio::time::timeout(SECOND, outer.fetch("k", fetch)).await.expect("no waiting").expect("7");
    assert_eq!(answer, 7);
}

/// An embedded store in front of another store. The inner guard still caches, although the outer one leads the same
/// key.
#[tokio::test]
async fn near_and_far_guards_cache_independently() {
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
async fn error_of_the_fetch_reaches_every_waiter_and_is_not_stored() {
    let (guard, origin) = (StampedeGuard::in_memory().failure_ttl(Duration::ZERO), Origin::gated());
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
    guard.drain().await;
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("it is up again"), 1);
}

#[tokio::test(start_paused = true)]
async fn failure_marker_rejects_later_callers_until_it_expires() {
    let guard = StampedeGuard::in_memory();
    let down = || guard.fetch("k", async || Err::<u8, _>(Down));
    assert_eq!(down().await.expect_err("down").kind(), ErrorKind::Origin);
    guard.drain().await;
    let error = guard.fetch("k", never::<u8>).await.expect_err("held off");
    assert_eq!(error.kind(), ErrorKind::Origin);
    assert!(error.retry_in().is_some_and(|retry_in| retry_in <= SECOND), "{error:?}");
    tokio::time::sleep(SECOND).await;
    assert_eq!(down().await.expect_err("down").retry_in(), None, "tried again");
    guard.drain().await;
    tokio::time::sleep(SECOND + SECOND / 2).await;
    assert!(down().await.expect_err("down").retry_in().is_some(), "twice as long");
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(5)).await.expect("it is up"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_takes_too_long_is_aborted_and_frees_the_key() {
    let guard = StampedeGuard::in_memory().fetch_timeout(3 * SECOND).failure_ttl(Duration::ZERO);
    let fetch = || guard.fetch("k", async || std::future::pending::<Result<u8, Down>>().await);
    let (a, b) = tokio::join!(fetch(), fetch());
    for error in [a, b].map(|answer| answer.expect_err("aborted")) {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("fetch_timeout"), "{error}");
    }
    guard.drain().await;
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("the key is free"), 1);
}

/// Seen to fail (a second guard fetches as well) with the heartbeat removed from `HeldLease::keep_alive`.
#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_as_long_as_its_fetch_runs() {
    let (store, origin) = (Arc::new(MemoryStore::default()), Origin::new());
    let guards = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)]
        .map(|g| g.lease_ttl(SECOND).wait_timeout(60 * SECOND));
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

/// The fetch spawns a task of its own, so the guard cannot see that the inner call belongs to the outer fetch.
#[tokio::test(start_paused = true)]
async fn hidden_cycle_ends_with_the_wait_timeout() {
    let guard = StampedeGuard::in_memory().wait_timeout(SECOND);
    let inner = guard.clone();
    let fetch = async move || {
        let hidden = tokio::spawn(async move { inner.fetch("k", async || Ok::<_, Down>(1)).await });
        hidden.await.expect("no panic")
    };
    let began = tokio::time::Instant::now();
    let answer: Result<i32, Error> = guard.fetch("k", fetch).await;
    assert!(answer.is_err() && began.elapsed() == SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn fetch_receives_its_deadline_and_an_ascending_fencing_token() {
    let tokens = StampedeGuard::in_memory().cache("token");
    let tokens = futures_util::future::join_all((0..3_u64).map(|i| {
        tokens.entry(i).fetch_with(async |cx: FetchContext<u64>| {
            assert!(cx.stale().is_none() && cx.deadline().is_some());
            Ok::<_, Down>(FetchOutcome::new(cx.fencing_token().expect("it leads")))
        })
    }))
    .await;
    let tokens: Vec<_> = tokens.into_iter().map(|token| token.expect("an answer")).collect();
    assert!(tokens.is_sorted() && tokens[0] < tokens[2], "{tokens:?}");
}

/// The entry is of no use to later callers, so they do not join the flight that fills it. The wait for the lease would
/// take 1000 s. Seen to fail when the fake server notifies no waiter in the process of the holder.
#[tokio::test(start_paused = true)]
async fn caller_waits_for_a_fill_of_its_own_process() {
    let (node, held) = (FakeRedis::new().node(), Gate::closed());
    let guard = node.guard().policy(Policy::fresh_for(Duration::ZERO));
    let guard = guard.lease_ttl(1000 * SECOND).store_timeout(100 * SECOND);
    node.once(Operation::Fill, Fault::Held(held.clone()));
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    held.arrived(1).await;
    let next = tokio::spawn({
        let guard = guard.clone();
        async move { guard.fetch("k", async || Ok::<_, Down>(2)).await }
    });
    tokio::time::sleep(SECOND).await;
    let began = tokio::time::Instant::now();
    held.open();
    assert!(next.await.expect("no panic").is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
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
