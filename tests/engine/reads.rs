//! Reads of embedded stores.

use crate::{Down, MS};
use futures_util::future::join_all;
use stampede_guard::{
    MemoryStore, StampedeGuard,
    store::{Address, Answer, Ask, Entry, Filled, Hold, Lead, Lease, Listener, Right, Store, Token, Tombstone, Write},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::sleep;

/// Takes its time to read, as one on a disk does.
#[derive(Default)]
struct Slow {
    store: MemoryStore,
    reads: AtomicUsize,
}

impl Store for Slow {
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        self.reads.fetch_add(1, SeqCst);
        Box::pin(async move {
            sleep(MS).await;
            self.store.get(at).await
        })
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        self.store.lead(at, ask)
    }

    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        self.store.fill(at, right, writes)
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

    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, at: &Address) -> Listener {
        self.store.listen(at)
    }
}

/// One more at most, by which it is found out that they take their time. Seen to fail with 51 reads where each caller finds
/// that out for itself.
#[tokio::test(start_paused = true)]
async fn those_that_take_their_time_are_shared() {
    let store = Arc::new(Slow::default());
    let guard = StampedeGuard::new(store.clone());
    for answer in join_all((0..50).map(|_| guard.fetch("k", async || Ok::<_, Down>(1)))).await {
        assert_eq!(answer.expect("an answer"), 1);
    }
    assert!(store.reads.load(SeqCst) <= 2, "{} reads", store.reads.load(SeqCst));
}
