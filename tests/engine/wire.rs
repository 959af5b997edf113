//! A store behind a wire that breaks.

use crate::support::Origin;
use stampede_guard::{
    MemoryStore,
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
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    None,
    /// It is not done, and says so.
    Fails,
    /// It is done, but that is not heard of: the connection broke.
    ReplyLost,
    /// It is done, and never answers.
    Hangs,
    /// From the n-th on (counted from 0) it waits at this gate before it is done.
    Gated(usize, Origin),
    /// From the n-th on it is done, and its answer waits at this gate.
    Late(usize, Origin),
}

/// The embedded store behind a wire that breaks: for its first `times` operations of each kind.
pub(crate) struct Wire {
    pub(crate) store: Arc<MemoryStore>,
    /// Nobody is ever woken over it.
    pub(crate) deaf: Option<Wakes>,
    pub(crate) get: Fault,
    pub(crate) lead: Fault,
    pub(crate) fill: Fault,
    pub(crate) invalidate: Fault,
    pub(crate) abandon: Fault,
    pub(crate) times: usize,
    pub(crate) done: [AtomicUsize; 5],
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            store: Arc::default(),
            deaf: None,
            get: Fault::None,
            lead: Fault::None,
            fill: Fault::None,
            invalidate: Fault::None,
            abandon: Fault::None,
            times: usize::MAX,
            done: Default::default(),
        }
    }
}

impl Wire {
    /// How often it was read.
    pub(crate) fn reads(&self) -> usize {
        self.done[0].load(SeqCst)
    }

    /// How often it was asked who leads.
    pub(crate) fn leads(&self) -> usize {
        self.done[1].load(SeqCst)
    }

    fn over<'a, T: Send + 'a>(
        &'a self,
        fault: &'a Fault,
        kind: usize,
        operation: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        let number = self.done[kind].fetch_add(1, SeqCst);
        let fault = if number < self.times { fault } else { &Fault::None };
        Box::pin(async move {
            match fault {
                Fault::None => operation().await,
                Fault::Fails => Err(StoreError::refused("it is full")),
                Fault::ReplyLost => operation().await.and(Err(StoreError::disconnected("broken pipe"))),
                Fault::Hangs => {
                    operation().await?;
                    std::future::pending().await
                }
                Fault::Gated(from, gate) => {
                    if number >= *from {
                        gate.call().await;
                    }
                    operation().await
                }
                Fault::Late(from, gate) => {
                    let answer = operation().await;
                    if number >= *from {
                        gate.call().await;
                    }
                    answer
                }
            }
        })
    }
}

impl Store for Wire {
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        self.over(&self.get, 0, || self.store.get(at))
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        self.over(&self.lead, 1, move || self.store.lead(at, ask))
    }

    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        self.over(&self.fill, 2, move || self.store.fill(at, right, writes))
    }

    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()> {
        self.over(&self.invalidate, 3, || self.store.invalidate(at))
    }

    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold> {
        self.over(&self.abandon, 4, move || self.store.abandon(at, token, tombstone))
    }

    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold> {
        self.store.extend(at, lease, span)
    }

    fn listen(&self, at: &Address) -> Listener {
        self.deaf.as_ref().map_or_else(|| self.store.listen(at), |deaf| deaf.listen(at))
    }
}
