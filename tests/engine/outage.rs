//! Outages of the store: which callers are delayed, what the circuit breaker does, and how fallback fetches are
//! limited.

use crate::{Down, MS, SECOND, never, support::Origin};
use futures_util::future::join_all;
use stampede_guard::{
    Error, ErrorKind, Policy, StampedeGuard, StoreFailure,
    testing::{
        FakeRedis, Fault, Node,
        Operation::{Fill, Get, GetOrLease},
    },
};
use std::time::Duration;
use tokio::{task::JoinHandle, time::Instant};

fn hanging() -> Node {
    let node = FakeRedis::new().node();
    for operation in [Get, GetOrLease, Fill] {
        node.always(operation, Fault::Hangs);
    }
    node
}

/// Seen to fail (every caller is delayed) without the circuit breaker.
#[tokio::test(start_paused = true)]
async fn hung_store_delays_only_one_caller() {
    let node = hanging();
    let guard = node.guard().store_timeout(250 * MS);
    let mut delayed = 0;
    for key in 0..100_u64 {
        let asked = Instant::now();
        assert_eq!(guard.fetch(key, async move || Ok::<_, Down>(key)).await.expect("the origin answers"), key);
        delayed += u32::from(!asked.elapsed().is_zero());
        tokio::time::sleep(100 * MS).await;
    }
    assert_eq!((delayed, guard.stats().breaker_opened), (1, 1));
    let asked = node.asked(Get);
    assert!((11..=21).contains(&asked), "probes run in the background, once per window of 0.5 to 1 s: {asked} in 10 s");
    guard.drain().await;
    assert_eq!(guard.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn breaker_closes_when_the_store_answers_again() {
    let node = FakeRedis::new().node();
    node.once(Get, Fault::Hangs);
    let guard = node.guard();
    let ask = async || guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    ask().await;
    let closed = Instant::now();
    while guard.stats().hits == 0 {
        tokio::time::sleep(10 * MS).await;
        ask().await;
    }
    assert!(closed.elapsed() < 1100 * MS, "{:?}", closed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn five_errors_in_a_row_open_the_breaker() {
    let node = FakeRedis::new().node();
    node.always(Get, Fault::ReplyLost);
    let guard = node.guard();
    for key in 0..20_u64 {
        guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
        tokio::time::sleep(20 * MS).await;
    }
    assert_eq!(guard.stats().breaker_opened, 1);
    // Each read is tried twice, because an idle connection may have been closed.
    assert_eq!(node.asked(Get), 5 * 2);
}

/// A full store still serves hits. Seen to fail when command errors count as failures of the connection.
#[tokio::test(start_paused = true)]
async fn command_errors_do_not_open_the_breaker() {
    let node = FakeRedis::new().node();
    for operation in [Get, GetOrLease] {
        node.always(operation, Fault::Fails);
    }
    let guard = node.guard();
    for key in 0..100_u64 {
        guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
        tokio::time::sleep(20 * MS).await;
    }
    assert_eq!(guard.stats().breaker_opened, 0);
}

#[tokio::test(start_paused = true)]
async fn invalidation_is_sent_while_the_breaker_is_open() {
    let guard = hanging().guard();
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    assert_eq!(guard.stats().breaker_opened, 1);
    guard.invalidate("k").await.expect("acknowledged");
}

#[tokio::test(start_paused = true)]
async fn fail_closed_rejects_and_does_not_call_the_origin() {
    let leaderless = FakeRedis::new().node();
    leaderless.always(GetOrLease, Fault::Hangs);
    for node in [hanging(), leaderless] {
        let guard = node.guard().on_store_failure(StoreFailure::FailClosed);
        for _ in 0..3 {
            let error = guard.fetch("k", never::<i32>).await.expect_err("refused");
            assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Store, Some(SECOND)));
        }
        assert_eq!((guard.stats().rejected, guard.stats().failed_open), (3, 0));
    }
}

/// An entry that the store had confirmed before the outage is served if the policy's stale-if-error window allows it.
#[tokio::test(start_paused = true)]
async fn fail_closed_serves_a_stale_if_error_entry() {
    let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
    let server = FakeRedis::new();
    let leader = server.node().guard().policy(policy);
    leader.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    tokio::time::sleep(2 * SECOND).await;
    let stuck = tokio::spawn(async move { leader.fetch("k", std::future::pending::<Result<i32, Down>>).await });
    tokio::time::sleep(MS).await;
    // The first lease request is answered (wait), the poll after it is not.
    let node = server.node();
    node.once(GetOrLease, Fault::ReplyDelayed(Duration::ZERO));
    node.always(GetOrLease, Fault::Hangs);
    let guard = node.guard().policy(policy).on_store_failure(StoreFailure::FailClosed);
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("the stale one"), 1);
    stuck.abort();
}

/// A guard without a store, with a wait timeout of 1 s. The returned task holds the only fallback permit while it
/// lives.
async fn with_no_free_permit() -> (StampedeGuard, JoinHandle<Result<i32, Error>>) {
    let guard = hanging().guard().max_fallback_fetches(1).wait_timeout(SECOND);
    let stuck = {
        let guard = guard.clone();
        tokio::spawn(async move { guard.fetch("stuck", std::future::pending::<Result<i32, Down>>).await })
    };
    tokio::time::sleep(SECOND).await;
    (guard, stuck)
}

/// Seen to fail (all five fetches run at once) without the permits.
#[tokio::test(start_paused = true)]
async fn max_fallback_fetches_limits_fetches_of_different_keys() {
    let guard = hanging().guard().max_fallback_fetches(2);
    let origin = Origin::new();
    let callers = (0..10_u64).map(|i| {
        let origin = origin.clone();
        guard.fetch(i % 5, async move || {
            origin.work(SECOND).await;
            Ok::<_, Down>(i % 5)
        })
    });
    for (i, answer) in join_all(callers).await.into_iter().enumerate() {
        assert_eq!(answer.expect("it had only to queue"), i as u64 % 5);
    }
    assert_eq!((origin.peak(), origin.calls()), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn caller_without_a_fallback_permit_is_rejected_at_wait_timeout() {
    let (guard, stuck) = with_no_free_permit().await;
    let asked = Instant::now();
    let error = guard.fetch("k", never::<i32>).await.expect_err("refused");
    assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Overloaded, Some(SECOND)));
    assert!((800 * MS..=1200 * MS).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    assert_eq!(guard.stats().overloaded, 1);
    stuck.abort();
    let _ = stuck.await;
}

/// The page holds the only permit. Another caller, which asked for the setting first, queues for it. The page must
/// neither queue nor join the queued flight. Seen to fail (it waits until the wait timeout) when queued flights are
/// joined.
#[tokio::test(start_paused = true)]
async fn nested_fetch_does_not_queue_for_a_fallback_permit() {
    let guard = hanging().guard().max_fallback_fetches(1);
    let asked = Instant::now();
    let page = {
        let inner = guard.clone();
        guard.fetch("page", async move || {
            tokio::time::sleep(500 * MS).await;
            inner.fetch("setting", async || Ok::<_, Down>(1)).await
        })
    };
    let setting = async {
        tokio::time::sleep(300 * MS).await;
        guard.fetch("setting", async || Ok::<_, Down>(2)).await
    };
    let (page, setting) = tokio::join!(page, setting);
    assert_eq!(page.expect("an answer"), 1);
    assert!(setting.is_ok());
    assert!(asked.elapsed() < 2 * SECOND, "{:?}", asked.elapsed());
    assert_eq!(guard.stats().bypassed, 0, "later callers join the fetch of the page");
}

/// The same, but the page joins while the flight still asks the store. Seen to fail (it waits until the wait timeout)
/// when waiters stay with a flight that starts to queue.
#[tokio::test(start_paused = true)]
async fn nested_fetch_leaves_a_flight_that_starts_to_queue() {
    let node = FakeRedis::new().node();
    node.always(GetOrLease, Fault::Hangs);
    let guard = node.guard().max_fallback_fetches(1).store_timeout(250 * MS);
    let asked = Instant::now();
    let page = {
        let inner = guard.clone();
        guard.fetch("page", async move || inner.fetch("setting", async || Ok::<_, Down>(1)).await)
    };
    let setting = async {
        tokio::time::sleep(100 * MS).await;
        guard.fetch("setting", async || Ok::<_, Down>(2)).await
    };
    let (page, setting) = tokio::join!(page, setting);
    assert_eq!(page.expect("an answer"), 1);
    assert!(setting.is_ok());
    assert!(asked.elapsed() < 2 * SECOND, "{:?}", asked.elapsed());
}

/// The fill is retried because every other process waits for this lease. Seen to fail (the other process fetches again)
/// with only one more attempt.
#[tokio::test(start_paused = true)]
async fn fill_is_retried_after_a_short_connection_loss() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let [leader, waiter] = [(); 2].map(|()| server.node());
    leader.times(4, Fill, Fault::RequestLost);
    let fetch = || {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.call().await)
    };
    let [leader, waiter] = [leader, waiter].map(|node| node.guard().lease_ttl(30 * SECOND));
    let led = leader.fetch("k", fetch());
    let waited = async {
        origin.arrived(1).await;
        waiter.fetch("k", fetch()).await
    };
    let release = async {
        tokio::time::sleep(100 * MS).await;
        origin.open();
    };
    let began = Instant::now();
    let (led, waited, ()) = tokio::join!(led, waited, release);
    assert_eq!((led.expect("an answer"), waited.expect("an answer")), (1, 1));
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
}

/// The waiter must not find out by its next poll, which would cost it a store timeout.
#[tokio::test(start_paused = true)]
async fn waiter_leaves_its_poll_when_the_breaker_opens() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    let stuck = tokio::spawn(async move { elsewhere.fetch("k", std::future::pending::<Result<i32, Down>>).await });
    tokio::time::sleep(MS).await;
    let guard = node.guard().store_timeout(250 * MS);
    let began = Instant::now();
    let waiting = async {
        let answer = guard.fetch("k", async || Ok::<_, Down>(1)).await;
        (answer, began.elapsed())
    };
    let other = async {
        tokio::time::sleep(MS).await;
        node.always(Get, Fault::Hangs);
        node.always(GetOrLease, Fault::Hangs);
        guard.fetch("another", async || Ok::<_, Down>(2)).await
    };
    let ((answer, took), other) = tokio::join!(waiting, other);
    assert_eq!((answer.expect("an answer"), other.expect("an answer")), (1, 2));
    assert!(took < 300 * MS, "not when the breaker opened: {took:?}");
    stuck.abort();
}

/// Seen to fail (the waiters queue one after another, a wait timeout each) when waiters retry without regard to their
/// time limit.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_queued_flight_are_rejected_at_wait_timeout() {
    let (guard, stuck) = with_no_free_permit().await;
    let asked = Instant::now();
    let answers = join_all((0..200).map(|_| guard.fetch("k", never::<i32>))).await;
    for answer in answers {
        assert_eq!(answer.expect_err("refused").kind(), ErrorKind::Overloaded);
    }
    assert!((800 * MS..=1200 * MS).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    stuck.abort();
}

/// The callers joined while the flight still asked the store, and their wait timeouts end before that of the flight.
/// Seen to fail (one of them fetches) when a caller past its wait timeout needs no permit.
#[tokio::test(start_paused = true)]
async fn waiters_that_time_out_need_a_fallback_permit() {
    let node = FakeRedis::new().node();
    node.times(2, Get, Fault::ReplyDelayed(Duration::ZERO));
    node.always(Get, Fault::Hangs);
    node.always(GetOrLease, Fault::Hangs);
    let guard = node.guard().max_fallback_fetches(1).wait_timeout(SECOND);
    let stuck = {
        let guard = guard.clone();
        tokio::spawn(async move { guard.fetch("stuck", std::future::pending::<Result<i32, Down>>).await })
    };
    tokio::time::sleep(MS).await;
    let callers = (0..100).map(|n| {
        let guard = &guard;
        async move {
            tokio::time::sleep(n.min(1) * MS).await; // after the flight has begun
            guard.fetch("k", never::<i32>).await
        }
    });
    for answer in join_all(callers).await {
        assert_eq!(answer.expect_err("refused").kind(), ErrorKind::Overloaded);
    }
    stuck.abort();
}

/// Seen to fail (every caller fetches) when a flight may be joined as long as its fill runs.
#[tokio::test(start_paused = true)]
async fn entry_that_expires_during_its_fill_is_fetched_once() {
    let node = FakeRedis::new().node();
    node.always(Fill, Fault::RequestLost);
    let guard = node.guard().policy(Policy::fresh_for(200 * MS).jitter(0.0));
    let origin = Origin::new();
    let fetch = || {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.work(100 * MS).await)
    };
    assert_eq!(guard.fetch("k", fetch()).await.expect("an answer"), 1);
    tokio::time::sleep(500 * MS).await;
    for answer in join_all((0..50).map(|_| guard.fetch("k", fetch()))).await {
        assert_eq!(answer.expect("an answer"), 2);
    }
}

/// Seen to fail (the clone with the longer timeout never gets a hit) when both share one breaker, which the short
/// probes keep open.
#[tokio::test(start_paused = true)]
async fn breaker_of_a_short_store_timeout_does_not_block_other_clones() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.drain().await;
    node.always(Get, Fault::ReplyDelayed(5 * MS));
    let hasty = guard.clone().store_timeout(MS);
    for _ in 0..100 {
        hasty.fetch("another", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.fetch("k", never::<i32>).await.expect("a hit");
        tokio::time::sleep(50 * MS).await;
    }
    assert_eq!(guard.stats().breaker_opened, 1, "only for the short timeout");
}
