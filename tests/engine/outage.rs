//! A store that does not answer: who pays for it, and what is done meanwhile.

use crate::{Down, MS, SECOND, never, support::Origin};
use futures_util::future::join_all;
use stampede_guard::{
    Error, ErrorKind, Outage, Policy, StampedeGuard,
    testing::{
        Fault,
        Operation::{Fill, Get, Lead},
        Process, Server,
    },
};
use std::time::Duration;
use tokio::{task::JoinHandle, time::Instant};

fn hanging() -> Process {
    let process = Server::new().process();
    for operation in [Get, Lead, Fill] {
        process.always(operation, Fault::Hangs);
    }
    process
}

/// Seen to fail (each of them pays) without the breaker.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_waited_for_once() {
    let process = hanging();
    let guard = process.guard().op_timeout(250 * MS);
    let mut delayed = 0;
    for key in 0..100_u64 {
        let asked = Instant::now();
        assert_eq!(guard.fetch(key, async move || Ok::<_, Down>(key)).await.expect("the origin answers"), key);
        delayed += u32::from(!asked.elapsed().is_zero());
        tokio::time::sleep(100 * MS).await;
    }
    assert_eq!((delayed, guard.report().breaker_opened), (1, 1));
    let asked = process.asked(Get);
    assert!((11..=21).contains(&asked), "it is tried behind, once per window of 0.5 to 1 s: {asked} in 10 s");
    guard.shutdown().await;
    assert_eq!(guard.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_again_is_asked_again() {
    let process = Server::new().process();
    process.once(Get, Fault::Hangs);
    let guard = process.guard();
    let ask = async || guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    ask().await;
    let closed = Instant::now();
    while guard.report().hits == 0 {
        tokio::time::sleep(10 * MS).await;
        ask().await;
    }
    assert!(closed.elapsed() < 1100 * MS, "{:?}", closed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn five_errors_in_a_row_open_the_breaker() {
    let process = Server::new().process();
    process.always(Get, Fault::ReplyLost);
    let guard = process.guard();
    for key in 0..20_u64 {
        guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
        tokio::time::sleep(20 * MS).await;
    }
    assert_eq!(guard.report().breaker_opened, 1);
    // Each read is tried twice, as its connection may have been idle for long.
    assert_eq!(process.asked(Get), 5 * 2);
}

/// A store that is full still has hits. Seen to fail with refusals taken for errors.
#[tokio::test(start_paused = true)]
async fn refusals_do_not_open_it() {
    let process = Server::new().process();
    for operation in [Get, Lead] {
        process.always(operation, Fault::Fails);
    }
    let guard = process.guard();
    for key in 0..100_u64 {
        guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
        tokio::time::sleep(20 * MS).await;
    }
    assert_eq!(guard.report().breaker_opened, 0);
}

#[tokio::test(start_paused = true)]
async fn invalidations_are_sent_whatever_the_breaker_says() {
    let guard = hanging().guard();
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    assert_eq!(guard.report().breaker_opened, 1);
    guard.invalidate("k").await.expect("acknowledged");
}

#[tokio::test(start_paused = true)]
async fn fail_closed_refuses_and_spares_the_origin() {
    let leaderless = Server::new().process();
    leaderless.always(Lead, Fault::Hangs);
    for process in [hanging(), leaderless] {
        let guard = process.guard().outage(Outage::FailClosed);
        for _ in 0..3 {
            let error = guard.fetch("k", never::<i32>).await.expect_err("refused");
            assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Store, Some(SECOND)));
        }
        assert_eq!((guard.report().refused, guard.report().failed_open), (3, 0));
    }
}

/// What the store had vouched for before it went away stands in, where the policy allows it.
#[tokio::test(start_paused = true)]
async fn fail_closed_serves_what_may_stand_in() {
    let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
    let server = Server::new();
    let leader = server.process().guard().policy(policy);
    leader.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    tokio::time::sleep(2 * SECOND).await;
    let stuck = tokio::spawn(async move { leader.fetch("k", std::future::pending::<Result<i32, Down>>).await });
    tokio::time::sleep(MS).await;
    // Its first question is answered (wait), its poll is not.
    let process = server.process();
    process.once(Lead, Fault::ReplyDelayed(Duration::ZERO));
    process.always(Lead, Fault::Hangs);
    let guard = process.guard().policy(policy).outage(Outage::FailClosed);
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("the stale one"), 1);
    stuck.abort();
}

/// A second's budget, no store, and the only place taken for as long as that task lives.
async fn with_a_full_bulkhead() -> (StampedeGuard, JoinHandle<Result<i32, Error>>) {
    let guard = hanging().guard().bulkhead(1).wait(SECOND);
    let stuck = {
        let guard = guard.clone();
        tokio::spawn(async move { guard.fetch("stuck", std::future::pending::<Result<i32, Down>>).await })
    };
    tokio::time::sleep(SECOND).await;
    (guard, stuck)
}

/// Seen to fail (all five at once) without the bulkhead.
#[tokio::test(start_paused = true)]
async fn no_more_keys_are_computed_at_once_than_the_bulkhead_has_places() {
    let guard = hanging().guard().bulkhead(2);
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
async fn who_finds_no_place_within_the_wait_budget_is_refused() {
    let (guard, stuck) = with_a_full_bulkhead().await;
    let asked = Instant::now();
    let error = guard.fetch("k", never::<i32>).await.expect_err("refused");
    assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Overloaded, Some(SECOND)));
    assert!((800 * MS..=1200 * MS).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    assert_eq!(guard.report().shed, 1);
    stuck.abort();
    let _ = stuck.await;
}

/// The page holds the only place. Somebody else, who asked for the setting first, queues for it: the page must neither
/// queue nor wait with him. Seen to fail (it waits for the budget) with joins of flights that queue.
#[tokio::test(start_paused = true)]
async fn what_is_part_of_a_computation_neither_queues_nor_waits_for_who_does() {
    let guard = hanging().guard().bulkhead(1);
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
    assert_eq!(guard.report().bypassed, 0, "the page's is the one that is joined from now on");
}

/// The same, but the page joined while the other one still asked the store. Seen to fail (it waits for the budget) when
/// those who joined stay with a flight that queues.
#[tokio::test(start_paused = true)]
async fn what_is_part_of_a_computation_leaves_a_flight_that_begins_to_queue() {
    let process = Server::new().process();
    process.always(Lead, Fault::Hangs);
    let guard = process.guard().bulkhead(1).op_timeout(250 * MS);
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

/// Nobody else can: they all wait for this lease. Seen to fail (the other process computes again)
/// with one more attempt only.
#[tokio::test(start_paused = true)]
async fn a_fill_outlasts_a_connection_that_is_cut_for_a_moment() {
    let (server, origin) = (Server::new(), Origin::gated());
    let [leader, waiter] = [(); 2].map(|()| server.process());
    leader.times(4, Fill, Fault::RequestLost);
    let fetch = || {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.call().await)
    };
    let [leader, waiter] = [leader, waiter].map(|process| process.guard().lease(30 * SECOND));
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

/// Not with his next poll, whose answer he would wait for in vain.
#[tokio::test(start_paused = true)]
async fn who_waits_for_another_process_hears_that_the_store_is_gone() {
    let server = Server::new();
    let (elsewhere, process) = (server.process().guard(), server.process());
    let stuck = tokio::spawn(async move { elsewhere.fetch("k", std::future::pending::<Result<i32, Down>>).await });
    tokio::time::sleep(MS).await;
    let guard = process.guard().op_timeout(250 * MS);
    let began = Instant::now();
    let waiting = async {
        let answer = guard.fetch("k", async || Ok::<_, Down>(1)).await;
        (answer, began.elapsed())
    };
    let other = async {
        tokio::time::sleep(MS).await;
        process.always(Get, Fault::Hangs);
        process.always(Lead, Fault::Hangs);
        guard.fetch("another", async || Ok::<_, Down>(2)).await
    };
    let ((answer, took), other) = tokio::join!(waiting, other);
    assert_eq!((answer.expect("an answer"), other.expect("an answer")), (1, 2));
    assert!(took < 300 * MS, "with the first that was given up: {took:?}");
    stuck.abort();
}

/// Seen to fail (they queue one after the other, each for a budget) when those who joined ask again whatever the time.
#[tokio::test(start_paused = true)]
async fn who_joined_somebody_who_finds_no_place_is_refused_when_his_own_budget_is_over() {
    let (guard, stuck) = with_a_full_bulkhead().await;
    let asked = Instant::now();
    let answers = join_all((0..200).map(|_| guard.fetch("k", never::<i32>))).await;
    for answer in answers {
        assert_eq!(answer.expect_err("refused").kind(), ErrorKind::Overloaded);
    }
    assert!((800 * MS..=1200 * MS).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    stuck.abort();
}

/// They joined while the store was still asked, and their budgets end before the one of the flight does. Seen to fail
/// (one of them computes) when who has waited enough needs no place.
#[tokio::test(start_paused = true)]
async fn who_has_waited_enough_for_a_flight_that_queues_does_not_pass_the_bulkhead() {
    let process = Server::new().process();
    process.times(2, Get, Fault::ReplyDelayed(Duration::ZERO));
    process.always(Get, Fault::Hangs);
    process.always(Lead, Fault::Hangs);
    let guard = process.guard().bulkhead(1).wait(SECOND);
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

/// Seen to fail (each of them computes) when a flight is joined for as long as it is filled.
#[tokio::test(start_paused = true)]
async fn what_ends_while_it_is_filled_is_computed_by_one() {
    let process = Server::new().process();
    process.always(Fill, Fault::RequestLost);
    let guard = process.guard().policy(Policy::fresh_for(200 * MS).jitter(0.0));
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

/// Seen to fail (the patient one is never answered by the store) with one breaker for both, which hasty probes keep open.
#[tokio::test(start_paused = true)]
async fn a_hasty_clone_does_not_take_the_store_from_a_patient_one() {
    let process = Server::new().process();
    let guard = process.guard();
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.shutdown().await;
    process.always(Get, Fault::ReplyDelayed(5 * MS));
    let hasty = guard.clone().op_timeout(MS);
    for _ in 0..100 {
        hasty.fetch("another", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.fetch("k", never::<i32>).await.expect("a hit");
        tokio::time::sleep(50 * MS).await;
    }
    assert_eq!(guard.report().breaker_opened, 1, "by the hasty one");
}
