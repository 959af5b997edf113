//! Helpers of these tests: herds in which every caller must be answered, and the number of origin calls.

use crate::{
    Down, MS, SECOND,
    support::{Origin, RedisServer, eventually, herd},
};
use axum::{
    body::{Body, to_bytes},
    http::{Request, Response},
};
use futures_util::future::BoxFuture;
use stampede_guard::{StampedeGuard, store::IntoStore};
use std::{
    convert::Infallible,
    io,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
};
use tower::{Layer, ServiceExt, service_fn};
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::{fmt::MakeWriter, util::SubscriberInitExt};

/// Returns a guard with a long store timeout, so that answers are shared on a busy machine too.
pub(crate) fn patient(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).store_timeout(30 * SECOND)
}

/// Sends forty callers to one key, spread over the guards. All are answered. Returns the number of origin calls.
pub(crate) async fn calls_of_a_herd(guards: &[StampedeGuard], key: &str) -> usize {
    let origin = Origin::new();
    let callers = herd(40, |i| {
        let (guard, origin, key) = (guards[i % guards.len()].clone(), origin.clone(), key.to_owned());
        async move {
            let fetch = async move || {
                origin.work(30 * MS).await;
                Ok::<_, Down>(1)
            };
            guard.fetch(key, fetch).await
        }
    });
    assert!(callers.await.into_iter().all(|answer| answer.is_ok_and(|value| value == 1)), "a caller was not answered");
    for guard in guards {
        guard.drain().await;
        assert_eq!(guard.in_flight(), 0);
    }
    origin.calls()
}

/// Does the same as [`calls_of_a_herd`] for a page that varies. Every guard has read the Vary index of the page before,
/// by a request in another language.
pub(crate) async fn calls_of_a_varied_herd(guards: &[StampedeGuard], path: &str) -> usize {
    let (origin, url) = (Origin::new(), format!("http://site.example/{path}"));
    for guard in guards {
        page(guard, &origin, &url, Language::German).await;
        guard.drain().await;
    }
    let before = origin.calls();
    herd(40, |i| page(&guards[i % guards.len()], &origin, &url, Language::English)).await;
    for guard in guards {
        guard.drain().await;
    }
    origin.calls() - before
}

#[derive(Clone, Copy, Debug)]
enum Language {
    German,
    English,
}

/// Sends one request and asserts that the page has its language.
fn page(guard: &StampedeGuard, origin: &Origin, url: &str, language: Language) -> BoxFuture<'static, ()> {
    let (language, origin) = (format!("{language:?}"), origin.clone());
    let request = Request::get(url).header("accept-language", &language).body(Body::empty()).expect("a request");
    let body = language.clone();
    let site = service_fn(move |_: Request<Body>| {
        let (origin, body) = (origin.clone(), body.clone());
        async move {
            origin.work(30 * MS).await;
            let response = Response::builder().header("vary", "accept-language").header("cache-control", "max-age=60");
            Ok::<_, Infallible>(response.body(Body::from(body)).expect("a response"))
        }
    });
    let response = guard.layer(site).oneshot(request);
    Box::pin(async move {
        let body = Body::new(response.await.expect("it cannot fail").into_body());
        assert_eq!(to_bytes(body, usize::MAX).await.expect("a body"), language);
    })
}

/// Does the same as [`calls_of_a_herd`] with one guard.
pub(crate) async fn answers(guard: &StampedeGuard, key: &str) -> usize {
    calls_of_a_herd(std::slice::from_ref(guard), key).await
}

/// Reports whether the key is a hit of the store. A hit of the outage cache is none.
pub(crate) async fn hits(guard: &StampedeGuard, key: &str) -> bool {
    let hits_of_store = || {
        let stats = guard.stats();
        stats.hits - stats.outage_cache_hits
    };
    let before = hits_of_store();
    guard.fetch(key.to_owned(), async || Ok::<_, Down>(1)).await.expect("an answer");
    hits_of_store() > before
}

/// Waits until the guard shares answers through its store again.
pub(crate) async fn recovers(guard: &StampedeGuard) {
    eventually("answers are shared again", async || {
        let key = format!("recovered {}", fastrand::u64(..));
        hits(guard, &key).await;
        guard.drain().await;
        hits(guard, &key).await
    })
    .await;
}

/// Makes a server a replica of the server on this port, and waits until it follows.
pub(crate) async fn replicate(replica: &RedisServer, master: &RedisServer, port: u16) {
    command::<()>(master, "CONFIG SET repl-diskless-sync-delay 0").await;
    command::<()>(replica, &format!("REPLICAOF 127.0.0.1 {port}")).await;
    eventually("the replica follows", async || {
        command::<String>(replica, "INFO replication").await.contains("master_link_status:up")
    })
    .await;
}

/// Sends one command on a new connection.
pub(crate) async fn command<T: redis::FromRedisValue>(server: &RedisServer, line: &str) -> T {
    tell(&server.client(), line).await
}

pub(crate) async fn tell<T: redis::FromRedisValue>(client: &redis::Client, line: &str) -> T {
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.expect("the server is up");
    let mut words = line.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    let answer = cmd.arg(words.collect::<Vec<_>>()).query_async(&mut connection).await;
    answer.unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Records the tracing events of this thread until it is dropped.
pub(crate) struct Events {
    written: Written,
    _listening: DefaultGuard,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Events {
    pub(crate) fn listen() -> Self {
        // While tracing knows of one subscriber only, a thread without a subscriber that is the first to reach an event
        // switches that event off for all threads.
        static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
        LazyLock::force(&SECOND_SUBSCRIBER);
        let written = Written::default();
        let listening = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(written.clone())
            .set_default();
        Self { written, _listening: listening }
    }

    pub(crate) fn all(&self) -> String {
        let written = self.written.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).into_owned()
    }

    /// Returns how many events contain the text.
    pub(crate) fn about(&self, what: &str) -> usize {
        self.all().lines().filter(|line| line.contains(what)).count()
    }
}

impl MakeWriter<'_> for Written {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Seen to fail without the second subscriber of [`Events::listen`].
#[test]
fn event_that_another_thread_reached_first_is_recorded() {
    let (events, report) = (Events::listen(), || tracing::error!("reached"));
    thread::spawn(report).join().expect("no panic");
    assert_eq!(events.about("reached"), 0);
    report();
    assert_eq!(events.about("reached"), 1);
}

/// Runs statements that docs/operations.md shows to copy: without differences except for white space.
macro_rules! documented {
    ($($code:tt)*) => {
        $crate::kit::is_documented(stringify!($($code)*));
        $($code)*
    };
}
pub(crate) use documented;

pub(crate) fn is_documented(code: &str) {
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let document = without_space(include_str!("../../docs/operations.md"));
    assert!(document.contains(&without_space(code)), "docs/operations.md does not have: {code}");
}
