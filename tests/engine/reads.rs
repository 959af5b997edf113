//! Lookups: no caller waits for the lookup of another caller.

use crate::{Down, MS};
use futures_util::future::join_all;
use stampede_guard::{
    ErrorKind, MemoryStore, OutageCacheConfig, StampedeGuard,
    store::{
        Answer, CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, Lease, LeaseReply, LeaseRequest,
        LeaseStatus, Leaves, Listener, Store, Token, Write,
    },
    testing::{FakeRedis, Fault, Operation},
};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// A memory store whose reads take a millisecond, as on a disk.
#[derive(Default)]
struct Slow {
    store: MemoryStore,
}

impl Store for Slow {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
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

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        self.store.invalidate(keys, leaves)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.store.listen(key)
    }
}

/// Seen to fail (answers after a store timeout) when a caller waits for the lookup of another caller.
#[tokio::test(start_paused = true)]
async fn unpolled_lookup_delays_no_other_caller() {
    let guard = StampedeGuard::new(Arc::new(Slow::default())).store_timeout(250 * MS);
    let mut held = pin!(guard.fetch("k", async || Ok::<_, Down>(1)));
    assert!(futures_util::poll!(&mut held).is_pending());
    for answer in [2, 3] {
        let began = Instant::now();
        assert_eq!(guard.fetch("k", async move || Ok::<_, Down>(answer)).await.expect("an answer"), 2);
        assert!(began.elapsed() < 10 * MS, "{:?}", began.elapsed());
    }
    guard.drain().await;
    assert_eq!(held.await.expect("an answer"), 2);
}

/// A task that asks again after each answer opens the next lookup before its waiters are polled. Seen to fail (no
/// answer while the hits go on) when a caller that has looked up the entry joins another lookup.
#[tokio::test(start_paused = true)]
async fn caller_that_must_lead_is_not_held_up_by_hits() {
    let guard = StampedeGuard::new(Arc::new(Slow::default()));
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.drain().await;
    let hits = {
        let guard = guard.clone();
        tokio::spawn(async move { while guard.fetch("k", async || Ok::<_, Down>(1)).await.is_ok() {} })
    };
    sleep(10 * MS).await;
    let other = guard.fetch("k", async || Ok::<_, Down>("another type".to_owned()));
    let answer = tokio::time::timeout(100 * MS, other).await.expect("it leads");
    assert_eq!(answer.expect("an answer"), "another type");
    hits.abort();
}

/// Seen to fail (rejections) when the wait timeout limits a lookup.
#[tokio::test(start_paused = true)]
async fn shared_lookup_is_no_wait_for_a_fetch() {
    let guard = StampedeGuard::new(Arc::new(Slow::default())).wait_timeout(Duration::ZERO);
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.drain().await;
    for answer in join_all((0..5).map(|_| guard.fetch("k", async || Ok::<_, Down>(2)))).await {
        assert_eq!(answer.expect("a hit"), 1);
    }
    assert_eq!((guard.stats().hits, guard.stats().wait_timeouts), (5, 0));
}

/// Both callers look up the entry. The first to enter the flight leads. Seen to fail (no rejection) when a caller with
/// this wait timeout waits for the fetch.
#[tokio::test(start_paused = true)]
async fn wait_timeout_within_a_lookup_holds_when_the_fetch_begins() {
    let guard = StampedeGuard::new(Arc::new(Slow::default())).wait_timeout(Duration::ZERO);
    let fetch = async || {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, Down>(1)
    };
    let began = Instant::now();
    let both = [(); 2].map(|()| Box::pin(guard.fetch("k", fetch)));
    let (first, _, leads) = futures_util::future::select_all(both).await;
    assert_eq!(first.expect_err("no request waits").kind(), ErrorKind::Overloaded);
    assert!(began.elapsed() < 10 * MS, "{:?}", began.elapsed());
    for answer in join_all(leads).await {
        assert_eq!(answer.expect("an answer"), 1);
    }
}

/// Seen to fail (a wait for the end of the lookup) when callers join lookups while the circuit breaker is open.
#[tokio::test(start_paused = true)]
async fn open_breaker_delays_no_caller_by_the_lookup_of_another() {
    let node = FakeRedis::new().node();
    let guard = node.guard().store_timeout(250 * MS).outage_cache(OutageCacheConfig::max_bytes(0));
    node.always(Operation::Get, Fault::Hangs);
    let ask = |key: &'static str| {
        let guard = guard.clone();
        tokio::spawn(async move { guard.fetch(key, async || Ok::<_, Down>(1)).await })
    };
    let first = ask("j");
    sleep(200 * MS).await;
    let second = ask("k");
    sleep(180 * MS).await; // no caller waits for the first probe any more
    let began = Instant::now();
    assert_eq!(ask("k").await.expect("no panic").expect("an answer"), 1);
    assert!(began.elapsed() < 10 * MS, "{:?}", began.elapsed());
    for asked in [first, second] {
        assert_eq!(asked.await.expect("no panic").expect("an answer"), 1);
    }
}

/// Seen to panic when times are added without a bound.
#[tokio::test(start_paused = true)]
async fn longest_store_timeout_allows_shared_lookups() {
    let guard = StampedeGuard::new(Arc::new(Slow::default())).store_timeout(Duration::MAX);
    for answer in join_all((0..3).map(|_| guard.fetch("k", async || Ok::<_, Down>(1)))).await {
        assert_eq!(answer.expect("an answer"), 1);
    }
}

/// Another clone allows more waiters. Seen to fail (a rejection within the fetch) when the limit is checked again.
#[tokio::test(start_paused = true)]
async fn waiter_that_joined_a_lookup_is_not_rejected_later() {
    let guard = StampedeGuard::new(Arc::new(Slow::default()));
    let one_waiter = guard.clone().max_waiters(1);
    let fetch = async || {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, Down>(1)
    };
    let asked = [&guard, &one_waiter, &guard].map(|guard| guard.fetch("k", fetch));
    for answer in join_all(asked).await {
        assert_eq!(answer.expect("an answer"), 1);
    }
    assert_eq!(guard.stats().misses, 1);
}

/// Seen to fail (4.8 s) when the leader's pulse is felt only after the time that a lookup may take.
#[tokio::test(start_paused = true)]
async fn unpolled_leader_costs_waiters_of_its_lookup_1_5_leases() {
    let node = FakeRedis::new().node();
    let guard = node.guard().store_timeout(900 * MS).lease_ttl(Duration::from_secs(3));
    node.always(Operation::Get, Fault::ReplyDelayed(MS));
    let never = async || {
        std::future::pending::<()>().await;
        Ok::<_, Down>(1)
    };
    let values = guard.cache("value");
    let mut held = pin!(values.entry("k").fetch_scoped(never));
    assert!(futures_util::poll!(&mut held).is_pending());
    let waits = tokio::spawn({
        let values = values.clone();
        async move { values.fetch("k", async || Ok::<_, Down>(2)).await }
    });
    let began = Instant::now();
    assert!(tokio::time::timeout(100 * MS, &mut held).await.is_err());
    assert_eq!(waits.await.expect("no panic").expect("an answer"), 2);
    assert!(began.elapsed() <= Duration::from_millis(4_600), "{:?}", began.elapsed());
}
