//! A store that does not do as it is asked.

use crate::{Down, MS, SECOND, support::Origin};
use stampede_guard::{
    Error, ErrorKind, Policy, StampedeGuard,
    testing::{
        Fault,
        Operation::{self, Abandon, Fill, Get, Invalidate, Lead},
        Process, Server,
    },
};
use std::time::Duration;

/// A process over which these operations always go wrong.
fn broken(operations: &[Operation], fault: &Fault) -> Process {
    let process = Server::new().process();
    for operation in operations {
        process.always(*operation, fault.clone());
    }
    process
}

/// Twenty callers at once; each gets an answer.
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
    guard.shutdown().await;
    assert_eq!(guard.in_flight(), 0);
    origin.calls() - before
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_everybody_is_answered_by_one_call() {
    for fault in [Fault::Fails, Fault::ReplyLost, Fault::Hangs] {
        for operations in [&[Get][..], &[Lead], &[Fill], &[Get, Lead, Fill]] {
            let (guard, origin) = (broken(operations, &fault).guard(), Origin::new());
            assert_eq!(answers(&guard, &origin).await, 1);
            assert!(guard.report().store_errors > 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_is_over_leaves_no_trace() {
    for fault in [Fault::Fails, Fault::ReplyLost, Fault::Hangs] {
        for operation in [Get, Lead, Fill] {
            let (process, origin) = (Server::new().process(), Origin::new());
            process.times(2, operation, fault.clone());
            let guard = process.guard().lease(SECOND);
            for _ in 0..4 {
                answers(&guard, &origin).await;
                tokio::time::sleep(2 * SECOND).await; // for a fill whose lease nobody could give back
            }
            assert_eq!(answers(&guard, &origin).await, 0, "it is cached by now: {operation:?} {fault:?}");
        }
    }
}

/// A fill is safe to run twice: the second one says that the first has landed.
#[tokio::test(start_paused = true)]
async fn a_fill_whose_reply_was_lost_is_sent_once_more() {
    for fault in [Fault::ReplyLost, Fault::Hangs] {
        let (process, origin) = (Server::new().process(), Origin::new());
        process.once(Fill, fault);
        let guard = process.guard();
        assert_eq!(answers(&guard, &origin).await, 1);
        assert_eq!(answers(&guard, &origin).await, 0);
        let report = guard.report();
        assert_eq!((report.fenced, report.store_errors), (0, 1), "{report:?}");
    }
}

/// What goes wrong in the first round must not be waited for in the second, though a lease lives for long.
async fn leaves_nothing_to_wait_for(process: &Process) {
    let guard = process.guard().lease(1000 * SECOND).policy(Policy::fresh_for(Duration::ZERO));
    let origin = Origin::new();
    answers(&guard, &origin).await;
    let began = tokio::time::Instant::now();
    answers(&guard, &origin).await;
    assert!(began.elapsed() <= 101 * MS, "{:?}", began.elapsed());
}

/// A lease that was granted without anybody hearing of it is given back: the next one does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_grant_was_lost_blocks_nobody() {
    for (lead, times) in [(Fault::ReplyLost, 2), (Fault::Hangs, 1)] {
        let process = Server::new().process();
        process.times(times, Lead, lead);
        leaves_nothing_to_wait_for(&process).await;
    }
}

/// Nor does one that could not even be given back: it is known for a ghost. Seen to fail (it waits) with
/// `Listener::is_ghost` ignored.
#[tokio::test(start_paused = true)]
async fn a_ghost_is_recognised_and_given_back() {
    let process = Server::new().process();
    process.times(2, Lead, Fault::ReplyLost);
    process.times(2, Abandon, Fault::Fails);
    leaves_nothing_to_wait_for(&process).await;
}

/// Seen to fail (it waits for the end of the lease) with the poll taken out of `Pilot::claim`.
#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_one_poll() {
    let server = Server::new();
    let [a, b] = [server.process(), server.process()].map(|process| {
        process.lose_wakes();
        process.guard().lease(1000 * SECOND)
    });
    let (origin, began) = (Origin::new(), tokio::time::Instant::now());
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
    assert!(began.elapsed() <= 100 * MS + SECOND, "{:?}", began.elapsed());
}

/// The operation timeout is paid once, not per caller nor per operation.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_one_operation_timeout() {
    let (guard, origin) = (broken(&[Get], &Fault::Hangs).guard(), Origin::new());
    let began = tokio::time::Instant::now();
    answers(&guard.op_timeout(250 * MS), &origin).await;
    assert!(began.elapsed() <= 100 * MS + 252 * MS, "{:?}", began.elapsed());
}

/// Seen to fail with the flights of a process joined without bound: both wait until they are aborted.
#[tokio::test(start_paused = true)]
async fn two_keys_that_need_each_other_do_not_wait_for_each_other_for_ever() {
    for operations in [&[][..], &[Lead], &[Get]] {
        let (guard, began) = (broken(operations, &Fault::Fails).guard(), tokio::time::Instant::now());
        let needs = |key: &'static str, other: &'static str| {
            let inner = guard.clone();
            guard.fetch(key, async move || {
                tokio::time::sleep(SECOND).await;
                inner.fetch(other, async || Ok::<_, Down>(1)).await
            })
        };
        let (a, b): (Result<i32, Error>, Result<i32, Error>) = tokio::join!(needs("a", "b"), needs("b", "a"));
        assert_eq!((a.expect("an answer"), b.expect("an answer")), (1, 1));
        assert!(began.elapsed() < 15 * SECOND, "one wait budget, not `max_fetch`: {:?}", began.elapsed());
    }
}

/// As 64 pages that read the same setting.
#[tokio::test(start_paused = true)]
async fn many_computations_that_share_a_part_do_not_starve_each_other_without_a_store() {
    let (guard, origin) = (broken(&[Get], &Fault::Fails).guard().bulkhead(200), Origin::new());
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
    let began = tokio::time::Instant::now();
    let answers: Vec<Result<i32, Error>> = futures_util::future::join_all(pages).await;
    assert!(answers.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(origin.calls(), 1);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

/// However often it has asked in vain.
#[tokio::test(start_paused = true)]
async fn whoever_has_polled_for_long_still_takes_what_is_fresh() {
    let server = Server::new();
    let [a, polling] = [server.process(), server.process()];
    polling.lose_wakes();
    let (a, b) = (a.guard(), polling.guard().wait(100 * SECOND));
    let stuck = tokio::spawn({
        let a = a.clone();
        async move { a.fetch_scoped("k", std::future::pending::<Result<i32, Down>>).await }
    });
    tokio::time::sleep(MS).await;
    let waiter = tokio::spawn(async move { b.fetch("k", crate::never::<i32>).await });
    tokio::time::sleep(30 * SECOND).await;
    stuck.abort();
    // Another leader, which answers before the next poll.
    assert_eq!(a.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    assert_eq!(waiter.await.expect("no panic").expect("a hit"), 1);
}

/// While another process refreshes, not every request asks whether it still does.
#[tokio::test(start_paused = true)]
async fn a_refresh_elsewhere_is_not_asked_for_by_every_request() {
    let server = Server::new();
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(60 * SECOND).jitter(0.0);
    let processes = [server.process(), server.process()];
    let [a, b] = processes.each_ref().map(|process| process.guard().policy(policy));
    let slow = || {
        a.fetch("k", async || {
            tokio::time::sleep(3 * SECOND).await;
            Ok::<_, Down>(1)
        })
    };
    assert_eq!(slow().await.expect("an answer"), 1);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(slow().await.expect("stale, refreshed behind"), 1);
    for _ in 0..1000 {
        assert_eq!(b.fetch("k", crate::never::<i32>).await.expect("stale"), 1);
        tokio::time::sleep(MS).await;
    }
    let leads = processes[1].asked(Lead);
    assert!(leads <= 25, "{leads} in a second");
}

#[tokio::test(start_paused = true)]
async fn a_scoped_fetch_does_not_wait_for_its_fill() {
    let guard = broken(&[Fill], &Fault::Hangs).guard();
    let began = tokio::time::Instant::now();
    assert_eq!(guard.fetch_scoped("k", || async { Ok::<_, Down>(1) }).await.expect("an answer"), 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// However often a key is invalidated while the store is away, one task makes up for it, and not for long.
#[tokio::test(start_paused = true)]
async fn invalidations_that_fail_do_not_pile_up() {
    let guard = broken(&[Invalidate], &Fault::Fails).guard();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..30 {
        assert_eq!(guard.invalidate("k").await.expect_err("it fails").kind(), ErrorKind::Store);
    }
    assert!(tasks() - before <= 2, "{}", tasks() - before);
    let began = tokio::time::Instant::now();
    guard.shutdown().await;
    assert!(began.elapsed() <= 12 * SECOND, "{:?}", began.elapsed());
}

/// Seen to fail (every question waits for the one that is lost) with reads joined however old they are.
#[tokio::test(start_paused = true)]
async fn one_read_that_is_never_answered_is_not_waited_for_by_everybody_to_come() {
    let process = Server::new().process();
    process.once(Get, Fault::Hangs);
    let guard = process.guard().op_timeout(2 * SECOND);
    let ask = || {
        let guard = guard.clone();
        async move { guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer") }
    };
    for _ in 0..100 {
        tokio::spawn(ask());
        tokio::time::sleep(100 * MS).await;
    }
    let report = guard.report();
    // Two seconds of those who ask before it is given up, and one until the breaker closes.
    assert!(report.breaker_opened == 1 && report.hits >= 65, "{report:?}");
}

/// A flight that nobody drives: its caller holds the future and does not poll it.
#[tokio::test(start_paused = true)]
async fn whoever_joins_a_scoped_flight_that_is_not_polled_is_not_stuck() {
    let guard = broken(&[Get], &Fault::Fails).guard().max_fetch(2 * SECOND);
    let slow = || async {
        tokio::time::sleep(SECOND).await;
        Ok::<_, Down>(1)
    };
    let mut held = Box::pin(guard.fetch_scoped("k", slow));
    assert!(futures_util::poll!(&mut held).is_pending());
    let joined = tokio::time::timeout(60 * SECOND, guard.fetch("k", async || Ok::<_, Down>(2))).await;
    assert_eq!(joined.expect("not stuck").expect("an answer"), 2);
}
