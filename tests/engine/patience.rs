//! How long callers wait for others, and what they get instead.

use crate::{Down, MS, SECOND, never, support::Origin};
use stampede_guard::{
    AfterWait, Error, ErrorKind, MemoryStore, Policy, StampedeGuard,
    testing::{Fault, Operation::Fill, Server},
};
use std::{
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// Somebody who computes the key until the origin lets him.
async fn leading(guard: &StampedeGuard, origin: &Origin) -> JoinHandle<Result<usize, Error>> {
    let (guard, calls, work) = (guard.clone(), origin.calls(), origin.clone());
    let leader = tokio::spawn(async move { guard.fetch("k", async move || Ok::<_, Down>(work.call().await)).await });
    origin.arrived(calls + 1).await;
    leader
}

fn soon(span: Duration) -> StdInstant {
    (Instant::now() + span).into_std()
}

/// In the process of the leader, and in another one.
#[tokio::test(start_paused = true)]
async fn who_has_waited_enough_is_refused_if_that_is_asked_for() {
    let store = Arc::new(MemoryStore::default());
    let guards = [(); 2].map(|()| StampedeGuard::new(store.clone()).wait(SECOND).after_wait(AfterWait::Reject));
    let origin = Origin::gated();
    let leader = leading(&guards[0], &origin).await;
    for guard in &guards {
        let asked = Instant::now();
        let error = guard.fetch("k", never::<usize>).await.expect_err("refused");
        assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Overloaded, Some(SECOND)));
        assert!((800 * MS..=1200 * MS).contains(&asked.elapsed()), "{:?}", asked.elapsed());
        assert_eq!((guard.report().shed, guard.report().refused), (1, 1));
    }
    origin.open();
    assert_eq!(leader.await.expect("no panic").expect("an answer"), 1);
}

/// A setting is that of a clone, and so of its callers: who asks over another clone is not refused with them.
#[tokio::test(start_paused = true)]
async fn who_joined_somebody_who_is_refused_waits_on() {
    let store = Arc::new(MemoryStore::default());
    let origin = Origin::gated();
    let leader = leading(&StampedeGuard::new(store.clone()), &origin).await;
    let patient = StampedeGuard::new(store).wait(60 * SECOND);
    let impatient = patient.clone().wait(SECOND).after_wait(AfterWait::Reject);
    let refused = impatient.fetch("k", never::<usize>);
    let joined = patient.fetch("k", never::<usize>);
    let release = async {
        sleep(10 * SECOND).await;
        origin.open();
    };
    let (refused, joined, ()) = tokio::join!(refused, joined, release);
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Overloaded);
    assert_eq!(joined.expect("an answer"), 1);
    leader.await.expect("no panic").expect("an answer");
}

/// Seen to fail (six are answered) without the cap.
#[tokio::test(start_paused = true)]
async fn beyond_so_many_waiters_callers_are_refused_at_once() {
    let (guard, origin) = (StampedeGuard::in_memory().max_waiters(3), Origin::gated());
    let leader = leading(&guard, &origin).await;
    let callers = (0..5).map(|_| guard.fetch("k", never::<usize>));
    let asked = Instant::now();
    let release = async {
        sleep(SECOND).await;
        origin.open();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).map(Error::kind).collect();
    assert_eq!(refused, [ErrorKind::Overloaded; 2]);
    assert!(asked.elapsed() < 2 * SECOND);
    assert_eq!(leader.await.expect("no panic").expect("an answer"), 1);
    assert_eq!((guard.report().coalesced, guard.report().shed), (3, 2));
}

/// An entry that took two seconds to compute, and is computed again.
async fn two_seconds_of_work(policy: Policy) -> (StampedeGuard, JoinHandle<Result<i32, Error>>) {
    let guard = StampedeGuard::in_memory().policy(policy.jitter(0.0));
    let work = async || {
        sleep(2 * SECOND).await;
        Ok::<_, Down>(1)
    };
    guard.fetch("k", work).await.expect("an answer");
    sleep(700 * MS).await;
    let leader = {
        let guard = guard.clone();
        tokio::spawn(async move { guard.fetch("k", work).await })
    };
    sleep(100 * MS).await;
    (guard, leader)
}

/// Seen to fail (he waits until his deadline) without a look at the cost.
#[tokio::test(start_paused = true)]
async fn who_cannot_be_answered_in_time_does_not_wait() {
    let (guard, leader) = two_seconds_of_work(Policy::fresh_for(500 * MS)).await;
    let asked = Instant::now();
    let hurried = guard.clone().deadline(soon(SECOND));
    assert_eq!(hurried.fetch("k", never::<i32>).await.expect_err("too late").kind(), ErrorKind::Overloaded);
    assert_eq!(asked.elapsed(), Duration::ZERO);
    let patient = guard.clone().deadline(soon(3 * SECOND));
    assert_eq!(patient.fetch("k", never::<i32>).await.expect("in time"), 1);
    assert_eq!(leader.await.expect("no panic").expect("an answer"), 1);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_be_answered_in_time_gets_what_may_stand_in() {
    let policy = Policy::fresh_for(500 * MS).stale_if_error(60 * SECOND);
    let (guard, leader) = two_seconds_of_work(policy).await;
    let asked = Instant::now();
    let hurried = guard.clone().deadline(soon(SECOND));
    assert_eq!(hurried.fetch("k", never::<i32>).await.expect("the stale one"), 1);
    assert_eq!((asked.elapsed(), guard.report().stale), (Duration::ZERO, 1));
    leader.await.expect("no panic").expect("an answer");
}

/// Where nothing is known of the cost, he waits for as long as he can.
#[tokio::test(start_paused = true)]
async fn nobody_waits_beyond_his_deadline() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let leader = leading(&guard, &origin).await;
    let asked = Instant::now();
    let hurried = guard.clone().deadline(soon(SECOND));
    assert_eq!(hurried.fetch("k", never::<usize>).await.expect_err("too late").kind(), ErrorKind::Overloaded);
    assert_eq!(asked.elapsed(), SECOND);
    origin.open();
    leader.await.expect("no panic").expect("an answer");
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_its_own_caller_cannot_wait_for_goes_on() {
    let guard = StampedeGuard::in_memory();
    let work = async || {
        sleep(2 * SECOND).await;
        Ok::<_, Down>(1)
    };
    let hurried = guard.clone().deadline(soon(SECOND));
    assert_eq!(hurried.fetch("k", work).await.expect_err("too late").kind(), ErrorKind::Overloaded);
    guard.shutdown().await;
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("a hit"), 1);
}

/// Seen to fail (it waits for the budget) when what runs within its caller waits for others as one that outlives him.
#[tokio::test(start_paused = true)]
async fn nor_does_what_runs_within_its_caller_wait_for_another_process() {
    let store = Arc::new(MemoryStore::default());
    let origin = Origin::gated();
    let leader = leading(&StampedeGuard::new(store.clone()), &origin).await;
    let asked = Instant::now();
    let hurried = StampedeGuard::new(store).deadline(soon(SECOND));
    let error = hurried.fetch_scoped("k", never::<usize>).await.expect_err("too late");
    assert_eq!((error.kind(), asked.elapsed()), (ErrorKind::Overloaded, SECOND));
    origin.open();
    leader.await.expect("no panic").expect("an answer");
}

/// Seen to fail (the only one who waits is refused) when a leader with a deadline has a place among those who wait.
#[tokio::test(start_paused = true)]
async fn a_leader_with_a_deadline_is_not_one_of_those_who_wait() {
    let guard = StampedeGuard::in_memory().max_waiters(1);
    let leader = guard.clone().deadline(soon(10 * SECOND));
    let led = leader.fetch("k", async || {
        sleep(SECOND).await;
        Ok::<_, Down>(1)
    });
    let waited = async {
        sleep(MS).await;
        guard.fetch("k", never::<i32>).await
    };
    let (led, waited) = tokio::join!(led, waited);
    assert_eq!((led.expect("an answer"), waited.expect("an answer")), (1, 1));
}

/// Seen to fail (he gets the stale one) with a look at the cost only.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_being_filled_is_in_time() {
    let process = Server::new().process();
    let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
    let guard = process.guard().policy(policy);
    let slow = async || {
        sleep(10 * SECOND).await;
        Ok::<_, Down>(1)
    };
    guard.fetch("k", slow).await.expect("an answer");
    sleep(2 * SECOND).await;
    process.always(Fill, Fault::ReplyDelayed(100 * MS));
    guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer");
    let hurried = guard.deadline(soon(SECOND));
    assert_eq!(hurried.fetch("k", never::<i32>).await.expect("it is there"), 2);
}
