//! A view of a guard: keys, options of one call, what `get` begins, and errors.

use crate::{Down, MS, SECOND, never, support::Origin};
use futures_util::{FutureExt, future::join_all};
use stampede_guard::{
    CacheStatus, ErrorKind, FetchContext, FetchOutcome, Policy, StampedeGuard, StoreFailure,
    testing::{
        FakeRedis, Fault,
        Operation::{Get, GetOrLease, Invalidate},
    },
};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn empty_key_or_name_is_a_typed_error_and_calls_nothing() {
    let guard = StampedeGuard::in_memory();
    let (named, nameless) = (guard.cache::<u32>("n"), guard.cache::<u32>(""));
    let errors = [
        guard.fetch("", never::<u32>).await.map(drop),
        guard.invalidate("").await,
        named.fetch("", never).await.map(drop),
        named.get("").await.map(drop),
        named.entry("").fetch_scoped(never).await.map(drop),
        named.entry("").answer(async |_| never::<FetchOutcome<u32>>().await).await.map(drop),
        named.invalidate("").await,
        named.invalidate_many(["a", ""]).await,
        nameless.fetch("k", never).await.map(drop),
        nameless.get("k").await.map(drop),
        nameless.invalidate("k").await,
    ];
    for (at, error) in errors.into_iter().enumerate() {
        assert_eq!(error.expect_err("refused").kind(), ErrorKind::InvalidKey, "{at}");
    }
}

#[tokio::test]
async fn concurrent_callers_of_a_cache_share_one_fetch() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let users = guard.cache::<usize>("user");
    let callers = (0..100).map(|n| {
        let (users, origin) = (users.clone(), origin.clone());
        let load = async move || Ok::<_, Down>(origin.call().await);
        async move {
            match n % 3 {
                0 => users.fetch(("acme", 7), load).await.expect("a value"),
                1 => *users.entry("acme:7").fetch_arc(load).await.expect("a value"),
                _ => users.entry(("acme", 7)).fetch_scoped(load).await.expect("a value"),
            }
        }
    });
    let release = async {
        origin.arrived(1).await;
        origin.open();
    };
    let (values, ()) = tokio::join!(join_all(callers), release);
    assert_eq!((values, origin.calls(), guard.stats().misses, guard.stats().coalesced), (vec![1; 100], 1, 1, 99));
}

/// Seen to fail (the call waits for the fetch) without the deadline of the call.
#[tokio::test(start_paused = true)]
async fn timeout_of_a_call_ends_its_wait_only() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let users = guard.cache::<usize>("user");
    let load = || {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.call().await)
    };
    let (began, brief) = (Instant::now(), 200 * MS);
    let hurried = [
        users.entry(1).timeout(brief),
        users.entry(1).deadline((began + brief).into()).timeout(10 * SECOND),
        users.entry(1).timeout(brief).deadline((began + 10 * SECOND).into()),
    ];
    let patient = users.fetch(1, load());
    let hurried = join_all(hurried.map(|call| {
        let load = load();
        async move { (call.fetch(load).await.expect_err("too late").kind(), began.elapsed()) }
    }));
    let release = async {
        tokio::time::sleep(SECOND).await;
        origin.open();
    };
    let (patient, hurried, ()) = tokio::join!(patient, hurried, release);
    assert_eq!((patient.expect("a value"), origin.calls()), (1, 1));
    for (kind, after) in hurried {
        assert!(kind == ErrorKind::Overloaded && after >= brief && after < brief + 10 * MS, "{kind:?} after {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn get_serves_what_the_policy_serves_and_begins_nothing() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    for guard in [server.node().guard(), StampedeGuard::in_memory()] {
        let policy = Policy::fresh_for(10 * SECOND).jitter(0.0).stale_while_revalidate(5 * SECOND);
        let users = guard.cache::<usize>("user").policy(policy.stale_if_error(60 * SECOND));
        let load = async |_: FetchContext<usize>| Ok::<_, Down>(FetchOutcome::new(7));
        origin.call().await;
        assert_eq!(users.entry(1).answer(load).await.expect("a value").status(), CacheStatus::Miss);
        guard.drain().await;
        for (seconds, expected) in [(9, Some(7)), (5, Some(7)), (2, None)] {
            tokio::time::sleep(seconds * SECOND).await;
            assert_eq!(users.get(1).await.expect("an answer"), expected);
            assert_eq!((guard.in_flight(), server.leases()), (0, 0));
        }
        let stats = guard.stats();
        assert_eq!((stats.hits, stats.stale_hits, stats.misses), (1, 1, 1), "{stats:?}");
        let failed = users.entry(1).answer(async |_| never::<FetchOutcome<usize>>().await).await;
        let stale = failed.expect("stale on error");
        assert_eq!(
            (*stale, stale.status(), stale.age(), stale.fresh_for()),
            (7, CacheStatus::Stale, 16 * SECOND, Duration::ZERO)
        );
    }
}

/// Seen to fail (`Ok(None)`) when a store that is down was an empty one for each guard.
#[tokio::test(start_paused = true)]
async fn get_without_the_store_fails_only_if_the_guard_fails_closed() {
    let node = FakeRedis::new().node();
    let open = node.guard().cache::<u32>("user");
    let closed = node.guard().on_store_failure(StoreFailure::FailClosed).cache::<u32>("user");
    for operation in [Get, GetOrLease] {
        node.always(operation, Fault::Hangs);
    }
    assert_eq!(open.get(1).await.expect("an answer"), None);
    let error = closed.get(1).await.expect_err("the store is down");
    assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Store, Some(SECOND)));
    assert_eq!(open.fetch(1, async || Ok::<_, Down>(7)).await.expect("the origin answers"), 7);
    assert_eq!(open.get(1).await.expect("an answer"), Some(7), "from the outage cache");
    assert_eq!(node.asked(GetOrLease), 0);
}

/// Seen to fail (`Ok`) when one acknowledgement was enough.
#[tokio::test(start_paused = true)]
async fn invalidate_many_fails_unless_all_are_acknowledged() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let users = guard.cache::<u32>("user");
    for id in 0..3 {
        users.fetch(id, async move || Ok::<_, Down>(id)).await.expect("a value");
    }
    guard.drain().await;
    node.once(Invalidate, Fault::Hangs);
    let error = users.invalidate_many(0..3).await.expect_err("one is not acknowledged");
    assert_eq!(error.kind(), ErrorKind::Store);
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    for id in 0..3 {
        assert_eq!(users.get(id).await.expect("an answer"), None, "it is sent again until it is acknowledged");
    }
}

/// Seen to fail (the 257th key is still there) when the invalidations were a part of the caller's future.
#[tokio::test]
async fn invalidate_many_goes_on_when_its_caller_is_dropped() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let users = guard.cache::<u32>("user");
    for id in 0..300 {
        users.fetch(id, async move || Ok::<_, Down>(id)).await.expect("a value");
    }
    guard.drain().await;
    assert!(Box::pin(users.invalidate_many(0..300)).as_mut().now_or_never().is_none());
    guard.drain().await;
    for id in 0..300 {
        assert_eq!(users.get(id).await.expect("an answer"), None, "{id}");
    }
}

/// The store does not answer when the caller leaves, and the runtime of its task ends. Seen to fail (no
/// key is pending, and the old values are answered) when a key was pending only once it was sent.
#[test]
fn invalidate_many_makes_all_keys_pending_at_once() {
    let (server, ids) = (FakeRedis::new(), 0..300_u32);
    let node = server.node();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = node.guard();
    let users = guard.cache::<u32>("user");
    runtime().block_on(async {
        for id in ids.clone() {
            users.fetch(id, async move || Ok::<_, Down>(id)).await.expect("a value");
        }
        guard.drain().await;
        node.always(Invalidate, Fault::Hangs);
        assert!(Box::pin(users.invalidate_many(ids.clone())).as_mut().now_or_never().is_none());
        assert_eq!(guard.health().pending_invalidations, ids.len());
    });
    node.heal();
    runtime().block_on(async {
        for id in ids.rev() {
            assert_eq!(users.get(id).await.expect("an answer"), None, "{id}");
        }
    });
}
