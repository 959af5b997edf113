//! `put`: an invalidation, a lease and a fill.

use crate::{Down, MS, SECOND, never, support::Origin};
use stampede_guard::{
    ErrorKind, FetchOutcome, MemoryStore, StampedeGuard,
    testing::{
        FakeRedis, Fault, Gate,
        Operation::{Fill, GetOrLease, Invalidate},
    },
};

/// Returns guards over a store in this process, and over one of a fleet.
fn guards() -> [StampedeGuard; 2] {
    [StampedeGuard::in_memory(), FakeRedis::new().node().guard()]
}

#[tokio::test]
async fn put_value_is_served_and_replaces_the_last_one() {
    for guard in guards() {
        let users = guard.cache::<u32>("user");
        users.fetch(1, async || Ok::<_, Down>(1)).await.expect("a value");
        for value in 2..5 {
            users.put(1, value).await.expect("acknowledged");
            assert_eq!(users.get(1).await.expect("an answer"), Some(value));
            assert_eq!(users.fetch(1, never).await.expect("a hit"), value);
        }
        let brief = FetchOutcome::new(5).fresh_for(SECOND);
        guard.clone().bypass(true).cache::<u32>("user").put(1, brief).await.expect("acknowledged");
        assert_eq!(users.get(1).await.expect("an answer"), Some(5), "with a bypass, too");
        assert_eq!(users.put("", 1).await.expect_err("refused").kind(), ErrorKind::InvalidKey);
    }
}

#[tokio::test]
async fn put_refuses_the_fill_of_a_fetch_that_began_before() {
    for guard in guards() {
        let (users, origin) = (guard.cache::<usize>("user"), Origin::gated());
        let fetch = tokio::spawn({
            let (users, origin) = (users.clone(), origin.clone());
            async move { users.fetch(1, async move || Ok::<_, Down>(origin.call().await)).await }
        });
        origin.arrived(1).await;
        users.put(1, 70).await.expect("acknowledged");
        assert_eq!(users.fetch(1, never).await.expect("the value of the put"), 70);
        origin.open();
        assert_eq!(fetch.await.expect("no panic").expect("a value"), 1, "its caller asked before");
        guard.drain().await;
        assert_eq!(users.get(1).await.expect("an answer"), Some(70));
    }
}

/// Seen to fail (`Ok`, and the old value is there) when such an outcome was ignored.
#[tokio::test]
async fn put_of_what_is_not_to_be_stored_is_a_typed_error() {
    let small = StampedeGuard::new(MemoryStore::with_max_bytes(4096));
    let large = vec![7_u8; 5000];
    let guards = guards().into_iter().chain([small]).map(|guard| guard.max_payload(10_000));
    for guard in guards.flat_map(|guard| [guard.clone(), guard.bypass(true)]) {
        let users = guard.cache::<Vec<u8>>("user");
        let outcomes = [
            FetchOutcome::new(vec![1]).private(),
            FetchOutcome::new(vec![1]).do_not_store(),
            FetchOutcome::new(vec![1; 20_000]),
        ];
        for outcome in outcomes {
            users.put(1, vec![0]).await.expect("acknowledged");
            assert_eq!(users.put(1, outcome).await.expect_err("refused").kind(), ErrorKind::Uncacheable);
            assert_eq!(users.get(1).await.expect("an answer"), None, "the key is invalidated");
        }
    }
    let users = StampedeGuard::new(MemoryStore::with_max_bytes(4096)).cache::<Vec<u8>>("user");
    users.put(1, vec![0]).await.expect("acknowledged");
    assert_eq!(users.put(1, large).await.expect_err("no room").kind(), ErrorKind::Uncacheable);
    assert_eq!(users.get(1).await.expect("an answer"), None, "the key is invalidated");
}

/// A put that is sent again could replace a later value.
#[tokio::test(start_paused = true)]
async fn put_that_is_not_acknowledged_leaves_a_pending_invalidation() {
    for fault in [Fault::Fails, Fault::Hangs, Fault::RequestDelayed(30 * SECOND)] {
        let server = FakeRedis::new();
        let (node, other) = (server.node(), server.node().guard().cache::<u32>("user"));
        let guard = node.guard();
        let users = guard.cache::<u32>("user");
        users.put(1, 1).await.expect("acknowledged");
        node.always(Invalidate, fault.clone());
        assert_eq!(users.put(1, 2).await.expect_err("not acknowledged").kind(), ErrorKind::Store, "{fault:?}");
        assert_eq!(users.get(1).await.expect("an answer"), None, "{fault:?}");
        assert!(guard.health().pending_invalidations > 0, "{fault:?}");
        node.heal();
        assert_eq!(guard.drain_within(60 * SECOND).await, 0);
        assert_eq!(other.get(1).await.expect("an answer"), None, "it is invalidated, and not put: {fault:?}");
        other.put(1, 3).await.expect("acknowledged");
        tokio::time::sleep(60 * SECOND).await;
        let late = other.get(1).await.expect("an answer");
        assert!(late != Some(1) && late != Some(2), "{late:?} after {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn put_without_an_answer_to_its_fill_drops_the_old_value() {
    for fault in [Fault::Fails, Fault::RequestLost, Fault::RequestDelayed(30 * SECOND)] {
        let server = FakeRedis::new();
        let (node, other) = (server.node(), server.node().guard().cache::<u32>("user"));
        let guard = node.guard();
        let users = guard.cache::<u32>("user");
        users.put(1, 1).await.expect("acknowledged");
        node.always(Fill, fault.clone());
        assert_eq!(users.put(1, 2).await.expect_err("not acknowledged").kind(), ErrorKind::Store, "{fault:?}");
        assert_eq!(other.get(1).await.expect("an answer"), None, "{fault:?}");
        other.put(1, 3).await.expect("the lease of the first one is gone");
        tokio::time::sleep(60 * SECOND).await;
        assert_ne!(other.get(1).await.expect("an answer"), Some(2), "a late fill is refused: {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn put_whose_fill_is_refused_is_done() {
    let server = FakeRedis::new();
    let (node, gate) = (server.node(), Gate::closed());
    let users = node.guard().cache::<u32>("user");
    node.once(Fill, Fault::Held(gate.clone()));
    let put = tokio::spawn({
        let users = users.clone();
        async move { users.put(1, 1).await }
    });
    while node.asked(Fill) == 0 {
        tokio::time::sleep(MS).await;
    }
    server.invalidate(("user", 1_u32));
    gate.open();
    put.await.expect("no panic").expect("the invalidation came later, and counts");
    assert_eq!(users.get(1).await.expect("an answer"), None);
}

/// Seen to fail (a fetch) when its process takes the lease of the put for an orphan, and releases it.
#[tokio::test(start_paused = true)]
async fn fetch_waits_for_a_put_of_its_process() {
    let (node, gate) = (FakeRedis::new().node(), Gate::closed());
    let guard = node.guard();
    let users = guard.cache::<u32>("user");
    node.once(Fill, Fault::Held(gate.clone()));
    let put = tokio::spawn({
        let users = users.clone();
        async move { users.put(1, 7).await }
    });
    while node.asked(Fill) == 0 {
        tokio::time::sleep(MS).await;
    }
    let before = node.asked(GetOrLease);
    let fetch = tokio::spawn({
        let users = users.clone();
        async move { users.fetch(1, never).await }
    });
    while node.asked(GetOrLease) == before {
        tokio::time::sleep(MS).await;
    }
    gate.open();
    put.await.expect("no panic").expect("acknowledged");
    assert_eq!(fetch.await.expect("no panic").expect("the value of the put"), 7);
}

#[tokio::test]
async fn put_goes_on_when_its_caller_is_dropped() {
    use futures_util::FutureExt;
    let guard = FakeRedis::new().node().guard();
    let users = guard.cache::<u32>("user");
    users.put(1, 1).await.expect("acknowledged");
    assert!(Box::pin(users.put(1, 2)).as_mut().now_or_never().is_none());
    guard.drain().await;
    assert_eq!(users.get(1).await.expect("an answer"), Some(2));
}
