//! After an invalidation nobody gets what was computed before it.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, eventually, herd},
};
use stampede_guard::{
    ErrorKind, MemoryStore, Policy, StampedeGuard,
    testing::{
        Fault, Gate,
        Operation::{Fill, Get, Lead},
        Process, Server,
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// A process which is told of nothing, as when all wake-ups are lost.
fn deaf(server: &Server) -> Process {
    let process = server.process();
    process.lose_wakes();
    process
}

/// Seen to fail with the flights not forgotten by `Place::invalidate`: the next caller joins the old one.
#[tokio::test]
async fn a_computation_that_began_before_is_neither_joined_nor_stored() {
    let (guard, origin) = (deaf(&Server::new()).guard(), Origin::gated());
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
        guard.invalidate("k").await.expect("acknowledged");
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
    guard.shutdown().await;
    assert_eq!(ask().await.expect("a hit"), after, "the late fill was refused");
    assert_eq!(guard.report().fenced, 1);
}

/// Told by another guard over the same store, as by another process. Seen to fail with nobody listening during the fill.
#[tokio::test]
async fn what_is_being_filled_is_not_joined_after_it() {
    let (server, gate) = (Server::new(), Gate::closed());
    let (process, far) = (server.process(), server.process().guard());
    process.once(Fill, Fault::Held(gate.clone()));
    let near = process.guard().op_timeout(100 * SECOND);
    assert_eq!(near.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    gate.arrived(1).await;
    far.invalidate("k").await.expect("acknowledged");
    eventually("the flight is told", async || near.in_flight() == 0).await;
    assert_eq!(near.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
    gate.open();
    near.shutdown().await;
    assert_eq!(near.report().fenced, 1);
}

/// Seen to fail with `seen_alive` ignored in `Pilot::keep_seen`, and with stale-if-error before `abandon`.
#[tokio::test(start_paused = true)]
async fn a_stale_value_does_not_survive_it() {
    let policy = Policy::fresh_for(SECOND).stale_if_error(100 * SECOND).jitter(0.0);
    let (guard, origin) = (StampedeGuard::in_memory().policy(policy).tombstone(Duration::ZERO), Origin::gated());
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

/// Also where the value is known to another guard over the same store, as to another process.
#[tokio::test(start_paused = true)]
async fn a_refresh_in_another_process_does_not_bring_it_back() {
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
    a.shutdown().await;
    for guard in [&a, &b] {
        assert_eq!(guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("new"), 2);
    }
}

/// It is invalidated faster than it is computed: the second time a flight computes for its own process.
#[tokio::test(start_paused = true)]
async fn a_storm_of_invalidations_starves_nobody() {
    let store = Arc::new(MemoryStore::default());
    let [a, b] = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)].map(|guard| guard.wait(1000 * SECOND));
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

/// A version counter as origin, bumped before each invalidation: whoever asks afterwards sees at least that version.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_after_it_sees_what_was_written_before_it() {
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
    let fetch = async move || {
        tokio::time::sleep(takes * SECOND).await;
        Ok::<_, Down>(value)
    };
    guard.fetch("k", fetch).await.expect("an answer")
}

/// It was read, then invalidated elsewhere, and then the question who leads said so. Seen to fail with the entry with
/// which a flight began served to those who joined it and have waited enough.
#[tokio::test(start_paused = true)]
async fn what_a_flight_began_with_is_not_served_once_it_is_gone() {
    let (server, gate) = (Server::new(), Gate::closed());
    let (elsewhere, process) = (server.process().guard(), server.process());
    let policy = Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0);
    let guard = process.guard().policy(policy).op_timeout(60 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    process.always(Lead, Fault::Held(gate.clone()));
    tokio::time::sleep(2 * SECOND).await;
    let first = tokio::spawn(slowly(guard.clone(), 30, 1));
    gate.arrived(1).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    gate.open();
    tokio::time::sleep(SECOND).await;
    assert_eq!(slowly(guard, 0, 1).await, 1, "asked a second after the invalidation");
    assert_eq!(first.await.expect("no panic"), 1);
}

/// One question who leads fails, and the flight computes for its process. Seen to fail with such a flight left among
/// those of the fleet.
#[tokio::test(start_paused = true)]
async fn a_flight_that_went_local_does_not_hide_what_is_stored_meanwhile() {
    let server = Server::new();
    let (elsewhere, process) = (server.process().guard(), deaf(&server));
    process.once(Lead, Fault::Fails);
    let guard = process.guard();
    let old = tokio::spawn(slowly(guard.clone(), 8, 0));
    tokio::time::sleep(SECOND).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    assert_eq!(slowly(elsewhere, 0, 1).await, 1);
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("a hit"), 1);
    assert_eq!(old.await.expect("no panic"), 0);
}

/// Whoever has waited enough shares a call with others of his process, but not one that began before he asked. Seen to
/// fail without `since`.
#[tokio::test(start_paused = true)]
async fn a_local_flight_is_not_joined_by_those_who_ask_after_an_invalidation() {
    for opener_waits in [5, 50] {
        let server = Server::new();
        let [guard, elsewhere] = [deaf(&server), server.process()].map(|process| process.guard());
        tokio::spawn(slowly(elsewhere.clone(), 59, 0));
        tokio::time::sleep(10 * MS).await;
        tokio::spawn(slowly(guard.clone().wait(opener_waits * SECOND), 30, 0));
        tokio::time::sleep(10 * MS).await;
        tokio::spawn(slowly(guard.clone().wait(2 * SECOND), 30, 0));
        tokio::time::sleep(10 * SECOND).await;
        elsewhere.invalidate("k").await.expect("acknowledged");
        tokio::spawn(slowly(elsewhere, 50, 1));
        tokio::time::sleep(SECOND).await;
        assert_eq!(slowly(guard.wait(4 * SECOND), 0, 1).await, 1);
    }
}

/// A lookup is under way while the entry is refreshed, and the refresh is told of the invalidation. Seen to fail with
/// `Flight::gone` that leaves lookups in the table.
#[tokio::test(start_paused = true)]
async fn a_lookup_is_not_joined_once_its_process_was_told_of_an_invalidation() {
    let server = Server::new();
    let (elsewhere, process) = (server.process().guard(), server.process());
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(600 * SECOND).jitter(0.0);
    let guard = process.guard().policy(policy).op_timeout(60 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(slowly(guard.clone(), 30, 1).await, 0, "stale, and refreshed behind");
    process.once(Get, Fault::ReplyDelayed(SECOND));
    let before = tokio::spawn(slowly(guard.clone(), 0, 1));
    tokio::time::sleep(MS).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    tokio::time::sleep(MS).await;
    let after = tokio::spawn(slowly(guard, 0, 1));
    assert_eq!(after.await.expect("no panic"), 1);
    assert_eq!(before.await.expect("no panic"), 0, "asked before, and its answer was late");
}

/// The same while the refresh has yet to hear who leads. Seen to fail with nobody listening meanwhile.
#[tokio::test(start_paused = true)]
async fn a_lookup_is_not_joined_once_a_process_that_asks_to_lead_was_told() {
    let server = Server::new();
    let (elsewhere, process) = (server.process().guard(), server.process());
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(600 * SECOND).jitter(0.0);
    let guard = process.guard().policy(policy).op_timeout(60 * SECOND).lease(60 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    process.once(Lead, Fault::ReplyDelayed(10 * SECOND));
    assert_eq!(slowly(guard.clone(), 30, 1).await, 0, "stale, and refreshed behind");
    process.once(Get, Fault::ReplyDelayed(SECOND));
    let before = tokio::spawn(slowly(guard.clone(), 0, 1));
    tokio::time::sleep(MS).await;
    elsewhere.invalidate("k").await.expect("acknowledged");
    tokio::time::sleep(MS).await;
    assert_eq!(slowly(guard, 0, 1).await, 1);
    assert_eq!(before.await.expect("no panic"), 0, "asked before, and its answer was late");
}

/// The flight has learnt that another entry is there, and asks again. Seen to fail with `Pilot::hit` that leaves the entry
/// of before with those who joined.
#[tokio::test(start_paused = true)]
async fn what_another_entry_has_replaced_is_not_served_to_those_who_waited_enough() {
    let server = Server::new();
    let policy = Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0);
    let [leader, writer] = [(); 2].map(|()| server.process().guard());
    let process = deaf(&server);
    process.times(3, Lead, Fault::ReplyDelayed(Duration::ZERO)); // it leads; it waits; it learns of the other entry
    process.always(Lead, Fault::Held(Gate::closed()));
    let guard = process.guard().policy(policy).op_timeout(600 * SECOND);
    assert_eq!(slowly(guard.clone(), 0, 0).await, 0);
    tokio::time::sleep(2 * SECOND).await;
    tokio::spawn(slowly(leader.policy(policy), 600, 9));
    tokio::time::sleep(MS).await;
    tokio::spawn(slowly(guard.clone().wait(600 * SECOND), 0, 9));
    tokio::time::sleep(MS).await;
    let joined = tokio::spawn(slowly(guard.wait(6 * SECOND), 0, 2));
    tokio::time::sleep(MS).await;
    writer.invalidate("k").await.expect("acknowledged");
    assert_eq!(slowly(writer.policy(Policy::fresh_for(Duration::ZERO).stale_if_error(600 * SECOND)), 0, 1).await, 1);
    assert_eq!(joined.await.expect("no panic"), 2);
}

/// A failover takes longer than that. Seen to fail with ten seconds counted from the end of the outage.
#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_just_before_an_outage_is_sent_again_however_long_that_takes() {
    use stampede_guard::testing::{Operation, Server};
    let process = Server::new().process();
    let guard = process.guard();
    let other = async || guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.invalidate("old").await.expect("acknowledged");
    tokio::time::sleep(60 * SECOND).await;
    other().await;
    guard.invalidate("k").await.expect("acknowledged");
    process.kill();
    tokio::time::sleep(60 * SECOND).await;
    process.revive();
    other().await;
    guard.shutdown().await;
    assert_eq!(process.asked(Operation::Invalidate), 3, "one of them again");
}

/// Seen to fail when only what is acknowledged at once is remembered.
#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_behind_is_sent_again_as_well_and_once_per_outage() {
    use stampede_guard::testing::{Fault, Operation::Invalidate, Server};
    let process = Server::new().process();
    let guard = process.guard();
    process.times(2, Invalidate, Fault::RequestLost);
    guard.invalidate("k").await.expect_err("not acknowledged");
    guard.shutdown().await;
    for outage in 1..=3 {
        process.kill();
        tokio::time::sleep(60 * SECOND).await;
        process.revive();
        guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.shutdown().await;
        assert_eq!(process.asked(Invalidate), 3 + outage);
    }
}

/// The guard that dropped it asks who leads, and gets the entry that way. Seen to fail with what is found then served, and
/// not refreshed.
#[tokio::test(start_paused = true)]
async fn what_another_process_has_stored_since_is_refreshed_when_it_is_stale() {
    let store = Arc::new(MemoryStore::default());
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(100 * SECOND).jitter(0.0);
    let [a, b] = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)].map(|guard| guard.policy(policy));
    a.invalidate("k").await.expect("acknowledged");
    b.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    b.shutdown().await;
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(a.fetch("k", async || Ok::<_, Down>(2)).await.expect("stale"), 1);
    a.shutdown().await;
    assert_eq!(b.fetch("k", never::<i32>).await.expect("refreshed"), 2);
}
