//! A fake of the expensive origin.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, watch},
    time,
};

/// An origin that counts its calls and lets them through when the test says so. Clones share one count.
#[derive(Clone, Debug)]
pub struct Origin(Arc<State>);

#[derive(Debug)]
struct State {
    calls: watch::Sender<usize>,
    running: AtomicUsize,
    peak: AtomicUsize,
    /// A closed semaphore means that every call passes.
    gate: Semaphore,
}

impl Origin {
    /// Creates an origin that answers at once, or after the time of its work.
    pub fn new() -> Self {
        let origin = Self::gated();
        origin.open();
        origin
    }

    /// Creates an origin that holds every call until [`release`](Self::release) or [`open`](Self::open).
    pub fn gated() -> Self {
        Self(Arc::new(State {
            calls: watch::Sender::new(0),
            running: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        }))
    }

    /// Makes one call and returns its number, counted from 1.
    pub async fn call(&self) -> usize {
        self.work(Duration::ZERO).await
    }

    /// Makes one call that takes `cost` once the gate lets it through; returns its number, counted from 1.
    pub async fn work(&self, cost: Duration) -> usize {
        let running = Running::enter(&self.0);
        if let Ok(permit) = self.0.gate.acquire().await {
            permit.forget();
        }
        if !cost.is_zero() {
            time::sleep(cost).await;
        }
        running.number
    }

    /// Returns the number of calls so far, including calls that were dropped half-way.
    pub fn calls(&self) -> usize {
        *self.0.calls.borrow()
    }

    /// Returns the number of calls that have neither answered nor been dropped.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of calls that ever ran at once.
    pub fn peak(&self) -> usize {
        self.0.peak.load(Ordering::SeqCst)
    }

    /// Returns once there have been `n` calls in all; panics if there are fewer after 10 s.
    pub async fn arrived(&self, n: usize) {
        let mut calls = self.0.calls.subscribe();
        let arrived = time::timeout(BOUND, calls.wait_for(|&calls| calls >= n)).await;
        assert!(arrived.is_ok(), "{n} calls expected at the origin, {} came within {BOUND:?}", self.calls());
    }

    /// Lets `n` calls through, including calls to come.
    pub fn release(&self, n: usize) {
        self.0.gate.add_permits(n);
    }

    /// Lets every call through from now on.
    pub fn open(&self) {
        self.0.gate.close();
    }
}

/// A running call. A call that is dropped or panics also leaves the count.
struct Running<'a> {
    state: &'a State,
    number: usize,
}

impl<'a> Running<'a> {
    fn enter(state: &'a State) -> Self {
        let running = state.running.fetch_add(1, Ordering::SeqCst) + 1;
        state.peak.fetch_max(running, Ordering::SeqCst);
        let mut number = 0;
        state.calls.send_modify(|calls| {
            *calls += 1;
            number = *calls;
        });
        Self { state, number }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.state.running.fetch_sub(1, Ordering::SeqCst);
    }
}

const BOUND: Duration = Duration::from_secs(10);
