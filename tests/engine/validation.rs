//! Values that are kept for validation: what the next fetch sees, and what it renews.

use crate::{Down, MS, SECOND, never};
use stampede_guard::{
    Cache, CacheStatus, Codec, ErrorKind, FetchContext, FetchOutcome, Policy, StampedeGuard,
    testing::{FakeRedis, Fault, Operation},
};
use std::time::Duration;
use tokio::time::sleep;

const KEPT: Duration = Duration::from_secs(60);

/// Returns a cache whose values are fresh for one second, and may be served for one second more.
fn cache(guard: &StampedeGuard) -> Cache<String> {
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(SECOND).jitter(0.0);
    guard.cache("validated").policy(policy.keep_for_validation(KEPT))
}

/// What a fetch saw of the stored value, and its validator.
type Seen = (Option<String>, Option<Vec<u8>>);

/// Fetches a key, and returns its value and what the fetch saw. `None` if no fetch was needed.
async fn fetch(
    cache: &Cache<String>,
    outcome: impl FnOnce(FetchContext<String>) -> FetchOutcome<String> + Send + 'static,
) -> (String, Option<Seen>) {
    let (saw, seen) = tokio::sync::oneshot::channel();
    let call = cache.entry("k").fetch_with(async |cx: FetchContext<String>| {
        saw.send((cx.stale().cloned(), cx.validator().map(<[u8]>::to_vec))).expect("the caller is there");
        Ok::<_, Down>(outcome(cx))
    });
    let value = call.await.expect("a value");
    (value, seen.await.ok())
}

fn new(value: &str) -> FetchOutcome<String> {
    FetchOutcome::new(value.to_owned()).validator(format!("etag of {value}"))
}

fn seen(value: &str) -> Option<Seen> {
    Some((Some(value.to_owned()), Some(format!("etag of {value}").into_bytes())))
}

fn unchanged(cx: FetchContext<String>) -> FetchOutcome<String> {
    cx.unchanged().expect("a value was stored")
}

/// Seen to fail (the fetch sees nothing) without the window for validation.
#[tokio::test(start_paused = true)]
async fn unchanged_value_is_fresh_again_with_its_validator() {
    let guard = StampedeGuard::in_memory();
    let cache = cache(&guard);
    assert_eq!(fetch(&cache, |_| new("a")).await, ("a".to_owned(), Some((None, None))));
    for _ in 0..3 {
        sleep(KEPT).await;
        assert_eq!(fetch(&cache, unchanged).await, ("a".to_owned(), seen("a")));
        guard.drain().await;
        sleep(SECOND - 2 * MS).await;
        let hit = cache.entry("k").answer(async |_| Err(Down)).await.expect("a hit");
        assert_eq!((&**hit, hit.status(), hit.age()), ("a", CacheStatus::Hit, SECOND - 2 * MS));
    }
    sleep(SECOND + KEPT).await;
    assert_eq!(fetch(&cache, |_| new("b")).await, ("b".to_owned(), seen("a")));
    guard.drain().await;
    sleep(2 * SECOND + KEPT - MS).await;
    assert_eq!(fetch(&cache, unchanged).await, ("b".to_owned(), seen("b")));
    guard.drain().await;
    sleep(2 * SECOND + KEPT).await;
    assert_eq!(fetch(&cache, |_| new("c")).await, ("c".to_owned(), Some((None, None))), "kept no longer");
}

#[tokio::test(start_paused = true)]
async fn value_kept_for_validation_is_not_served() {
    let guard = StampedeGuard::in_memory();
    let cache = cache(&guard);
    fetch(&cache, |_| new("a")).await;
    guard.drain().await;
    sleep(2 * SECOND).await;
    assert_eq!(cache.get("k").await.expect("an answer"), None);
    let failed = cache.fetch("k", never::<String>).await.expect_err("no value replaces the failure");
    assert_eq!(failed.kind(), ErrorKind::Panicked);
}

#[tokio::test(start_paused = true)]
async fn refresh_in_the_background_renews_an_unchanged_value() {
    let guard = StampedeGuard::in_memory();
    let cache = cache(&guard);
    fetch(&cache, |_| new("a")).await;
    guard.drain().await;
    sleep(SECOND + MS).await;
    assert_eq!(fetch(&cache, unchanged).await, ("a".to_owned(), seen("a")));
    guard.drain().await;
    assert_eq!(fetch(&cache, not_called).await, ("a".to_owned(), None), "it is fresh");
}

fn not_called(_: FetchContext<String>) -> FetchOutcome<String> {
    unreachable!("the value is fresh")
}

/// The renewal holds a lease from before the invalidation. Seen to fail (the value is served again) when a fill takes no
/// account of its lease.
#[tokio::test(start_paused = true)]
async fn invalidation_during_a_validation_ends_the_value() {
    let guard = StampedeGuard::in_memory();
    let cache = cache(&guard);
    fetch(&cache, |_| new("a")).await;
    guard.drain().await;
    sleep(3 * SECOND).await;
    let invalidated = cache.clone();
    let validated = cache.entry("k").fetch_with(async move |cx: FetchContext<String>| {
        invalidated.invalidate("k").await.expect("acknowledged");
        Ok::<_, Down>(unchanged(cx))
    });
    assert_eq!(validated.await.expect("the value of its own fetch"), "a");
    guard.drain().await;
    assert_eq!(fetch(&cache, |_| new("b")).await, ("b".to_owned(), Some((None, None))));
}

/// What an outcome says after `unchanged` counts as it does for any other.
#[tokio::test(start_paused = true)]
async fn unchanged_value_takes_another_validator_and_lifetime() {
    let guard = StampedeGuard::in_memory();
    let cache = cache(&guard);
    fetch(&cache, |_| new("a")).await;
    guard.drain().await;
    sleep(3 * SECOND).await;
    fetch(&cache, |cx| unchanged(cx).validator("second").fresh_for(9 * SECOND)).await;
    guard.drain().await;
    sleep(8 * SECOND).await;
    assert_eq!(fetch(&cache, not_called).await.0, "a");
    sleep(3 * SECOND).await;
    let (_, saw) = fetch(&cache, |cx| unchanged(cx).do_not_store()).await;
    assert_eq!(saw, Some((Some("a".to_owned()), Some(b"second".to_vec()))));
    guard.drain().await;
    assert_eq!(fetch(&cache, |_| new("b")).await.1, Some((None, None)), "a marker has taken its place");
}

/// Both caches have values of one type. Seen to fail (no value is read) when the bytes of the other codec are stored.
#[tokio::test(start_paused = true)]
async fn unchanged_value_of_another_cache_is_encoded_again() {
    let guard = StampedeGuard::in_memory();
    let here = cache(&guard);
    fetch(&here, |_| new("a")).await;
    guard.drain().await;
    sleep(3 * SECOND).await;
    let there = guard.cache::<String>("other").codec(Codec::Json);
    let other = there.clone();
    let moved = here.entry("k").fetch_with(async move |cx: FetchContext<String>| {
        let value = unchanged(cx);
        other.entry("k").fetch_with(async move |_| Ok::<_, Down>(value)).await.map(FetchOutcome::new)
    });
    assert_eq!(moved.await.expect("a value"), "a");
    guard.drain().await;
    assert_eq!(there.get("k").await.expect("an answer").as_deref(), Some("a"));
}

/// Seen to fail (the value is stored) when only the encoded value counts.
#[tokio::test(start_paused = true)]
async fn validator_counts_as_a_part_of_the_payload() {
    let guard = StampedeGuard::in_memory().max_payload(1000);
    let cache = cache(&guard);
    for (length, stored) in [(0, true), (900, true), (1000, false)] {
        fetch(&cache, move |_| FetchOutcome::new("a".to_owned()).validator(vec![b'v'; length])).await;
        guard.drain().await;
        assert_eq!(cache.get("k").await.expect("an answer").is_some(), stored, "{length} bytes");
        cache.invalidate("k").await.expect("acknowledged");
    }
}

/// The store refuses the renewal, or does not answer it. Seen to fail without the outage cache (the origin is asked again).
#[tokio::test(start_paused = true)]
async fn outage_cache_keeps_a_renewed_value() {
    for fault in [Fault::Fails, Fault::RequestLost] {
        let node = FakeRedis::new().node();
        let guard = node.guard();
        let cache = cache(&guard);
        fetch(&cache, |_| new("a")).await;
        guard.drain().await;
        sleep(3 * SECOND).await;
        node.always(Operation::Fill, fault);
        assert_eq!(fetch(&cache, unchanged).await, ("a".to_owned(), seen("a")));
        assert_eq!(fetch(&cache, not_called).await, ("a".to_owned(), None));
        node.heal();
        sleep(SECOND).await;
        assert_eq!(fetch(&cache, unchanged).await, ("a".to_owned(), seen("a")), "the stored one is as old as it was");
        guard.drain().await;
    }
}

/// The reply to the renewal is lost, and the renewal is sent again.
#[tokio::test(start_paused = true)]
async fn renewal_whose_reply_is_lost_counts() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let cache = cache(&guard);
    fetch(&cache, |_| new("a")).await;
    guard.drain().await;
    sleep(3 * SECOND).await;
    node.once(Operation::Fill, Fault::ReplyLost);
    fetch(&cache, unchanged).await;
    guard.drain().await;
    assert_eq!((fetch(&cache, not_called).await.0, guard.stats().fenced), ("a".to_owned(), 0));
}

#[tokio::test(start_paused = true)]
async fn bypassed_fetch_validates_nothing() {
    let guard = StampedeGuard::in_memory();
    fetch(&cache(&guard), |_| new("a")).await;
    guard.drain().await;
    sleep(3 * SECOND).await;
    let bypassed = cache(&guard.clone().bypass(true));
    let (_, saw) = fetch(&bypassed, |cx| cx.unchanged().unwrap_or_else(|| new("b"))).await;
    assert_eq!(saw, Some((None, None)));
}
