//! Values that are kept for validation, in a real Redis: what is sent to it, and what another process does meanwhile.

use crate::{
    Down, SECOND,
    support::{RedisServer, Relay, eventually, relay::Mode},
};
use redis::AsyncTypedCommands;
use stampede_guard::{Cache, FetchContext, FetchOutcome, NearCacheConfig, OutageCacheConfig, Policy, StampedeGuard};
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

const HOUR: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;
/// The Redis keys of the entry and of the lease end so.
const ENTRY: &str = ":v3.?";
const LEASE: &str = ":l";

fn guard(server: &RedisServer) -> StampedeGuard {
    StampedeGuard::new(server.client()).store_timeout(30 * SECOND).max_payload(2 * MIB)
}

/// Returns a cache whose values are stale at once, and kept for validation.
fn pages(guard: &StampedeGuard) -> Cache<String> {
    guard.cache("page").policy(Policy::fresh_for(Duration::ZERO).keep_for_validation(HOUR))
}

/// Stores a new value.
async fn store(guard: &StampedeGuard, value: String) {
    let call = async move |_| Ok::<_, Down>(FetchOutcome::new(value).validator("v1"));
    pages(guard).entry("k").fetch_with(call).await.expect("a value");
    guard.drain().await;
}

/// Validates the value, which the origin says is unchanged and fresh for an hour. `meanwhile` runs within the fetch.
async fn validate(guard: &StampedeGuard, meanwhile: impl Future<Output = ()> + Send + 'static) -> String {
    let call = async |cx: FetchContext<String>| {
        assert_eq!(cx.validator(), Some(&b"v1"[..]));
        meanwhile.await;
        Ok::<_, Down>(cx.unchanged().expect("a value was stored").fresh_for(HOUR))
    };
    let value = pages(guard).entry("k").fetch_with(call).await.expect("a value");
    guard.drain().await;
    value
}

/// Returns the Redis key that ends so.
async fn name(server: &RedisServer, end: &str) -> Option<String> {
    let names = server.connection().await.keys(format!("*{end}")).await.expect("an answer");
    assert!(names.len() <= 1, "{names:?}");
    names.into_iter().next()
}

/// Seen to fail (1,049,000 bytes) when the entry is sent as a whole.
#[tokio::test]
async fn renewal_of_a_mebibyte_sends_less_than_a_kibibyte() {
    let server = RedisServer::start();
    let guard = guard(&server);
    store(&guard, "x".repeat(MIB)).await;
    let before = server.received().await;
    let asked = server.received().await - before;
    let value = validate(&guard, async {}).await;
    let sent = server.received().await - before - 2 * asked;
    assert_eq!(value.len(), MIB);
    assert!(sent < 1024, "{sent} bytes");
    let renewed = pages(&guard).get("k").await.expect("an answer").expect("it is fresh");
    assert_eq!((renewed.len(), guard.stats().corrupt_entries, guard.stats().store_errors), (MIB, 0, 0));
    let mut pttl = redis::cmd("PTTL");
    pttl.arg(name(&server, ENTRY).await.expect("an entry"));
    let expiry: u64 = pttl.query_async(&mut server.connection().await).await.expect("an answer");
    let expiry = Duration::from_millis(expiry);
    assert!(expiry > 2 * HOUR - HOUR / 5 && expiry <= 2 * HOUR, "{expiry:?}");
}

/// The other process has a copy of the value, and a waiter. Both get the renewed one.
#[tokio::test]
async fn unchanged_value_is_renewed_in_all_processes() {
    let server = RedisServer::start();
    let near = || guard(&server).near_cache(NearCacheConfig::max_bytes(8 << 20).max_age(HOUR));
    let (here, there) = (near(), near());
    store(&here, "a".to_owned()).await;
    for guard in [&here, &there] {
        assert_eq!(pages(guard).get("k").await.expect("an answer"), None, "read, and too old");
    }
    let ((begun, begins), (waited, waits)) = (oneshot::channel(), oneshot::channel());
    let validated = validate(&here, async move {
        begun.send(()).expect("the waiter is there");
        waits.await.expect("the waiter is there");
    });
    let waiter = async {
        begins.await.expect("the fetch runs");
        let waits = async {
            eventually("the other process waits", async || there.in_flight() > 0).await;
            waited.send(()).expect("the fetch runs");
        };
        let cache = pages(&there);
        tokio::join!(cache.fetch("k", async || Err::<String, _>(Down)), waits).0
    };
    let (_, waiter) = tokio::join!(validated, waiter);
    assert_eq!(waiter.expect("the renewed value"), "a");
    for guard in [&here, &there] {
        for _ in 0..2 {
            assert_eq!(pages(guard).get("k").await.expect("an answer").as_deref(), Some("a"));
        }
        eventually("a copy is served", async || {
            assert_eq!(pages(guard).get("k").await.expect("an answer").as_deref(), Some("a"));
            guard.stats().near_hits > 0
        })
        .await;
        assert_eq!(guard.stats().corrupt_entries, 0);
    }
    assert_eq!((here.stats().misses, there.stats().misses), (2, 0));
}

/// The entry is evicted while the origin is asked: the whole value is stored again.
#[tokio::test]
async fn renewal_of_an_evicted_value_stores_it_again() {
    let server = RedisServer::start();
    let guard = guard(&server);
    store(&guard, "x".repeat(MIB)).await;
    let (entry, mut redis) = (name(&server, ENTRY).await.expect("an entry"), server.connection().await);
    validate(&guard, async move { assert_eq!(redis.del(entry).await.expect("an answer"), 1) }).await;
    assert_eq!(pages(&guard).get("k").await.expect("an answer").map(|value| value.len()), Some(MIB));
}

/// Another process invalidates the value while the origin is asked.
#[tokio::test]
async fn renewal_does_not_restore_an_invalidated_value() {
    let server = RedisServer::start();
    let (here, there) = (guard(&server), guard(&server));
    store(&here, "a".to_owned()).await;
    validate(&here, async move { pages(&there).invalidate("k").await.expect("acknowledged") }).await;
    assert_eq!(name(&server, ENTRY).await, None);
    assert_eq!(pages(&here).get("k").await.expect("an answer"), None);
}

/// The reply to the renewal is lost, and the value is invalidated before the renewal is sent again.
#[tokio::test]
async fn renewal_that_is_sent_again_restores_nothing() {
    let server = RedisServer::start();
    let relay = Arc::new(Relay::to(([127, 0, 0, 1], server.port()).into()).await);
    let (here, there) = (StampedeGuard::new(relay.client()).store_timeout(30 * SECOND), guard(&server));
    store(&here, "a".to_owned()).await;
    let (entry, redis) = (name(&server, ENTRY).await.expect("an entry"), server.connection().await);
    let id = async || redis.clone().getrange(&entry, 1, 16).await.expect("an answer");
    let (before, network) = (id().await, relay.clone());
    let validated = validate(&here, async move { network.set(Mode::NoReplies) });
    let fault = async {
        eventually("the renewal is executed", async || id().await != before).await;
        pages(&there).invalidate("k").await.expect("acknowledged");
        relay.set(Mode::Pass);
        relay.cut();
    };
    assert_eq!(tokio::join!(validated, fault).0, "a");
    assert_eq!((name(&server, ENTRY).await, here.stats().fenced), (None, 1));
    assert_eq!(pages(&here).get("k").await.expect("an answer"), None);
}

/// The lease is lost while the origin is asked: the stored value keeps its age.
#[tokio::test]
async fn renewal_without_its_lease_changes_nothing() {
    let server = RedisServer::start();
    let guard = guard(&server);
    store(&guard, "a".to_owned()).await;
    let (entry, mut redis) = (name(&server, ENTRY).await.expect("an entry"), server.connection().await);
    let stored = async || {
        let bytes: Option<Vec<u8>> =
            redis::cmd("GET").arg(&entry).query_async(&mut server.connection().await).await.expect("an answer");
        bytes
    };
    let (before, lease) = (stored().await, entry.replace(&entry[entry.len() - ENTRY.len()..], LEASE));
    validate(&guard, async move { assert_eq!(redis.del(lease).await.expect("an answer"), 1) }).await;
    assert_eq!(stored().await, before);
}

/// Puts, invalidations and renewals of one key in four processes, two of them over connections that break. A read after an
/// acknowledged change never returns an older version, and each value is whole. Without an outage cache: it keeps what was
/// fetched before a change in another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_race_puts_and_invalidations() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    let server = RedisServer::start();
    let relay = Arc::new(Relay::to(([127, 0, 0, 1], server.port()).into()).await);
    let clients = [server.client(), server.client(), relay.client(), relay.client()];
    let guards = clients.map(|client| {
        StampedeGuard::new(client)
            .store_timeout(30 * SECOND)
            .lease_ttl(SECOND)
            .outage_cache(OutageCacheConfig::max_bytes(0))
    });
    // The version of the database, and the last one whose change was acknowledged.
    let (database, acknowledged) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let page = |version: u64| format!("{version:08}").repeat(if version.is_multiple_of(2) { 1 } else { 5_000 });
    let policy = Policy::fresh_for(Duration::ZERO).keep_for_validation(HOUR);
    let until = std::time::Instant::now() + 3 * SECOND;
    let mut tasks = tokio::task::JoinSet::new();
    for (n, guard) in guards.iter().enumerate() {
        let pages = guard.cache::<String>("page").policy(policy);
        // One reader in each process, because readers may share what began before a change.
        let (reads, origin, changed) = (pages.clone(), database.clone(), acknowledged.clone());
        tasks.spawn(async move {
            while std::time::Instant::now() < until {
                let origin = origin.clone();
                let call = async move |cx: FetchContext<String>| {
                    let version = origin.load(SeqCst);
                    let is_unchanged = cx.validator() == Some(&version.to_le_bytes()[..]);
                    let new = || FetchOutcome::new(page(version)).validator(version.to_le_bytes().to_vec());
                    let outcome = if is_unchanged { cx.unchanged() } else { None }.unwrap_or_else(new);
                    Ok::<_, Down>(outcome.fresh_for(Duration::from_millis(fastrand::u64(0..4))))
                };
                let fetched = reads.entry("k").fetch_with(call).await.expect("a value");
                let least = changed.load(SeqCst);
                let found = reads.get("k").await.expect("an answer");
                for value in [Some(&fetched), found.as_ref()].into_iter().flatten() {
                    let version = value[..8].parse().expect("a version");
                    assert_eq!(*value, page(version), "the value is whole");
                }
                let version = found.map(|found| found[..8].parse::<u64>().expect("a version"));
                assert!(
                    version.is_none_or(|version| version >= least),
                    "{version:?} after the change to {least} in process {n}"
                );
            }
        });
        let (database, acknowledged) = (database.clone(), acknowledged.clone());
        if n == 1 {
            let relay = relay.clone();
            tasks.spawn(async move {
                // One writer, so that versions are acknowledged in order.
                while std::time::Instant::now() < until {
                    let version = database.fetch_add(1, SeqCst) + 1;
                    let done = if fastrand::bool() {
                        let value = FetchOutcome::new(page(version)).validator(version.to_le_bytes().to_vec());
                        pages.put("k", value.fresh_for(Duration::from_millis(1))).await
                    } else {
                        pages.invalidate("k").await
                    };
                    if done.is_ok() {
                        acknowledged.store(version, SeqCst);
                    }
                    if fastrand::u8(0..8) == 0 {
                        relay.cut();
                    }
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..40_000))).await;
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut server.connection().await).await.expect("an answer");
    let renewed =
        stats.split("cmdstat_setrange:calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert!(renewed > Some(0), "{renewed:?} renewals");
}
