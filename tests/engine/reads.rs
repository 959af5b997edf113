//! Reads of embedded stores.

use crate::{Down, MS};
use futures_util::future::join_all;
use stampede_guard::{
    MemoryStore, StampedeGuard,
    store::{
        Answer, CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, Lease, LeaseReply, LeaseRequest,
        LeaseStatus, Listener, Store, Token, Write,
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::sleep;

/// A memory store whose reads take a millisecond, like those of a disk.
#[derive(Default)]
struct Slow {
    store: MemoryStore,
    reads: AtomicUsize,
}

impl Store for Slow {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        self.reads.fetch_add(1, SeqCst);
        Box::pin(async move {
            sleep(MS).await;
            self.store.get(key).await
        })
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, ask: LeaseRequest) -> Answer<'a, LeaseReply> {
        self.store.get_or_lease(key, ask)
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, right: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        self.store.fill(key, right, writes)
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        self.store.release(key, token, failure_marker)
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        self.store.extend(key, lease, span)
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, ()> {
        self.store.invalidate(keys)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.store.listen(key)
    }
}

/// At most two reads: the first one shows that reads are slow. Seen to fail with 51 reads when each caller has to find
/// that out.
#[tokio::test(start_paused = true)]
async fn slow_reads_of_an_embedded_store_are_shared() {
    let store = Arc::new(Slow::default());
    let guard = StampedeGuard::new(store.clone());
    for answer in join_all((0..50).map(|_| guard.fetch("k", async || Ok::<_, Down>(1)))).await {
        assert_eq!(answer.expect("an answer"), 1);
    }
    assert!(store.reads.load(SeqCst) <= 2, "{} reads", store.reads.load(SeqCst));
}
