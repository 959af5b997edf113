//! Outages of the store: which callers are delayed, what the circuit breaker does, and how fallback fetches are
//! limited.

use crate::{Down, MS, SECOND, never, support::Origin};
use futures_util::future::join_all;
use stampede_guard::{
    Error, ErrorKind, Policy, StampedeGuard, StoreFailure,
    testing::{
        FakeRedis, Fault, Node,
        Operation::{Fill, Get, GetOrLease, Invalidate},
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

/// Fetches the key in a task. The value is the number of the origin call.
fn spawn_fetch(guard: &StampedeGuard, origin: &Origin, key: u64) -> JoinHandle<Result<u64, Error>> {
    let (guard, origin) = (guard.clone(), origin.clone());
    tokio::spawn(async move { guard.fetch(key, async move || Ok::<_, Down>(origin.call().await as u64)).await })
}

/// Holds a fallback permit while the store is down, until the task is aborted.
fn hold_permit(guard: &StampedeGuard) -> JoinHandle<Result<u64, Error>> {
    let guard = guard.clone();
    tokio::spawn(async move { guard.fetch("stuck", std::future::pending::<Result<u64, Down>>).await })
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
    assert!((30..=41).contains(&asked), "probes run in the background, one after the other: {asked} in 10 s");
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
    assert_eq!((guard.stats().breaker_opened, guard.stats().failed_open), (1, 0), "the probe was answered at once");
    guard.drain().await;

    node.always(Get, Fault::Hangs);
    ask().await;
    tokio::time::sleep(5 * SECOND).await;
    node.heal();
    ask().await; // sends a probe
    tokio::time::sleep(MS).await;
    let hits = guard.stats().hits;
    ask().await;
    assert_eq!(guard.stats().hits, hits + 1);
}

/// The answer comes up to half of a store timeout too late. Seen to fail (ten further origin calls) when no caller
/// waits for the probe, and when a read that timed out is not sent again.
#[tokio::test(start_paused = true)]
async fn reply_that_is_a_little_late_costs_no_origin_call() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    let node = server.node();
    let guard = node.guard().store_timeout(250 * MS);
    let ask = || (0..10).map(|key| spawn_fetch(&guard, &origin, key)).collect::<Vec<_>>();
    join_all(ask()).await;
    guard.drain().await;
    // Ten reads and the first probe hang. Callers that come before the second probe wait for nothing.
    for late in [100 * MS, 120 * MS] {
        let (calls, began) = (origin.calls(), Instant::now());
        node.always(Get, Fault::Hangs);
        node.times(10, Get, Fault::Hangs);
        node.once(Get, Fault::ReplyDelayed(late));
        let waiting = ask();
        tokio::time::sleep(260 * MS).await;
        let denied = ask();
        tokio::time::sleep(MS).await;
        node.heal();
        for answer in waiting.into_iter().chain(denied) {
            answer.await.expect("no panic").expect("an answer");
        }
        assert_eq!(origin.calls(), calls);
        assert!(began.elapsed() <= 252 * MS + late, "{:?}", began.elapsed());
        guard.drain().await;
    }
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
    // Each read is tried twice, because an idle connection may have been closed. Then there are two probes in 0.3 s.
    assert_eq!(node.asked(Get), 5 * 2 + 2);
}

/// The breaker closes while flights wait for the only permit. Seen to fail (they are rejected) when a flight waits only
/// for the permit.
#[tokio::test(start_paused = true)]
async fn queued_flight_asks_the_store_when_the_breaker_closes() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    let patient = server.node().guard();
    for key in 0..10_u64 {
        patient.fetch(key, async move || Ok::<_, Down>(key)).await.expect("an answer");
    }
    patient.drain().await;
    for silent in [&[Get][..], &[Get, GetOrLease]] {
        let node = server.node();
        silent.iter().for_each(|operation| node.always(*operation, Fault::Hangs));
        let guard = node.guard().store_timeout(250 * MS).max_fallback_fetches(1);
        let stuck = hold_permit(&guard);
        tokio::time::sleep(SECOND).await;
        let asked: Vec<_> = (0..20).map(|n| spawn_fetch(&guard, &origin, n % 10)).collect();
        tokio::time::sleep(500 * MS).await;
        assert_eq!(asked.iter().filter(|asked| asked.is_finished()).count(), 0, "they queue");
        node.heal();
        let probing = guard.fetch(99, never::<u64>); // sends a probe, and queues as well
        let probing = tokio::time::timeout(100 * MS, probing);
        let (answers, _) = tokio::join!(join_all(asked), probing);
        for (n, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.expect("no panic").expect("a hit"), n as u64 % 10);
        }
        assert_eq!((guard.stats().hits, origin.calls()), (20, 0));
        stuck.abort();
    }
}

/// The breaker opens and closes while the request for a lease is still on its way. Seen to fail (rejected after a
/// second in the queue) when only a breaker that closes after the request has failed counts.
#[tokio::test(start_paused = true)]
async fn caller_whose_request_fails_late_does_not_queue() {
    let node = FakeRedis::new().node();
    let guard = node.guard().store_timeout(250 * MS).max_fallback_fetches(1);
    node.always(Get, Fault::Hangs);
    let stuck = hold_permit(&guard);
    tokio::time::sleep(SECOND).await;
    node.heal();
    tokio::time::sleep(SECOND).await; // until the last probe that hangs is over
    guard.fetch("probe", async || Ok::<_, Down>(1)).await.expect("its probe closes the breaker");

    node.once(Get, Fault::Hangs);
    let opens = spawn_fetch(&guard, &Origin::new(), 1);
    tokio::time::sleep(150 * MS).await;
    node.once(GetOrLease, Fault::Hangs);
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("not rejected"), 1);
    assert_eq!((guard.stats().breaker_opened, guard.stats().overloaded), (2, 0));
    opens.await.expect("no panic").expect("an answer");
    stuck.abort();
}

/// The store answers reads, and so each probe, but no request for a lease. Seen to fail when a caller goes back to the
/// store each time the breaker closes: it is rejected after 8.24 s.
#[tokio::test(start_paused = true)]
async fn caller_returns_from_the_queue_to_the_store_for_a_second() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    let node = server.node();
    node.always(GetOrLease, Fault::Hangs);
    let guard = node.guard().store_timeout(250 * MS).max_fallback_fetches(1);
    let stuck = hold_permit(&guard);
    tokio::time::sleep(SECOND).await;
    let mut others = Vec::new();
    for key in 0..400_u64 {
        others.push(spawn_fetch(&guard, &origin, key));
        tokio::time::sleep(10 * MS).await;
        if key == 100 {
            let (guard, origin) = (guard.clone(), origin.clone());
            others.push(tokio::spawn(async move {
                let asked = Instant::now();
                let answer = spawn_fetch(&guard, &origin, 1000).await.expect("no panic");
                assert!(asked.elapsed() <= 2 * SECOND + 500 * MS, "{:?}", asked.elapsed());
                answer
            }));
        }
    }
    for answer in join_all(others).await {
        assert_eq!(answer.expect("in time").expect_err("refused").kind(), ErrorKind::Overloaded);
    }
    assert!(node.asked(GetOrLease) <= 5 * 402, "{}", node.asked(GetOrLease));
    stuck.abort();
    let _ = stuck.await;
}

/// The read times out after the deadline. Seen to fail (620 ms) when the caller then waits for the probe and reads
/// again.
#[tokio::test(start_paused = true)]
async fn deadline_is_exceeded_by_one_store_timeout_at_most() {
    let node = FakeRedis::new().node();
    let guard = node.guard().store_timeout(250 * MS);
    node.always(Get, Fault::Hangs);
    node.once(Get, Fault::Hangs);
    node.once(Get, Fault::ReplyDelayed(120 * MS)); // to the probe
    let asked = Instant::now();
    let values = guard.cache("value");
    let _ = values.entry("k").deadline((asked + 100 * MS).into_std()).fetch(async || Ok::<_, Down>(1)).await;
    assert!(asked.elapsed() <= 351 * MS, "{:?}", asked.elapsed());
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

/// A guard whose store hangs and whose circuit breaker is open, with the pending invalidation of `k`.
async fn with_a_pending_invalidation() -> (Node, StampedeGuard) {
    let node = hanging();
    node.always(Invalidate, Fault::Hangs);
    let guard = node.guard().store_timeout(250 * MS);
    guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.invalidate("k").await.expect_err("not acknowledged");
    assert_eq!((guard.health().pending_invalidations, guard.stats().breaker_opened), (1, 1));
    (node, guard)
}

/// Seen to fail (250 ms each) if a reader sends the pending invalidation of its key although the circuit breaker is open.
#[tokio::test(start_paused = true)]
async fn pending_invalidation_delays_no_reader_of_an_open_breaker() {
    let (_node, guard) = with_a_pending_invalidation().await;
    for n in 0..10 {
        let asked = Instant::now();
        assert_eq!(guard.fetch("k", async move || Ok::<_, Down>(n)).await.expect("an answer"), n);
        assert_eq!(asked.elapsed(), Duration::ZERO);
        tokio::time::sleep(2 * SECOND).await;
    }
}

/// Seen to fail if the task that sends pending invalidations does not ask the circuit breaker.
#[tokio::test(start_paused = true)]
async fn pending_invalidation_is_sent_once_the_breaker_closes() {
    let (node, guard) = with_a_pending_invalidation().await;
    let before = node.asked(Invalidate);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(node.asked(Invalidate) - before, 0);
    node.heal();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!((node.asked(Invalidate) - before, guard.health().pending_invalidations), (1, 0));
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

/// A guard without a store. The returned task holds the only fallback permit while it lives.
async fn with_no_free_permit() -> (StampedeGuard, JoinHandle<Result<u64, Error>>) {
    let guard = hanging().guard().max_fallback_fetches(1);
    let stuck = hold_permit(&guard);
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
            origin.work(400 * MS).await;
            Ok::<_, Down>(i % 5)
        })
    });
    for (i, answer) in join_all(callers).await.into_iter().enumerate() {
        assert_eq!(answer.expect("it had only to queue"), i as u64 % 5);
    }
    assert_eq!((origin.peak(), origin.calls()), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn caller_without_a_fallback_permit_is_rejected_after_a_second() {
    let (guard, stuck) = with_no_free_permit().await;
    let asked = Instant::now();
    let error = guard.fetch("k", never::<i32>).await.expect_err("refused");
    assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Overloaded, Some(SECOND)));
    assert_eq!(asked.elapsed(), SECOND);
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
        tokio::time::sleep(400 * MS).await;
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

/// A thousand fills may be under way when the store begins to hang, and each one has a payload.
///
/// Seen to fail (it is sent 7 times) if a fill does not ask the breaker.
#[tokio::test(start_paused = true)]
async fn fill_is_not_sent_while_the_breaker_is_open() {
    let server = FakeRedis::new();
    let (elsewhere, node) = (server.node().guard(), server.node());
    let guard = node.guard().store_timeout(250 * MS).lease_ttl(30 * SECOND);
    let hangs = node.clone();
    let fetch = async move || {
        [Get, Fill].into_iter().for_each(|operation| hangs.always(operation, Fault::Hangs));
        Ok::<_, Down>(1)
    };
    assert_eq!(guard.fetch("k", fetch).await.expect("an answer"), 1);
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(node.asked(Fill), 1);
    node.heal();
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!((elsewhere.fetch("k", never::<i32>).await.expect("it is stored"), node.asked(Fill)), (1, 2));
}

/// A caller that waits for a lease stays for as long as the lease may live, and then fetches. Seen to fail (it fetches
/// at once) when a leader that waits fails open at the first error.
#[tokio::test(start_paused = true)]
async fn waiter_stays_for_one_lease_when_the_store_falls_silent() {
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
        let answer = guard.fetch("another", async || Ok::<_, Down>(2)).await;
        (answer, began.elapsed())
    };
    let ((answer, took), (other, at_once)) = tokio::join!(waiting, other);
    assert_eq!((answer.expect("an answer"), other.expect("an answer")), (1, 2));
    assert!(at_once < 400 * MS, "a new caller fails open: {at_once:?}"); // with half of a store timeout for the probe
    assert!((3 * SECOND..4 * SECOND).contains(&took), "{took:?}");
    stuck.abort();
}

/// Seen to fail (the waiters queue one after another, a second each) when a flight that leaves the queue lets them try
/// again.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_queued_flight_are_rejected_with_it() {
    let (guard, stuck) = with_no_free_permit().await;
    let asked = Instant::now();
    let answers = join_all((0..200).map(|_| guard.fetch("k", never::<i32>))).await;
    for answer in answers {
        assert_eq!(answer.expect_err("refused").kind(), ErrorKind::Overloaded);
    }
    assert_eq!(asked.elapsed(), SECOND);
    stuck.abort();
}

/// A full server answers reads and grants no lease. Seen to fail (136 calls) when each waiter tried again as the leader.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_leader_that_fails_closed_are_rejected() {
    let node = FakeRedis::new().node();
    node.always(GetOrLease, Fault::Fails);
    let guard = node.guard().on_store_failure(StoreFailure::FailClosed);
    for answer in join_all((0..200).map(|_| guard.fetch("k", never::<i32>))).await {
        assert_eq!(answer.expect_err("rejected").kind(), ErrorKind::Store);
    }
}

/// Twenty new keys a second, and a store that is silent for a minute. The permits suffice for eight a second. Returns
/// the number of answers that came before the client left, of the last 40 s, and the number of origin calls.
async fn answers_without_a_store(patience: Duration, has_deadline: bool) -> (usize, usize) {
    let (guard, origin) = (hanging().guard().max_fallback_fetches(8), Origin::new());
    let clients = (0..1200_u32).map(|n| {
        let (values, origin) = (guard.cache("value"), origin.clone());
        tokio::spawn(async move {
            tokio::time::sleep(n * 50 * MS).await;
            let call = match has_deadline {
                true => values.entry(n).timeout(patience),
                false => values.entry(n),
            };
            let fetch = async move || {
                origin.work(SECOND).await;
                Ok::<_, Down>(n)
            };
            let answer = tokio::time::timeout(patience, call.fetch(fetch)).await;
            usize::from(n >= 400 && answer.is_ok_and(|answer| answer.is_ok()))
        })
    });
    let answered = join_all(clients).await.into_iter().map(|answered| answered.expect("no panic")).sum();
    (answered, origin.calls())
}

/// 320 answers are possible. Seen to fail when flights queue for ten seconds. Code whose flights queued for the wait
/// timeout, the oldest first and without their callers, gave no answer at all at 496 origin calls.
#[tokio::test(start_paused = true)]
async fn overload_without_a_store_serves_the_newest_callers() {
    for (patience, has_deadline) in [(2 * SECOND, false), (5 * SECOND, false), (2 * SECOND, true)] {
        let (answered, calls) = answers_without_a_store(patience, has_deadline).await;
        println!("patience {patience:?}, deadline {has_deadline}: {answered} answers, {calls} origin calls");
        assert!(answered >= 310 && calls <= 500, "{answered} answers, {calls} calls: {patience:?} {has_deadline}");
    }
}

/// Seen to fail (the origin is called for a client that has gone) when a flight without callers stays in the queue.
#[tokio::test(start_paused = true)]
async fn flight_that_no_caller_waits_for_leaves_the_queue() {
    let ((guard, stuck), origin) = (with_no_free_permit().await, Origin::new());
    let work = origin.clone();
    let gone = tokio::time::timeout(500 * MS, guard.fetch("k", async move || Ok::<_, Down>(work.call().await))).await;
    tokio::time::sleep(MS).await;
    assert!(gone.is_err() && guard.in_flight() == 1, "only the stuck one");
    stuck.abort();
    let _ = stuck.await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(origin.calls(), 0);
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

/// A read that began before the fetch, and times out while the fetch runs. Its caller waits for that fetch.
///
/// Seen to fail (two calls of the origin) when a caller whose read fails looks at local flights only.
#[tokio::test(start_paused = true)]
async fn caller_whose_read_fails_joins_the_fetch_of_its_process() {
    let node = FakeRedis::new().node();
    node.once(Get, Fault::Hangs);
    let (guard, origin) = (node.guard(), Origin::gated());
    let ask = || {
        let (guard, origin) = (guard.clone(), origin.clone());
        tokio::spawn(async move { guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await })
    };
    let late = ask();
    tokio::time::sleep(MS).await;
    let leader = ask();
    origin.arrived(1).await;
    tokio::time::sleep(SECOND).await;
    origin.open();
    for caller in [late, leader] {
        assert_eq!(caller.await.expect("no panic").expect("an answer"), 1);
    }
    assert_eq!(origin.calls(), 1);
}

/// The store comes back and refuses to read, as a Redis that loads its data does. The refusal closes the breaker. Seen to
/// fail (rejected at once, after 127 reads) when a caller counts each breaker that has closed since it began.
#[tokio::test]
async fn caller_whose_reads_are_refused_waits_for_a_permit() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let guard = node.guard().store_timeout(250 * MS).max_fallback_fetches(1);
    node.always(Get, Fault::Hangs);
    let (free, freed) = tokio::sync::oneshot::channel::<()>();
    let holds = tokio::spawn({
        let guard = guard.clone();
        async move {
            let fetch = async || {
                freed.await.expect("sent");
                Ok::<_, Down>(1_u64)
            };
            guard.fetch("holds", fetch).await
        }
    });
    tokio::time::sleep(SECOND).await;
    let queued = spawn_fetch(&guard, &origin, 1);
    tokio::time::sleep(300 * MS).await;
    assert!(!queued.is_finished(), "it queues");
    let asked = node.asked(Get);
    node.always(Get, Fault::Fails);
    let probing = spawn_fetch(&guard, &origin, 2); // sends a probe, and queues as well
    tokio::time::sleep(300 * MS).await;
    free.send(()).expect("it is awaited");
    for answer in [holds, queued, probing] {
        let _ = answer.await.expect("no panic"); // rejected if the machine is slow
    }
    assert!(node.asked(Get) - asked < 10, "{}", node.asked(Get) - asked);
}

/// The store answers each probe, and no other read. Seen to fail (rejected after 33.8 s) as above.
#[tokio::test(start_paused = true)]
async fn caller_whose_reads_hang_leaves_the_queue_for_a_second() {
    let node = FakeRedis::new().node();
    let guard = node.guard().store_timeout(250 * MS).max_fallback_fetches(1);
    node.always(Get, Fault::Hangs);
    let holds = hold_permit(&guard);
    tokio::time::sleep(SECOND).await;
    let probing = tokio::spawn({
        let (guard, node) = (guard.clone(), node.clone());
        async move {
            loop {
                tokio::time::sleep(10 * MS).await;
                if guard.health().breaker_open {
                    let asked = node.asked(Get);
                    node.once(Get, Fault::ReplyDelayed(Duration::ZERO));
                    while node.asked(Get) == asked {
                        let probe = guard.fetch("probe", never::<u64>);
                        let _ = tokio::time::timeout(MS, probe).await;
                    }
                }
            }
        }
    });
    let asked = Instant::now();
    guard.fetch("k", never::<u64>).await.expect_err("no permit is free");
    assert!(asked.elapsed() <= 3 * SECOND, "{:?}", asked.elapsed());
    probing.abort();
    holds.abort();
}

/// The store has come back, and refuses the pending invalidation of the key. Seen to fail (63 invalidations) as above.
#[tokio::test]
async fn caller_whose_invalidation_is_refused_waits_for_a_permit() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let guard = node.guard().store_timeout(250 * MS).max_fallback_fetches(1);
    node.always(Get, Fault::Hangs);
    node.always(Invalidate, Fault::Fails);
    guard.invalidate(1_u64).await.expect_err("refused");
    let holds = hold_permit(&guard);
    tokio::time::sleep(SECOND).await;
    let (queued, began) = (spawn_fetch(&guard, &origin, 1), Instant::now());
    tokio::time::sleep(300 * MS).await;
    assert!(!queued.is_finished(), "it queues");
    let sent = node.asked(Invalidate);
    node.always(Get, Fault::ReplyDelayed(Duration::ZERO));
    let probing = spawn_fetch(&guard, &origin, 2); // sends a probe
    queued.await.expect("no panic").expect_err("no permit is free");
    assert!(node.asked(Invalidate) - sent < 10 && began.elapsed() >= SECOND);
    let _ = probing.await;
    holds.abort();
}
