//! The near cache: a hit sends no Redis command, and no copy is served for longer than its bound.

mod bound;
mod connection;

use crate::{
    Down, MS, SECOND, never,
    support::{Monitor, RedisServer, Relay, eventually, relay::Mode},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use stampede_guard::{
    CacheStatus, Connection, IntoStore, MemoryStore, NearCacheConfig, Policy, StampedeGuard, http::HttpOptions, redis,
};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tower::{Layer, ServiceExt, service_fn};

const HOUR: Duration = Duration::from_secs(3600);

fn plain(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND)
}

fn guard(store: impl IntoStore, max_age: Duration) -> StampedeGuard {
    plain(store).near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(max_age))
}

/// An origin with one versioned value.
#[derive(Clone, Default)]
struct Source(Arc<AtomicU32>);

impl Source {
    fn change(&self) -> u32 {
        self.0.fetch_add(1, SeqCst) + 1
    }

    async fn asked_by(&self, guard: &StampedeGuard) -> u32 {
        let source = self.0.clone();
        guard.fetch("k", async move || Ok::<_, Down>(source.load(SeqCst))).await.expect("an answer")
    }

    /// Requests a page with a body of this length, and returns the version that it shows.
    async fn page_of(&self, guard: &StampedeGuard, cache_control: &str, length: usize) -> u32 {
        let source = self.0.clone();
        let guard = guard.clone().http(HttpOptions::default().honour_request_directives());
        let service = guard.layer(service_fn(move |_: Request<Full<Bytes>>| {
            let body = [b"0123456789"[source.load(SeqCst) as usize]].repeat(length);
            let head = Response::builder().header("cache-control", "max-age=600");
            std::future::ready(Ok::<_, Infallible>(head.body(Full::new(Bytes::from(body))).expect("a response")))
        }));
        let request = Request::get("http://shop.test/page").header("cache-control", cache_control);
        let answer = service.oneshot(request.body(Full::default()).expect("a request")).await.expect("infallible");
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body.len(), length);
        u32::from(body[0] - b'0')
    }

    /// Requests the value until it is served from a copy.
    async fn kept_by(&self, guard: &StampedeGuard) -> u32 {
        let served = AtomicU32::default();
        eventually("a copy", async || {
            let before = guard.stats().near_hits;
            served.store(self.asked_by(guard).await, SeqCst);
            guard.stats().near_hits > before
        })
        .await;
        served.load(SeqCst)
    }
}

#[tokio::test]
async fn a_near_hit_sends_no_command_and_decodes_nothing() {
    let server = RedisServer::start();
    let guard = guard(server.client(), HOUR);
    let versions = guard.cache::<u32>("version");
    eventually("a copy", async || {
        versions.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.stats().near_hits > 0
    })
    .await;
    let first = versions.entry("k").fetch_arc(never).await.expect("a hit");
    let monitor = Monitor::start(&server).await;
    let second = versions.entry("k").fetch_arc(never).await.expect("a hit");
    assert_eq!(monitor.stop().await, []);
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(guard.in_flight(), 0);
}

/// The guard learns of another process's change by message alone, because its copies live for an hour. Seen to fail
/// when messages were not taken in.
#[tokio::test]
async fn a_change_by_another_process_drops_the_copy_by_message() {
    let server = RedisServer::start();
    let (near, other) = (guard(server.client(), HOUR), plain(server.client()));
    let source = Source::default();
    let invalidated = async || other.invalidate("k").await.expect("acknowledged");
    let deleted = async || {
        let mut raw = server.connection().await;
        let names: Vec<String> = redis::cmd("KEYS").arg("*:v*").query_async(&mut raw).await.expect("an answer");
        assert_eq!(names.len(), 1);
        redis::cmd("DEL").arg(names).exec_async(&mut raw).await.expect("an answer");
    };
    let flushed = async || {
        let mut raw = server.connection().await;
        redis::cmd("FLUSHALL").exec_async(&mut raw).await.expect("an answer");
    };
    macro_rules! changes {
        ($($change:ident)*) => {$(
            source.kept_by(&near).await;
            let version = source.change();
            assert_eq!(source.asked_by(&near).await, version - 1, "a copy, before it was {}", stringify!($change));
            $change().await;
            eventually(stringify!($change), async || source.asked_by(&near).await == version).await;
        )*};
    }
    changes!(invalidated deleted flushed);
}

/// Another process refreshes the entry. Seen to fail when messages were not taken in.
#[tokio::test]
async fn a_refill_by_another_process_drops_the_copy_by_message() {
    let server = RedisServer::start();
    let near = guard(server.client(), HOUR);
    let other = plain(server.client());
    let source = Source::default();
    source.kept_by(&near).await;
    let version = source.change();
    other.invalidate("k").await.expect("acknowledged");
    source.asked_by(&other).await;
    other.drain().await;
    eventually("the other's value", async || near.fetch("k", never::<u32>).await.is_ok_and(|v| v == version)).await;
}

/// A large entry is set under another name, which no copy has, and then renamed: no other command touches the name of the
/// entry.
///
/// Seen to fail, by its commands, if entries of all sizes are arguments of the script.
#[tokio::test]
async fn refresh_with_a_large_body_drops_the_copy_by_message() {
    let server = RedisServer::start();
    let (near, other) = (guard(server.client(), HOUR), plain(server.client()));
    let source = Source::default();
    let ask = async |guard: &StampedeGuard, cache_control: &str| source.page_of(guard, cache_control, 64 << 10).await;
    eventually("a copy", async || {
        let before = near.stats().near_hits;
        assert_eq!(ask(&near, "max-age=600").await, 0);
        near.drain().await;
        near.stats().near_hits > before
    })
    .await;
    source.change();
    assert_eq!(ask(&near, "max-age=600").await, 0, "the copy");
    let monitor = Monitor::start(&server).await;
    assert_eq!(ask(&other, "no-cache").await, 1);
    other.drain().await;
    let commands: Vec<_> = monitor.stop().await.into_iter().map(|command| command.name).collect();
    assert!(commands.ends_with(&["SET", "EVALSHA"].map(str::to_owned)), "{commands:?}");
    eventually("the new body", async || ask(&near, "max-age=600").await == 1).await;
}

/// The rule also holds for the first copy, which is kept as soon as the tracking connection is made. Seen to fail with
/// versions taken before there was a connection.
#[tokio::test]
async fn the_first_copy_is_dropped_by_message_too() {
    let server = RedisServer::start();
    let (near, other) = (guard(server.client(), HOUR), plain(server.client()));
    let source = Source::default();
    source.asked_by(&other).await;
    other.drain().await;
    assert_eq!(source.kept_by(&near).await, 0);
    let version = source.change();
    assert_eq!(source.asked_by(&near).await, 0, "a copy");
    other.invalidate("k").await.expect("acknowledged");
    eventually("the new value", async || source.asked_by(&near).await == version).await;
}

/// Seen to fail when the invalidation dropped the flights of its engine, but not the copies.
#[tokio::test]
async fn an_invalidation_by_a_clone_drops_the_copy_at_once() {
    let server = RedisServer::start();
    // A bare connection gets no messages.
    let near = guard(Connection(server.connection().await), HOUR);
    let plain = StampedeGuard::clone(&near);
    let source = Source::default();
    source.kept_by(&near).await;
    for _ in 0..100 {
        let version = source.change();
        assert_eq!(source.kept_by(&near).await, version - 1, "a copy");
        plain.invalidate("k").await.expect("acknowledged");
        assert_eq!(source.kept_by(&near).await, version);
    }
}

/// The reply to a read and the message that outdates it are on their way together. Seen to fail with versions taken
/// after the read.
#[tokio::test]
async fn a_value_invalidated_during_its_read_is_not_copied() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let (near, other) = (guard(relay.client(), HOUR), plain(server.client()));
    let (source, mut raw) = (Source::default(), server.connection().await);
    source.kept_by(&near).await;
    for _ in 0..20 {
        // Store a value of which no guard has a copy.
        let old = source.change();
        other.invalidate("k").await.expect("acknowledged");
        source.asked_by(&other).await;
        other.drain().await;
        near.invalidate("another").await.expect("acknowledged: what was sent before has arrived");

        relay.set(Mode::HoldReplies);
        let before = gets(&mut raw).await;
        let reading = tokio::spawn({
            let (source, near) = (source.clone(), near.clone());
            async move { source.asked_by(&near).await }
        });
        eventually("the read was answered", async || gets(&mut raw.clone()).await > before).await;
        let new = source.change();
        other.invalidate("k").await.expect("acknowledged");
        // Everything that the server sent before these replies has reached the relay.
        for _ in 0..3 {
            redis::cmd("PING").exec_async(&mut raw).await.expect("an answer");
        }
        relay.set(Mode::Pass);
        let read = reading.await.expect("no panic");
        assert!(read == old || read == new, "{read}");
        eventually("the new value", async || source.asked_by(&near).await == new).await;
    }
}

async fn gets(raw: &mut redis::aio::MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(raw).await.expect("an answer");
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Nothing arrives any more, and no connection is seen to break: after `max_age` the copy is not served. Seen to fail
/// with copies that are valid as long as no message arrives.
#[tokio::test]
async fn a_copy_expires_after_max_age_if_the_server_is_silent() {
    for (what, mode) in [("half open", Mode::HalfOpen), ("replies held", Mode::HoldReplies)] {
        let server = RedisServer::start();
        let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
        let (near, other) = (guard(relay.client(), SECOND).store_timeout(50 * MS), plain(server.client()));
        let source = Source::default();
        source.kept_by(&near).await;
        relay.set(mode);
        let version = source.change();
        other.invalidate("k").await.expect("acknowledged");
        let returned = Instant::now();
        loop {
            let asked = Instant::now();
            if source.asked_by(&near).await == version {
                break;
            }
            assert!(asked < returned + SECOND, "{what}: an old copy {:?} after", asked - returned);
            tokio::task::yield_now().await;
        }
    }
}

/// The time of a copy counts from the start of its read. Seen to fail with copies that are valid as long as no message
/// arrives.
#[tokio::test]
async fn a_copy_expires_after_max_age_over_a_store_without_messages() {
    let server = RedisServer::start();
    let near = guard(Connection(server.connection().await), 300 * MS);
    let other = plain(server.client());
    let source = Source::default();
    for _ in 0..5 {
        source.kept_by(&near).await;
        let version = source.change();
        other.invalidate("k").await.expect("acknowledged");
        let returned = Instant::now();
        loop {
            let asked = Instant::now();
            if source.kept_by(&near).await == version {
                break;
            }
            assert!(asked < returned + 300 * MS, "an old copy {:?} after", asked - returned);
        }
    }
}

/// The copy lives for an hour, and no message says that it has changed.
///
/// Seen to fail if a fill does not end the copies.
#[tokio::test]
async fn own_refill_ends_the_copy_over_a_store_without_messages() {
    let server = RedisServer::start();
    let near = guard(Connection(server.connection().await), HOUR);
    let source = Source::default();
    eventually("a copy", async || {
        let before = near.stats().near_hits;
        source.page_of(&near, "max-age=600", 1).await;
        near.drain().await;
        near.stats().near_hits > before
    })
    .await;
    let version = source.change();
    assert_eq!(source.page_of(&near, "no-cache", 1).await, version);
    near.drain().await;
    assert_eq!(source.page_of(&near, "max-age=600", 1).await, version);
}

/// A lost connection is made again, and messages arrive again. Seen to fail without the watchdog, and if the next
/// connection confirms the copies of the last one.
#[tokio::test]
async fn copies_are_kept_and_dropped_by_message_again_after_a_cut() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let (near, other) = (guard(relay.client(), SECOND), plain(server.client()));
    let source = Source::default();
    for _ in 0..3 {
        source.kept_by(&near).await;
        relay.cut();
        let version = source.change();
        other.invalidate("k").await.expect("acknowledged");
        eventually("the new value", async || source.asked_by(&near).await == version).await;
        // Longer than a copy lives without messages.
        eventually("no command for two seconds", async || {
            source.kept_by(&near).await;
            let monitor = Monitor::start(&server).await;
            let since = Instant::now();
            while since.elapsed() < 2 * SECOND {
                source.asked_by(&near).await;
                tokio::time::sleep(20 * MS).await;
            }
            monitor.stop().await.is_empty()
        })
        .await;
    }
}

/// The entries of an embedded store are local already.
#[tokio::test]
async fn an_embedded_store_has_no_near_cache() {
    let near = guard(MemoryStore::default(), HOUR);
    assert!(format!("{near:?}").contains("near: None"), "{near:?}");
    assert_eq!(Source::default().asked_by(&near).await, 0);
}

/// Index and variant are both copied, and an invalidation of the URL drops both.
#[tokio::test]
async fn index_and_variant_of_a_page_are_copied_and_dropped() {
    let server = RedisServer::start();
    let (near, other) = (guard(server.client(), HOUR), plain(server.client()));
    let version = Source::default();
    let source = version.clone();
    let service = near.layer(service_fn(move |_: Request<Full<Bytes>>| {
        let body = source.0.load(SeqCst).to_string();
        async move {
            let head = Response::builder().header("cache-control", "max-age=600").header("vary", "accept-language");
            Ok::<_, Infallible>(head.body(Full::new(Bytes::from(body))).expect("a response"))
        }
    }));
    let ask = async |language: &str| {
        let request = Request::get("http://shop.test/a").header("accept-language", language);
        let request = request.body(Full::<Bytes>::default()).expect("a request");
        let answer = service.clone().oneshot(request).await.expect("infallible");
        let status = *answer.extensions().get::<CacheStatus>().expect("by the guard");
        (answer.into_body().collect().await.expect("a body").to_bytes(), status)
    };
    // Each fill drops the copies that were made before it, and the message about it may arrive late.
    eventually("both copies are kept", async || {
        let before = near.stats().near_hits;
        for language in ["de", "en"] {
            ask(language).await;
            near.drain().await;
        }
        near.stats().near_hits == before + 2
    })
    .await;
    let monitor = Monitor::start(&server).await;
    for language in ["de", "en"] {
        assert_eq!(ask(language).await, (Bytes::from("0"), CacheStatus::Hit), "{language}");
    }
    assert_eq!(monitor.stop().await, []);
    version.change();
    other.invalidate_url(&"http://shop.test/a".parse().expect("a URL")).await.expect("acknowledged");
    for language in ["de", "en"] {
        eventually("the new page", async || ask(language).await.0 == "1").await;
    }
}

/// The task that checks the connection ends with its runtime, and starts again in the next one. Seen to fail with a
/// watchdog that is started once.
#[test]
fn the_near_cache_survives_the_end_of_its_runtime() {
    let server = RedisServer::start();
    let near = guard(server.client(), SECOND);
    let source = Source::default();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let other = plain(server.client());
            source.kept_by(&near).await;
            eventually("no command for two seconds", async || {
                source.kept_by(&near).await;
                let before = near.stats().near_hits;
                tokio::time::sleep(2 * SECOND).await;
                source.asked_by(&near).await;
                near.stats().near_hits > before
            })
            .await;
            let version = source.change();
            other.invalidate("k").await.expect("acknowledged");
            eventually("the new value", async || source.asked_by(&near).await == version).await;
        });
    }
}
