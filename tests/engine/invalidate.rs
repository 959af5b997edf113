//! Invalidation: after it, no caller gets a value whose fetch began before it.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, eventually, herd},
};
use stampede_guard::{
    ErrorKind, MemoryStore, Policy, StampedeGuard, StoreFailure,
    testing::{
        FakeRedis, Fault, Gate, Node,
        Operation::{Fill, Get, GetOrLease, Invalidate},
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// A node that receives no messages, as when all wake-ups are lost.
fn deaf(server: &FakeRedis) -> Node {
    let node = server.node();
    node.lose_wakes();
    node
}

/// Seen to fail (the next caller joins the old flight) when `Resource::invalidate` leaves the flights in the table.
#[tokio::test]
async fn fetch_begun_before_an_invalidation_is_not_joined_or_stored() {
    let guard = deaf(&FakeRedis::new()).guard();
    invalidated_in_flight(&guard, &guard).await;
}

/// Seen to fail (the next caller joins the old flight) when flights are forgotten in the layout of the invalidation
/// only.
#[tokio::test]
async fn invalidation_in_another_layout_detaches_the_flight() {
    let guard = deaf(&FakeRedis::new()).guard();
    invalidated_in_flight(&guard, &guard.clone().schema_version(5000)).await;
}

/// Invalidates through `invalidating` while `guard` fetches.
async fn invalidated_in_flight(guard: &StampedeGuard, invalidating: &StampedeGuard) {
    let origin = Origin::gated();
    let ask = || {
        let origin = origin.clone();
        guard.fetch("k", async move || Ok::<_, Down>(origin.call().await))
    };
    let before = async {
        let answer = ask().await;
        answer.expect("an answer")
    };
    let after = async {
        origin.arrived(1).await;
        invalidating.invalidate("k").await.expect("acknowledged");
        let next = async {
            origin.arrived(2).await;
            origin.open();
        };
        tokio::join!(ask(), next).0.expect("an answer")
    };
    let (before, after) = tokio::join!(before, after);
    assert_eq!(
        {
            let mut both = [before, after];
            both.sort_unstable();
            both
        },
        [1, 2]
    );
    guard.drain().await;
    assert_eq!(ask().await.expect("a hit"), after, "the late fill was refused");
    assert_eq!(guard.stats().fenced, 1);
}

/// The invalidation comes from another guard over the same store, as from another process. Seen to fail when the leader
/// does not listen during the fill.
#[tokio::test]
async fn flight_that_is_filling_is_not_joined_after_invalidation() {
    let (server, gate) = (FakeRedis::new(), Gate::closed());
    let (node, far) = (server.node(), server.node().guard());
    node.once(Fill, Fault::Held(gate.clone()));
    let near = node.guard().store_timeout(100 * SECOND);
    assert_eq!(near.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    gate.arrived(1).await;
    far.invalidate("k").await.expect("acknowledged");
    eventually("the flight leaves the table", async || near.in_flight() == 0).await;
    assert_eq!(near.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
    gate.open();
    near.drain().await;
    assert_eq!(near.stats().fenced, 1);
}

/// Seen to fail with `seen_alive` ignored, and when stale-if-error is served before `release` has answered.
#[tokio::test(start_paused = true)]
async fn stale_if_error_does_not_serve_an_invalidated_value() {
    let policy = Policy::fresh_for(SECOND).stale_if_error(100 * SECOND).jitter(0.0);
    let (guard, origin) = (StampedeGuard::in_memory().policy(policy).failure_ttl(Duration::ZERO), Origin::gated());
    guard.fetch("k", async || Ok::<_, Down>(0)).await.expect("an answer");
    tokio::time::sleep(2 * SECOND).await;
    let failing = || {
        let origin = origin.clone();
        guard.fetch("k", async move || {
            origin.call().await;
            Err::<i32, _>(Down)
        })
    };
    let invalidate = async {
        origin.arrived(1).await;
        guard.invalidate("k").await.expect("acknowledged");
        origin.open();
    };
    let (answer, ()) = tokio::join!(failing(), invalidate);
    assert_eq!(answer.expect_err("not the old value").kind(), ErrorKind::Origin);
    assert_eq!(failing().await.expect_err("not the old value").kind(), ErrorKind::Origin);
}

/// The invalidation comes from another guard over the same store, as from another process.
#[tokio::test(start_paused = true)]
async fn refresh_elsewhere_does_not_restore_an_invalidated_value() {
    let store = Arc::new(MemoryStore::default());
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(100 * SECOND).jitter(0.0);
    let [a, b] = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)].map(|guard| guard.policy(policy));
    let origin = Origin::gated();
    a.fetch("k", async || Ok::<_, Down>(0)).await.expect("an answer");
    tokio::time::sleep(2 * SECOND).await;
    let refresh = origin.clone();
    let stale = a
        .fetch("k", async move || {
            Ok::<_, Down>({
                refresh.call().await;
                1
            })
        })
        .await;
    assert_eq!(stale.expect("stale"), 0);
    origin.arrived(1).await;
    b.invalidate("k").await.expect("acknowledged");
    origin.open();
    a.drain().await;
    for guard in [&a, &b] {
        assert_eq!(guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("new"), 2);
    }
}

/// The key is invalidated more often than a fetch can end. After the second invalidation the flight fetches for its own
/// process only.
#[tokio::test(start_paused = true)]
async fn callers_finish_during_a_storm_of_invalidations() {
    let store = Arc::new(MemoryStore::default());
    let [a, b] =
        [StampedeGuard::new(store.clone()), StampedeGuard::new(store)].map(|guard| guard.wait_timeout(1000 * SECOND));
    let storm = async {
        loop {
            tokio::time::sleep(SECOND).await;
            a.invalidate("k").await.expect("acknowledged");
        }
    };
    let slow = |guard: &StampedeGuard| {
        let guard = guard.clone();
        async move {
            let fetch = async || {
                tokio::time::sleep(3 * SECOND).await;
                Ok::<_, Down>(0)
            };
            guard.fetch("k", fetch).await.expect("an answer");
        }
    };
    let all = async { tokio::join!(slow(&a), slow(&b), slow(&a), slow(&b)) };
    tokio::select! {
        _ = all => {}
        () = storm => unreachable!("it never ends"),
        () = tokio::time::sleep(60 * SECOND) => panic!("starved"),
    }
}

/// The origin is a version counter that is incremented before each invalidation. Each later caller must see at least
/// that version.
#[tokio::test(flavor = "multi_thread")]
async fn caller_after_an_invalidation_sees_the_last_write() {
    let store = Arc::new(MemoryStore::default());
    let guards = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)]
        .map(|guard| guard.policy(Policy::fresh_for(5 * MS).stale_while_revalidate(50 * MS).stale_if_error(50 * MS)));
    let version = Arc::new(AtomicUsize::new(0));
    herd(16, |i| {
        let (guards, version) = (guards.clone(), version.clone());
        async move {
            for round in 0..150 {
                let guard = &guards[(i + round) % 2];
                let floor = match (i + round) % 4 {
                    0 => {
                        let written = version.fetch_add(1, SeqCst) + 1;
                        guard.invalidate("k").await.expect("acknowledged");
                        written
                    }
                    _ => 0,
                };
                let read = version.clone();
                let fetch = async move || {
                    let seen = read.load(SeqCst);
                    tokio::time::sleep(MS).await;
                    Ok::<_, Down>(seen)
                };
                let seen = guard.fetch("k", fetch).await.expect("an answer");
                assert!(seen >= floor, "version {seen} after {floor} was written and invalidated");
            }
        }
    })
    .await;
}

async fn slowly(guard: StampedeGuard, takes: u32, value: i32) -> i32 {
    slowly_under("k", guard, takes, value).await
}

async fn slowly_under(key: &str, guard: StampedeGuard, takes: u32, value: i32) -> i32 {
    let fetch = async move || {
        tokio::time::sleep(takes * SECOND).await;
        Ok::<_, Down>(value)
    };
    guard.fetch(key, fetch).await.expect("an answer")
}

/// The entry was read and then invalidated by another process, and the reply to the lease request reports it. Seen to
/// fail when waiters that time out are served the entry with which the flight began.
#[tokio::test(start_paused = true)]
async fn stale_candidate_is_not_served_after_its_invalidation() {
    let (server, gate) = (FakeRedis::new(), Gate::closed());
    let (elsewhere, node) = (server.node().guard(), server.node());
    let policy = Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0);
    let guard = node.guard().policy(policy).store_timeout(60 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    node.always(GetOrLease, Fault::Held(gate.clone()));
    tokio::time::sleep(2 * SECOND).await;
    let first = tokio::spawn(slowly(guard.clone(), 30, 1));
    gate.arrived(1).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    gate.open();
    tokio::time::sleep(SECOND).await;
    assert_eq!(slowly(guard, 0, 1).await, 1, "asked a second after the invalidation");
    assert_eq!(first.await.expect("no panic"), 1);
}

/// The flight waits for another process, and the store has confirmed its stale candidate. The invalidation that follows
/// is not acknowledged. Seen to fail when a stale candidate outlives an invalidation.
#[tokio::test(start_paused = true)]
async fn stale_candidate_ends_with_an_unacknowledged_invalidation() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let (elsewhere, node) = (server.node().guard(), server.node());
    let guard = node.guard().policy(Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0));
    assert_eq!(slowly_under("value:k", guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    let at_work = origin.clone();
    let leader = tokio::spawn(async move {
        elsewhere
            .fetch("value:k", async move || {
                at_work.call().await;
                Ok::<_, Down>(1)
            })
            .await
    });
    origin.arrived(1).await;
    let first = tokio::spawn(slowly_under("value:k", guard.clone(), 0, 2));
    tokio::time::sleep(100 * MS).await;
    let values = guard.cache("value");
    let hurried = || values.entry("k").timeout(100 * MS);
    assert_eq!(hurried().fetch(never::<i32>).await.expect("the stale candidate"), 0);
    node.always(Invalidate, Fault::Fails);
    values.invalidate("k").await.expect_err("not acknowledged");
    hurried().fetch(never::<i32>).await.expect_err("the stale candidate was invalidated");
    origin.open();
    leader.await.expect("no panic").expect("an answer");
    assert_eq!(first.await.expect("no panic"), 2, "no answer of the store counts while the invalidation is pending");
}

/// One lease request fails, so the flight fetches for its process only. Seen to fail when such a flight stays among the
/// coordinated ones.
#[tokio::test(start_paused = true)]
async fn local_flight_does_not_hide_a_newer_stored_entry() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), deaf(&server));
    node.once(GetOrLease, Fault::Fails);
    let guard = node.guard();
    let old = tokio::spawn(slowly(guard.clone(), 8, 0));
    tokio::time::sleep(SECOND).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    assert_eq!(slowly(elsewhere, 0, 1).await, 1);
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("a hit"), 1);
    assert_eq!(old.await.expect("no panic"), 0);
}

/// A lookup is in flight while the entry is refreshed, and the leader of the refresh learns of the invalidation. Seen
/// to fail when `Flight::invalidated` leaves lookups in the table.
#[tokio::test(start_paused = true)]
async fn lookup_is_not_joined_after_a_refresh_was_invalidated() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(600 * SECOND).jitter(0.0);
    let guard = node.guard().policy(policy).store_timeout(60 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(slowly(guard.clone(), 30, 1).await, 0, "stale, refreshed in the background");
    node.once(Get, Fault::ReplyDelayed(SECOND));
    let before = tokio::spawn(slowly(guard.clone(), 0, 1));
    tokio::time::sleep(MS).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    tokio::time::sleep(MS).await;
    let after = tokio::spawn(slowly(guard, 0, 1));
    assert_eq!(after.await.expect("no panic"), 1);
    assert_eq!(before.await.expect("no panic"), 0, "asked before, and its answer was late");
}

/// The same before the refresh has its reply to the lease request. Seen to fail when the leader does not listen during
/// the request.
#[tokio::test(start_paused = true)]
async fn lookup_is_not_joined_if_invalidated_during_a_lease_request() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(600 * SECOND).jitter(0.0);
    let guard = node.guard().policy(policy).store_timeout(60 * SECOND).lease_ttl(60 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    node.once(GetOrLease, Fault::ReplyDelayed(10 * SECOND));
    assert_eq!(slowly(guard.clone(), 30, 1).await, 0, "stale, refreshed in the background");
    node.once(Get, Fault::ReplyDelayed(SECOND));
    let before = tokio::spawn(slowly(guard.clone(), 0, 1));
    tokio::time::sleep(MS).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    tokio::time::sleep(MS).await;
    assert_eq!(slowly(guard, 0, 1).await, 1);
    assert_eq!(before.await.expect("no panic"), 0, "asked before, and its answer was late");
}

/// The flight learns that the entry was replaced, and requests the lease again. Seen to fail when `Leader::on_entry`
/// leaves the replaced entry as the stale candidate of the waiters.
#[tokio::test(start_paused = true)]
async fn stale_candidate_is_not_served_after_it_was_replaced() {
    let server = FakeRedis::new();
    let policy = Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0);
    let [leader, writer] = [(); 2].map(|()| server.node().guard());
    let node = deaf(&server);
    node.times(3, GetOrLease, Fault::ReplyDelayed(Duration::ZERO)); // it leads, then waits, then learns of the other entry
    node.always(GetOrLease, Fault::Held(Gate::closed()));
    let guard = node.guard().policy(policy).store_timeout(600 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    tokio::spawn(slowly(leader.policy(policy), 600, 9));
    tokio::time::sleep(MS).await;
    tokio::spawn(slowly(guard.clone().wait_timeout(600 * SECOND), 0, 9));
    tokio::time::sleep(MS).await;
    let joined = tokio::spawn(async move { guard.wait_timeout(6 * SECOND).fetch("k", never::<i32>).await });
    tokio::time::sleep(MS).await;
    writer.invalidate("k").await.expect("acknowledged");
    assert_eq!(slowly(writer.policy(Policy::fresh_for(Duration::ZERO).stale_if_error(600 * SECOND)), 0, 1).await, 1);
    assert_eq!(joined.await.expect("no panic").expect_err("not the replaced entry").kind(), ErrorKind::Overloaded);
}

/// The outage (60 s) is longer than the ten seconds for which invalidations are remembered. Seen to fail when the ten
/// seconds are counted back from the end of the outage instead of from its start.
#[tokio::test(start_paused = true)]
async fn acknowledged_invalidation_is_resent_after_a_long_outage() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let other = async || guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.invalidate("old").await.expect("acknowledged");
    tokio::time::sleep(60 * SECOND).await;
    other().await;
    guard.invalidate("k").await.expect("acknowledged");
    node.kill();
    tokio::time::sleep(60 * SECOND).await;
    node.revive();
    other().await;
    guard.drain().await;
    assert_eq!(node.asked(Invalidate), 3, "one of them again");
}

/// Seen to fail when only invalidations acknowledged by the first attempt are remembered.
#[tokio::test(start_paused = true)]
async fn background_invalidation_is_resent_once_per_outage() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    node.times(2, Invalidate, Fault::RequestLost);
    guard.invalidate("k").await.expect_err("not acknowledged");
    guard.drain().await;
    for outage in 1..=3 {
        node.kill();
        tokio::time::sleep(15 * SECOND).await;
        node.revive();
        guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.drain().await;
        assert_eq!(node.asked(Invalidate), 3 + outage);
    }
}

/// The reply to the lookup is late, and an entry was filled meanwhile, whose response is older than the request. Seen to
/// fail when such an entry is served without a refresh.
#[tokio::test(start_paused = true)]
async fn stale_entry_returned_by_a_lease_request_is_refreshed() {
    let server = FakeRedis::new();
    let [node, elsewhere] = [server.node(), server.node()];
    node.once(Get, Fault::ReplyDelayed(3 * SECOND));
    elsewhere.once(Fill, Fault::RequestDelayed(SECOND));
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(100 * SECOND).jitter(0.0);
    let [guard, elsewhere] = [node, elsewhere].map(|node| node.guard().policy(policy).store_timeout(60 * SECOND));
    assert_eq!(slowly(elsewhere.clone(), 0, 1).await, 1);
    tokio::time::sleep(MS).await;
    assert_eq!(slowly(guard.clone(), 0, 2).await, 1, "stale");
    guard.drain().await;
    assert_eq!(elsewhere.fetch("k", never::<i32>).await.expect("refreshed"), 2);
}

/// The store refuses the invalidation for a minute, and another process has the old value meanwhile. Seen to fail (the
/// old value is a hit) if the table of invalidations is not asked.
#[tokio::test(start_paused = true)]
async fn pending_invalidation_is_sent_before_its_key_is_read() {
    let (server, origin) = (FakeRedis::new(), Arc::new(AtomicUsize::new(1)));
    let (elsewhere, node) = (server.node(), server.node());
    let [elsewhere, guard] = [&elsewhere, &node].map(|node| node.guard().policy(Policy::fresh_for(600 * SECOND)));
    let value = async |guard: &StampedeGuard| {
        let origin = origin.clone();
        guard.fetch("k", async move || Ok::<_, Down>(origin.fetch_add(1, SeqCst))).await.expect("an answer")
    };
    assert_eq!(value(&guard).await, 1);
    guard.drain().await;
    node.always(Invalidate, Fault::Fails);
    guard.invalidate("k").await.expect_err("not acknowledged");
    for second in 2..62 {
        assert_eq!(value(&guard).await, second, "one fetch a second");
        assert_eq!(value(&guard).await, second, "it is kept for a second");
        assert_eq!(value(&elsewhere).await, 1, "nothing is stored");
        tokio::time::sleep(SECOND).await;
    }
    node.heal();
    let before = node.asked(Invalidate);
    let (one, another) = tokio::join!(value(&guard), value(&guard));
    assert_eq!((one, another), (62, 62));
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!((node.asked(Invalidate) - before, value(&elsewhere).await), (1, 62));
}

/// The server that takes over has lost the invalidation: another process has stored the old value there. Seen to fail (the
/// old value is a hit) if a read looks at the connection only before it is sent, or not at all.
#[tokio::test(start_paused = true)]
async fn read_over_a_new_connection_returns_nothing_invalidated() {
    for fails in [true, false] {
        let server = FakeRedis::new();
        let (elsewhere, node) = (server.node().guard(), server.node());
        let guard = node.guard();
        guard.invalidate("k").await.expect("acknowledged");
        elsewhere.fetch("k", async || Ok::<_, Down>("old".to_owned())).await.expect("an answer");
        elsewhere.drain().await;
        if fails {
            node.once(Get, Fault::RequestLost); // the read is sent again, over the next connection
        } else {
            node.kill();
            node.revive();
        }
        let new = async || Ok::<_, Down>("new".to_owned());
        assert_eq!(guard.fetch("k", new).await.expect("an answer"), "new");
        assert_eq!(guard.drain_within(60 * SECOND).await, 0);
        assert_eq!(elsewhere.fetch("k", never::<String>).await.expect("a hit"), "new");
        assert_eq!(node.asked(Invalidate), 2);
    }
}

/// The server that is lost has executed the read, and the next one has acknowledged the repeated invalidation before its
/// reply arrives.
///
/// Seen to fail (the old value is a hit) if only what is unsettled at the end of the read does not count.
#[tokio::test(start_paused = true)]
async fn read_before_a_repeated_invalidation_does_not_count() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    let guard = node.guard().store_timeout(10 * SECOND);
    guard.invalidate("k").await.expect("acknowledged");
    elsewhere.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    elsewhere.drain().await;
    node.once(Get, Fault::ReplyDelayed(SECOND));
    let late = async { guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer") };
    let meanwhile = async {
        tokio::time::sleep(MS).await;
        node.once(Get, Fault::RequestLost);
        guard.fetch("other", async || Ok::<_, Down>(0)).await.expect("an answer");
        while node.asked(Invalidate) < 2 {
            tokio::time::sleep(MS).await;
        }
    };
    assert_eq!(tokio::join!(late, meanwhile).0, 2);
}

/// The connection is replaced while the store is asked for the lease, and once more while it is asked again. The last
/// server has lost the invalidation: another process has stored the old value there.
///
/// Seen to fail (the old value is a hit) if each second reply counts.
#[tokio::test(start_paused = true)]
async fn lease_of_a_third_connection_returns_nothing_invalidated() {
    let server = FakeRedis::new();
    let node = server.node();
    let [cache, elsewhere] = [&node, &server.node()].map(|node| node.guard().cache::<String>("c"));
    cache.invalidate("k").await.expect("acknowledged");
    node.always(GetOrLease, Fault::RequestDelayed(100 * MS));
    let question = async { cache.fetch("k", async || Ok::<_, Down>("new".to_owned())).await.expect("an answer") };
    let reconnect = async || {
        node.once(Get, Fault::RequestLost);
        assert_eq!(cache.get("other").await.expect("an answer"), None);
    };
    let meanwhile = async {
        tokio::time::sleep(50 * MS).await;
        reconnect().await;
        tokio::time::sleep(100 * MS).await;
        node.once(Invalidate, Fault::RequestDelayed(100 * MS)); // the repeated one comes after the second question
        reconnect().await;
        elsewhere.put("k", "old".to_owned()).await.expect("acknowledged");
    };
    assert_eq!(tokio::join!(question, meanwhile).0, "new");
    assert_eq!(node.asked(GetOrLease), 3);
}

#[tokio::test(start_paused = true)]
async fn pending_invalidations_are_sent_at_most_a_hundred_a_second() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    node.always(Invalidate, Fault::Fails);
    herd(300, |n| {
        let guard = guard.clone();
        async move { guard.invalidate(n as u64).await.expect_err("not acknowledged") }
    })
    .await;
    assert_eq!(guard.health().pending_invalidations, 300);
    node.heal();
    let mut left = Vec::new();
    for _ in 0..4 {
        tokio::time::sleep(SECOND).await;
        left.push(guard.health().pending_invalidations);
    }
    assert!(matches!(left[..], [200, 100, 0, 0]), "{left:?}");
}

/// Seen to fail if reads do not ask the table of invalidations.
#[tokio::test(start_paused = true)]
async fn too_many_pending_invalidations_end_hits_until_sent() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let value = async |value: i32| guard.fetch("k", async move || Ok::<_, Down>(value)).await.expect("an answer");
    assert_eq!(value(1).await, 1);
    guard.drain().await;
    assert_eq!([value(2).await, value(2).await], [1, 1]);
    node.always(Invalidate, Fault::Fails);
    for first in (0..101_000).step_by(1000) {
        herd(1000, |n| {
            let guard = guard.clone();
            async move { guard.invalidate((first + n) as u64).await.expect_err("not acknowledged") }
        })
        .await;
    }
    assert_eq!(value(3).await, 3, "the store is not read");
    node.heal();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!((guard.health().pending_invalidations, value(4).await), (0, 1));
}

/// A clone whose timeout is too short has failed to invalidate. The readers of other clones do not wait with its timeout,
/// except for the first one, if it joins an attempt in flight.
#[tokio::test(start_paused = true)]
async fn pending_invalidation_is_sent_with_the_timeout_of_its_reader() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let hasty = guard.clone().store_timeout(10 * MS);
    node.always(Invalidate, Fault::ReplyDelayed(100 * MS));
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    guard.drain().await;
    hasty.invalidate("k").await.expect_err("not acknowledged");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(guard.health().pending_invalidations, 1);
    for _ in 0..2 {
        assert_eq!(guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
    }
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("it is stored"), 2);
}

/// The connection is replaced after the server has executed the invalidation, and before its acknowledgement arrives. The
/// next one leads to a server that has the old value.
///
/// Seen to fail (the old value is a hit) if an acknowledgement counts for a connection that was made meanwhile: for any
/// one, or for the one after the first.
#[tokio::test(start_paused = true)]
async fn acknowledgement_does_not_count_for_a_newer_connection() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    let guard = node.guard();
    node.once(Invalidate, Fault::ReplyDelayed(100 * MS));
    let invalidation = async { guard.invalidate("k").await.expect("acknowledged") };
    let meanwhile = async {
        tokio::time::sleep(50 * MS).await;
        node.once(Get, Fault::RequestLost);
        guard.fetch("other", async || Ok::<_, Down>(0)).await.expect("an answer");
        elsewhere.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
        elsewhere.drain().await;
    };
    tokio::join!(invalidation, meanwhile);
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
    guard.drain().await;
    assert_eq!(elsewhere.fetch("k", never::<i32>).await.expect("it is stored"), 2);
}

/// No connection outlasts a command, so that none has both sent and acknowledged the invalidation.
///
/// Seen to fail (acknowledged, after all faults of the script) if it is sent until a connection stays.
#[tokio::test(start_paused = true)]
async fn invalidation_fails_if_each_connection_is_replaced() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    for _ in 0..500 {
        node.once(Invalidate, Fault::RequestLost);
        node.once(Invalidate, Fault::ReplyDelayed(MS));
    }
    guard.invalidate("k").await.expect_err("not acknowledged");
    assert!(node.asked(Invalidate) < 10, "{} requests", node.asked(Invalidate));
    node.heal();
    tokio::time::sleep(SECOND).await;
    assert_eq!(guard.health().pending_invalidations, 0, "it was sent again");
}

/// A task that sends an invalidation ends with its runtime: at its first attempt, or when it sends it again. The answers
/// of the store in another runtime show that the store is back.
///
/// Seen to fail (it stays pending) if an answer begins no such task.
#[test]
fn pending_invalidation_is_sent_after_the_end_of_its_runtime() {
    for fault in [Fault::RequestDelayed(600 * SECOND), Fault::Fails] {
        let (node, runtime) = (FakeRedis::new().node(), || tokio::runtime::Runtime::new().expect("a runtime"));
        let guard = node.guard();
        node.always(Invalidate, fault);
        runtime().block_on(async {
            let invalidation = guard.invalidate("k");
            let _ = tokio::time::timeout(MS, invalidation).await.map(|answer| answer.expect_err("not acknowledged"));
        });
        node.heal();
        assert_eq!(guard.health().pending_invalidations, 1);
        runtime().block_on(eventually("it is acknowledged", async || {
            guard.fetch("other", async || Ok::<_, Down>(0)).await.expect("an answer");
            guard.health().pending_invalidations == 0
        }));
    }
}

/// All clones of the guard are dropped while the store refuses the invalidation.
///
/// Seen to fail (the old value is a hit) if the task that sends it again ends with the guard.
#[tokio::test(start_paused = true)]
async fn pending_invalidation_is_sent_after_its_guard_was_dropped() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    assert_eq!(elsewhere.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    elsewhere.drain().await;
    node.always(Invalidate, Fault::Fails);
    node.guard().invalidate("k").await.expect_err("not acknowledged");
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(elsewhere.fetch("k", never::<i32>).await.expect("a hit"), 1);
    node.heal();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(elsewhere.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
}

/// Seen to fail if reads do not ask which invalidations are pending.
#[tokio::test(start_paused = true)]
async fn read_waits_for_an_invalidation_in_flight() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    guard.drain().await;
    node.once(Invalidate, Fault::RequestDelayed(100 * MS));
    let began = tokio::time::Instant::now();
    let (acknowledged, value) = tokio::join!(guard.invalidate("k"), guard.fetch("k", async || Ok::<_, Down>(2)));
    assert_eq!((acknowledged.is_ok(), value.expect("an answer")), (true, 2));
    assert!(began.elapsed() >= 100 * MS, "{:?}", began.elapsed());
}

/// Seen to fail (10 s) if a reader awaits the attempt in flight without a timeout of its own.
#[tokio::test(start_paused = true)]
async fn reader_waits_for_an_invalidation_by_its_own_timeout() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let patient = guard.clone().store_timeout(10 * SECOND);
    node.always(Invalidate, Fault::RequestDelayed(60 * SECOND));
    let reader = async {
        let began = tokio::time::Instant::now();
        assert_eq!(guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
        began.elapsed()
    };
    let (acknowledged, waited) = tokio::join!(patient.invalidate("k"), reader);
    acknowledged.expect_err("not acknowledged");
    assert!(waited < SECOND, "{waited:?}");
}

/// Two writers invalidate one key, so that the next invalidation is requested before the last one is acknowledged.
///
/// Seen to fail (20 of 40 requests are rejected) if a read waits for invalidations that are requested after it.
#[tokio::test(start_paused = true)]
async fn overlapping_invalidations_reject_no_request() {
    let node = FakeRedis::new().node();
    let guard = node.guard().on_store_failure(StoreFailure::FailClosed);
    node.always(Invalidate, Fault::ReplyDelayed(10 * MS));
    let invalidates = async |begins: Duration| {
        tokio::time::sleep(begins).await;
        for _ in 0..20 {
            guard.invalidate("k").await.expect("acknowledged");
        }
    };
    let reads = async {
        for n in 0..40 {
            tokio::time::sleep(3 * MS).await;
            guard.fetch("k", async move || Ok::<_, Down>(n)).await.expect("the store answers");
        }
    };
    tokio::join!(invalidates(Duration::ZERO), invalidates(5 * MS), reads);
}

/// The server refuses them, or executes each one and acknowledges it too late: then each one costs the fleet a fetch.
///
/// Seen to fail (260 a second) if the pause is shorter when nothing is acknowledged.
#[tokio::test(start_paused = true)]
async fn invalidations_without_reply_are_sent_100_times_a_second() {
    for fault in [Fault::Fails, Fault::ReplyDelayed(100 * MS)] {
        let node = FakeRedis::new().node();
        let guard = node.guard().store_timeout(10 * MS);
        node.always(Invalidate, fault);
        herd(300, |n| {
            let guard = guard.clone();
            async move { guard.invalidate(n as u64).await.expect_err("not acknowledged") }
        })
        .await;
        let before = node.asked(Invalidate);
        tokio::time::sleep(60 * SECOND).await;
        let sent = node.asked(Invalidate) - before;
        assert!((3000..=6000).contains(&sent), "{sent}");
    }
}

/// The store is healthy, and a little slow. Seen to fail when all keys are pending at once, which fill the table.
#[tokio::test(start_paused = true)]
async fn invalidate_many_of_many_keys_ends_no_hit_of_other_keys() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    assert_eq!(guard.fetch("kept", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    guard.drain().await;
    node.always(Invalidate, Fault::ReplyDelayed(MS));
    let many = tokio::spawn({
        let users = guard.cache::<u32>("user");
        async move { users.invalidate_many(0..100_100_u32).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(guard.fetch("kept", async || Ok::<_, Down>(2)).await.expect("an answer"), 1, "a hit");
    many.await.expect("no panic").expect("acknowledged");
}

/// The store is healthy, and slow, so that many invalidations take four seconds. Seen to fail (sent after 30.3 s) when the
/// sender sleeps for names that are not pending any more.
#[tokio::test(start_paused = true)]
async fn invalidation_that_fails_after_invalidate_many_is_sent_soon() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    node.always(Invalidate, Fault::ReplyDelayed(100 * MS));
    guard.cache::<u32>("user").invalidate_many(0..10_000_u32).await.expect("acknowledged");
    guard.drain().await;
    node.once(Invalidate, Fault::Fails);
    guard.invalidate("k").await.expect_err("refused once");
    let failed = tokio::time::Instant::now();
    while guard.health().pending_invalidations > 0 {
        tokio::time::sleep(10 * MS).await;
    }
    assert!(failed.elapsed() < 3 * SECOND, "{:?}", failed.elapsed());
}

/// The runtime of a reader is not driven any more, or has ended. Seen to fail (a caller that hangs, or an error) when the
/// first poll sends the invalidation in its own runtime.
#[test]
fn reader_of_another_runtime_holds_up_no_invalidate_many() {
    for ends in [false, true] {
        let (node, gate) = (FakeRedis::new().node(), Gate::closed());
        let guard = node.guard().store_timeout(100 * SECOND);
        let users = guard.cache::<u32>("user");
        node.always(Invalidate, Fault::Held(gate.clone()));
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut of_reader = Some(runtime());
        runtime().block_on(async {
            let many = tokio::spawn({
                let users = users.clone();
                async move { users.invalidate_many(0..300_u32).await }
            });
            gate.arrived(256).await;
            let reader = of_reader.as_ref().expect("it is there");
            std::thread::scope(|threads| {
                threads.spawn(|| reader.block_on(async { _ = tokio::time::timeout(50 * MS, users.get(299)).await }));
            });
            if ends {
                of_reader.take().expect("it is there").shutdown_background();
            }
            gate.open();
            let many = tokio::time::timeout(5 * SECOND, many).await;
            many.expect("it returns").expect("no panic").expect("acknowledged");
        });
    }
}

/// Seen to fail: the lookup sent a read and an invalidation over each new connection, 201 reads in all.
#[tokio::test(start_paused = true)]
async fn lookup_over_ever_new_connections_ends() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let users = guard.cache::<u32>("user");
    users.invalidate(7).await.expect("acknowledged");
    for _ in 0..100 {
        node.once(Get, Fault::RequestLost);
        node.once(Get, Fault::ReplyDelayed(10 * MS));
    }
    assert_eq!(users.get(7).await.expect("fails open"), None);
    assert!(node.asked(Get) < 20, "{} reads", node.asked(Get));
    assert_eq!(users.fetch(7, async || Ok::<_, Down>(1)).await.expect("the origin answers"), 1);
}
