//! A store that does not do as it is asked.

use crate::{Down, MS, SECOND, support::Origin};
use stampede_guard::{
    MemoryStore, Policy, StampedeGuard,
    store::{
        Address, Answer, Ask, Entry, Filled, Hold, Lead, Lease, Listener, Right, Store, StoreError, Token, Tombstone,
        Wakes, Write,
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// What goes wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// It is not done, and says so.
    Fails,
    /// It is done, but that is not heard of: the connection broke.
    ReplyLost,
    /// It is done, and never answers.
    Hangs,
}

/// The embedded store behind a wire that breaks: for its first `times` operations of each kind.
struct Wire {
    store: MemoryStore,
    /// Nobody is ever woken over it.
    deaf: Option<Wakes>,
    get: Fault,
    lead: Fault,
    fill: Fault,
    times: usize,
    gets: AtomicUsize,
    leads: AtomicUsize,
    fills: AtomicUsize,
}

impl Default for Wire {
    fn default() -> Self {
        let (get, lead, fill) = (Fault::None, Fault::None, Fault::None);
        let (gets, leads, fills) = Default::default();
        Self { store: MemoryStore::default(), deaf: None, get, lead, fill, times: usize::MAX, gets, leads, fills }
    }
}

impl Wire {
    fn over<'a, T: Send + 'a>(
        &'a self,
        fault: Fault,
        done: &AtomicUsize,
        operation: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        let fault = if done.fetch_add(1, SeqCst) < self.times { fault } else { Fault::None };
        Box::pin(async move {
            match fault {
                Fault::None => operation().await,
                Fault::Fails => Err(StoreError::refused("it is full")),
                Fault::ReplyLost => operation().await.and(Err(StoreError::disconnected("broken pipe"))),
                Fault::Hangs => {
                    operation().await?;
                    std::future::pending().await
                }
            }
        })
    }
}

impl Store for Wire {
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        self.over(self.get, &self.gets, || self.store.get(at))
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        self.over(self.lead, &self.leads, move || self.store.lead(at, ask))
    }

    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        self.over(self.fill, &self.fills, move || self.store.fill(at, right, writes))
    }

    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold> {
        self.store.abandon(at, token, tombstone)
    }

    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold> {
        self.store.extend(at, lease, span)
    }

    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()> {
        self.store.invalidate(at)
    }

    fn listen(&self, at: &Address) -> Listener {
        self.deaf.as_ref().map_or_else(|| self.store.listen(at), |deaf| deaf.listen(at))
    }
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
        for wire in [
            Wire { get: fault, ..Wire::default() },
            Wire { lead: fault, ..Wire::default() },
            Wire { fill: fault, ..Wire::default() },
            Wire { get: fault, lead: fault, fill: fault, ..Wire::default() },
        ] {
            let (guard, origin) = (StampedeGuard::new(wire), Origin::new());
            assert_eq!(answers(&guard, &origin).await, 1);
            assert!(guard.report().store_errors > 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_is_over_leaves_no_trace() {
    for fault in [Fault::Fails, Fault::ReplyLost, Fault::Hangs] {
        for wire in [
            Wire { get: fault, times: 2, ..Wire::default() },
            Wire { lead: fault, times: 2, ..Wire::default() },
            Wire { fill: fault, times: 2, ..Wire::default() },
        ] {
            let which = format!("{:?}", (wire.get, wire.lead, wire.fill));
            let (guard, origin) = (StampedeGuard::new(wire).lease(SECOND), Origin::new());
            for _ in 0..3 {
                answers(&guard, &origin).await;
                tokio::time::sleep(2 * SECOND).await; // for a fill whose lease nobody could give back
            }
            assert_eq!(answers(&guard, &origin).await, 0, "it is cached by now: {which}");
        }
    }
}

/// A fill is safe to run twice: the second one says that the first has landed.
#[tokio::test(start_paused = true)]
async fn a_fill_whose_reply_was_lost_is_sent_once_more() {
    for fault in [Fault::ReplyLost, Fault::Hangs] {
        let (guard, origin) = (StampedeGuard::new(Wire { fill: fault, times: 1, ..Wire::default() }), Origin::new());
        assert_eq!(answers(&guard, &origin).await, 1);
        assert_eq!(answers(&guard, &origin).await, 0);
        let report = guard.report();
        assert_eq!((report.fenced, report.store_errors), (0, 1), "{report:?}");
    }
}

/// A lease that was granted without anybody hearing of it is given back: the next one does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_grant_was_lost_blocks_nobody() {
    for (fault, times) in [(Fault::ReplyLost, 2), (Fault::Hangs, 1)] {
        let wire = Wire { lead: fault, times, ..Wire::default() };
        let guard = StampedeGuard::new(wire).lease(1000 * SECOND).policy(Policy::fresh_for(Duration::ZERO));
        let origin = Origin::new();
        answers(&guard, &origin).await;
        let began = tokio::time::Instant::now();
        answers(&guard, &origin).await;
        assert!(began.elapsed() <= 101 * MS, "{:?}", began.elapsed());
    }
}

/// Seen to fail (it waits for the end of the lease) with the poll taken out of `Pilot::claim`.
#[tokio::test(start_paused = true)]
async fn a_lost_wake_up_costs_one_poll() {
    let store = Arc::new(Wire { deaf: Some(Wakes::new()), ..Wire::default() });
    let [a, b] = [StampedeGuard::new(store.clone()), StampedeGuard::new(store)].map(|guard| guard.lease(1000 * SECOND));
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
    let (guard, origin) = (StampedeGuard::new(Wire { get: Fault::Hangs, ..Wire::default() }), Origin::new());
    let began = tokio::time::Instant::now();
    answers(&guard.op_timeout(250 * MS), &origin).await;
    assert!(began.elapsed() <= 100 * MS + 252 * MS, "{:?}", began.elapsed());
}
