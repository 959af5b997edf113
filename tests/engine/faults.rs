//! Faults of the store: errors, lost requests and replies, hanging operations, lost wake-ups.

use crate::{Down, MS, SECOND, support::Origin};
use stampede_guard::{
    Error, ErrorKind, Policy, StampedeGuard,
    testing::{
        self, FakeRedis, Fault, Node,
        Operation::{self, Fill, Get, GetOrLease, Invalidate, Release},
    },
};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A node in which each of these operations fails with the given fault.
fn broken(operations: &[Operation], fault: &Fault) -> Node {
    let node = FakeRedis::new().node();
    for operation in operations {
        node.always(*operation, fault.clone());
    }
    node
}

/// Runs 20 callers concurrently, checks that each gets the value, and returns the number of origin calls.
async fn answers(guard: &StampedeGuard, origin: &Origin) -> usize {
    let before = origin.calls();
    let callers = (0..20).map(|_| {
        let origin = origin.clone();
        guard.fetch("k", async move || {
            origin.work(100 * MS).await;
            Ok::<_, Down>(1)
        })
    });
    for answer in futures_util::future::join_all(callers).await {
        assert_eq!(answer.expect("the origin could answer"), 1);
    }
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!(guard.in_flight(), 0);
    origin.calls() - before
}

#[tokio::test(start_paused = true)]
async fn twenty_callers_share_one_fetch_on_any_store_fault() {
    for fault in [Fault::Fails, Fault::ReplyLost, Fault::Hangs] {
        for operations in [&[Get][..], &[GetOrLease], &[Fill], &[Get, GetOrLease, Fill]] {
            let (guard, origin) = (broken(operations, &fault).guard(), Origin::new());
            assert_eq!(answers(&guard, &origin).await, 1);
            assert!(guard.stats().store_errors > 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn caching_resumes_after_a_store_fault_ends() {
    for fault in [Fault::Fails, Fault::ReplyLost, Fault::Hangs] {
        for operation in [Get, GetOrLease, Fill] {
            let (node, origin) = (FakeRedis::new().node(), Origin::new());
            node.times(2, operation, fault.clone());
            let guard = node.guard().lease_ttl(SECOND);
            for _ in 0..4 {
                answers(&guard, &origin).await;
                sleep(2 * SECOND).await; // a failed fill may have left its lease, which ends now
            }
            assert_eq!(answers(&guard, &origin).await, 0, "it is cached by now: {operation:?} {fault:?}");
        }
    }
}

/// A fill is safe to run twice: the second send reports that the first one was stored.
#[tokio::test(start_paused = true)]
async fn a_fill_whose_reply_was_lost_is_sent_once_more() {
    for fault in [Fault::ReplyLost, Fault::Hangs] {
        let (node, origin) = (FakeRedis::new().node(), Origin::new());
        node.once(Fill, fault);
        let guard = node.guard();
        assert_eq!(answers(&guard, &origin).await, 1);
        assert_eq!(answers(&guard, &origin).await, 0);
        let report = guard.stats();
        assert_eq!((report.fenced, report.store_errors), (0, 1), "{report:?}");
    }
}

/// Checks that the second round does not wait for a lease left by the first one, although a lease lives 1000 s.
async fn leaves_nothing_to_wait_for(node: &Node) {
    let guard = node.guard().lease_ttl(1000 * SECOND).policy(Policy::fresh_for(Duration::ZERO));
    let origin = Origin::new();
    answers(&guard, &origin).await;
    let began = Instant::now();
    answers(&guard, &origin).await;
    assert!(began.elapsed() <= 101 * MS, "{:?}", began.elapsed());
}

/// The grant of a lease was lost with its reply. The leader releases the lease, so the next caller does not wait for
/// it.
#[tokio::test(start_paused = true)]
async fn lease_is_released_when_its_grant_reply_is_lost() {
    for (lead, times) in [(Fault::ReplyLost, 2), (Fault::Hangs, 1)] {
        let node = FakeRedis::new().node();
        node.times(times, GetOrLease, lead);
        leaves_nothing_to_wait_for(&node).await;
    }
}

/// The lease could not even be released, but the engine recognises its own token in it. Seen to fail (the caller waits)
/// with `Listener::is_orphaned_lease` ignored.
#[tokio::test(start_paused = true)]
async fn orphaned_lease_is_recognised_and_released() {
    let node = FakeRedis::new().node();
    node.times(2, GetOrLease, Fault::ReplyLost);
    node.times(2, Release, Fault::Fails);
    leaves_nothing_to_wait_for(&node).await;
}

/// Seen to fail (the waiter stays until its wait timeout) when a waiter that was registered does not ask again.
#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_at_most_one_lease() {
    let server = FakeRedis::new();
    let [a, b] = [server.node(), server.node()].map(|node| {
        node.lose_wakes();
        node.guard()
    });
    let (origin, began) = (Origin::new(), Instant::now());
    let ask = |guard: &StampedeGuard| {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(100 * MS).await;
                Ok::<_, Down>(1)
            };
            guard.fetch("k", fetch).await.expect("an answer")
        }
    };
    assert_eq!(tokio::join!(ask(&a), ask(&b)), (1, 1));
    assert_eq!(origin.calls(), 1);
    assert!(began.elapsed() <= 3 * SECOND + 10 * MS, "{:?}", began.elapsed());
}

/// The message is lost, or the lease with all else. Seen to fail (3 s) when a registered waiter asks again at the end
/// of the lease only.
#[tokio::test(start_paused = true)]
async fn waiter_asks_again_at_twice_the_cost_or_half_of_the_lease() {
    for (is_seen, limit) in [(false, 1_600 * MS), (true, 100 * MS)] {
        for is_flushed in [false, true] {
            let server = FakeRedis::new();
            let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
            let [a, b] = [server.node(), server.node()].map(|node| {
                node.lose_wakes();
                node.guard().policy(policy)
            });
            let origin = testing::Origin::new().takes(20 * MS);
            if is_seen {
                a.fetch("k", origin.fetch(0)).await.expect("an answer");
                a.drain().await;
                sleep(2 * SECOND).await;
            }
            let slowest = async {
                sleep(MS).await;
                let began = Instant::now();
                b.fetch("k", origin.fetch(1)).await.expect("an answer");
                began.elapsed()
            };
            let flush = async {
                sleep(5 * MS).await;
                if is_flushed {
                    server.flush();
                }
            };
            let (first, slowest, ()) = tokio::join!(a.fetch("k", origin.fetch(1)), slowest, flush);
            assert_eq!(first.expect("an answer"), 1);
            assert_eq!(origin.calls(), 1 + usize::from(is_seen) + usize::from(is_flushed));
            assert!(slowest <= limit, "an entry was seen: {is_seen}; flushed: {is_flushed}: {slowest:?}");
        }
    }
}

/// The store timeout is paid once, not once per caller or per operation, and half of it again for the probe. The probe
/// itself ends later, but no caller waits for it.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_one_operation_timeout() {
    let (guard, origin) = (broken(&[Get], &Fault::Hangs).guard(), Origin::new());
    let began = Instant::now();
    let work = async {
        origin.arrived(1).await;
        began.elapsed()
    };
    let guard = guard.store_timeout(250 * MS);
    let (_, called) = tokio::join!(answers(&guard, &origin), work);
    assert!(called <= 250 * MS + 125 * MS + 2 * MS, "{called:?}");
    assert!(began.elapsed() <= 2 * 252 * MS, "{:?}", began.elapsed());
}

/// Seen to fail (both fetches wait until they are aborted) when a leader without the store joins a local flight that
/// waits for its own fetch.
#[tokio::test(start_paused = true)]
async fn mutual_fetches_do_not_deadlock_on_any_fault() {
    for operations in [&[][..], &[GetOrLease], &[Get]] {
        let (guard, began) = (broken(operations, &Fault::Fails).guard(), Instant::now());
        let needs = |key: &'static str, other: &'static str| {
            let inner = guard.clone();
            guard.fetch(key, async move || {
                sleep(SECOND).await;
                inner.fetch(other, async || Ok::<_, Down>(1)).await
            })
        };
        let (a, b): (Result<i32, Error>, Result<i32, Error>) = tokio::join!(needs("a", "b"), needs("b", "a"));
        assert_eq!((a.expect("an answer"), b.expect("an answer")), (1, 1));
        assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    }
}

/// Models pages that all read the same setting.
#[tokio::test(start_paused = true)]
async fn pages_that_share_a_setting_do_not_starve_without_a_store() {
    let (guard, origin) = (broken(&[Get], &Fault::Fails).guard().max_fallback_fetches(200), Origin::new());
    let pages = (0..200_u64).map(|page| {
        let (inner, origin) = (guard.clone(), origin.clone());
        guard.fetch(page, async move || {
            let setting = async move || {
                origin.work(10 * MS).await;
                Ok::<_, Down>(1)
            };
            inner.fetch("setting", setting).await
        })
    });
    let began = Instant::now();
    let answers: Vec<Result<i32, Error>> = futures_util::future::join_all(pages).await;
    assert!(answers.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(origin.calls(), 1);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

/// The number of earlier polls must not matter.
#[tokio::test(start_paused = true)]
async fn waiter_takes_a_fresh_entry_after_many_polls() {
    let server = FakeRedis::new();
    let [a, polling] = [server.node(), server.node()];
    polling.lose_wakes();
    let (a, b) = (a.guard().cache("value"), polling.guard().wait_timeout(100 * SECOND).cache("value"));
    let stuck = tokio::spawn({
        let a = a.clone();
        async move { a.entry("k").fetch_scoped(std::future::pending::<Result<i32, Down>>).await }
    });
    sleep(MS).await;
    let waiter = tokio::spawn(async move { b.fetch("k", crate::never::<i32>).await });
    sleep(30 * SECOND).await;
    stuck.abort();
    // Another leader, which stores its result before the waiter polls again.
    assert_eq!(a.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    assert_eq!(waiter.await.expect("no panic").expect("a hit"), 1);
}

/// While another process refreshes the key, stale hits must not each ask the store for the lease.
#[tokio::test(start_paused = true)]
async fn stale_hits_rarely_ask_for_a_lease_held_elsewhere() {
    let server = FakeRedis::new();
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(60 * SECOND).jitter(0.0);
    let nodes = [server.node(), server.node()];
    let [a, b] = nodes.each_ref().map(|node| node.guard().policy(policy));
    let slow = || {
        a.fetch("k", async || {
            sleep(3 * SECOND).await;
            Ok::<_, Down>(1)
        })
    };
    assert_eq!(slow().await.expect("an answer"), 1);
    sleep(2 * SECOND).await;
    assert_eq!(slow().await.expect("stale, refreshed in the background"), 1);
    for _ in 0..1000 {
        assert_eq!(b.fetch("k", crate::never::<i32>).await.expect("stale"), 1);
        sleep(MS).await;
    }
    let leads = nodes[1].asked(GetOrLease);
    assert!(leads <= 2, "{leads} in a second");
}

#[tokio::test(start_paused = true)]
async fn a_scoped_fetch_does_not_wait_for_its_fill() {
    let values = broken(&[Fill], &Fault::Hangs).guard().cache("value");
    let began = Instant::now();
    assert_eq!(values.entry("k").fetch_scoped(|| async { Ok::<_, Down>(1) }).await.expect("an answer"), 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// One background task sends the invalidation of a key again, however many of them failed, and it ends when the store
/// acknowledges.
#[tokio::test(start_paused = true)]
async fn invalidations_that_fail_do_not_pile_up() {
    let node = broken(&[Invalidate], &Fault::Fails);
    let guard = node.guard();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..30 {
        assert_eq!(guard.invalidate("k").await.expect_err("it fails").kind(), ErrorKind::Store);
    }
    assert!(tasks() - before <= 2, "{}", tasks() - before);
    sleep(60 * SECOND).await;
    assert!(tasks() - before <= 2, "{}", tasks() - before);
    assert!((100..300).contains(&node.asked(Invalidate)), "{}", node.asked(Invalidate));
    assert_eq!((guard.health().pending_invalidations, guard.stats().pending_invalidations), (1, 1));
    node.heal();
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!((guard.health().pending_invalidations, tasks()), (0, before));
}

/// Seen to fail (every caller waits for the lost reply) when a read in flight is joined at any age.
#[tokio::test(start_paused = true)]
async fn later_callers_do_not_join_a_hung_read() {
    let node = FakeRedis::new().node();
    node.once(Get, Fault::Hangs);
    let guard = node.guard().store_timeout(2 * SECOND);
    let ask = || {
        let guard = guard.clone();
        async move { guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer") }
    };
    for _ in 0..100 {
        tokio::spawn(ask());
        sleep(100 * MS).await;
    }
    let report = guard.stats();
    // The probe is answered at once, and then the caller of the hung read asks again.
    assert!(report.breaker_opened == 1 && report.hits >= 95, "{report:?}");
}

/// Nothing drives this flight: its caller holds the future without polling it.
#[tokio::test(start_paused = true)]
async fn waiter_leaves_a_scoped_flight_that_is_not_polled() {
    let values = broken(&[Get], &Fault::Fails).guard().fetch_timeout(2 * SECOND).cache("value");
    let slow = || async {
        sleep(SECOND).await;
        Ok::<_, Down>(1)
    };
    let mut held = Box::pin(values.entry("k").fetch_scoped(slow));
    assert!(futures_util::poll!(&mut held).is_pending());
    let joined = tokio::time::timeout(60 * SECOND, values.fetch("k", async || Ok::<_, Down>(2))).await;
    assert_eq!(joined.expect("not stuck").expect("an answer"), 2);
}

/// Its caller polls the future again before a lease is over. Seen to fail (the waiter calls as well) if a leader counts
/// as dead after half a lease without a poll.
#[tokio::test(start_paused = true)]
async fn waiter_stays_with_a_scoped_flight_that_is_polled_in_time() {
    let values = broken(&[Get], &Fault::Fails).guard().cache("value");
    let mut held = Box::pin(values.entry("k").fetch_scoped(|| async {
        sleep(SECOND).await;
        Ok::<_, Down>(1)
    }));
    assert!(futures_util::poll!(&mut held).is_pending());
    let waiter = tokio::spawn({
        let values = values.clone();
        async move { values.fetch("k", crate::never::<i32>).await }
    });
    sleep(2_700 * MS).await; // of a lease of 3 s
    assert_eq!(held.await.expect("an answer"), 1);
    assert_eq!(waiter.await.expect("no panic").expect("an answer"), 1);
}
