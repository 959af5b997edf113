//! Helpers of these tests: herds in which every caller must be answered, and the number of origin calls.

pub(crate) use crate::calls::{calls_of_a_herd, command, connection, hits, patient, tell};

use crate::{
    MS,
    calls::calls_of_a_herd_for,
    support::{Origin, RedisServer, eventually, herd},
};
use axum::{
    body::{Body, to_bytes},
    http::{Request, Response},
};
use futures_util::future::BoxFuture;
use redis::aio::ConnectionLike;
use stampede_guard::StampedeGuard;
use std::{
    convert::Infallible,
    io,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
    thread,
};
use tower::{Layer, ServiceExt, service_fn};
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::{fmt::MakeWriter, util::SubscriberInitExt};

/// Does the same as [`calls_of_a_herd`] with a value that is large enough to be staged.
pub(crate) async fn calls_of_a_large_herd(guards: &[StampedeGuard], key: &str) -> usize {
    calls_of_a_herd_for(guards, key, "x".repeat(10_000)).await
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
pub(crate) enum Language {
    German,
    English,
}

/// Sends one request and asserts that the page has its language.
pub(crate) fn page(guard: &StampedeGuard, origin: &Origin, url: &str, language: Language) -> BoxFuture<'static, ()> {
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

/// Returns the number of connections that a server has accepted so far.
pub(crate) async fn connections_received(admin: &mut impl ConnectionLike) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query_async(admin).await.expect("it is up");
    let received = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    received.expect("a line").parse().expect("a number")
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

/// Records the tracing events of this thread until it is dropped.
pub(crate) struct Events {
    written: Written,
    _listening: DefaultGuard,
}

#[derive(Clone, Default)]
struct Written {
    bytes: Arc<Mutex<Vec<u8>>>,
    at_each: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

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

    /// Calls the function at each event from now on, in the middle of what has reported it.
    pub(crate) fn at_each(&self, call: impl Fn() + Send + Sync + 'static) {
        assert!(self.written.at_each.set(Box::new(call)).is_ok(), "there is one");
    }

    pub(crate) fn all(&self) -> String {
        let written = self.written.bytes.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        if let Some(call) = self.at_each.get() {
            call();
        }
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

/// Runs statements that a page of the guide shows to copy: without differences except for white space.
macro_rules! documented {
    ($($code:tt)*) => {
        $crate::kit::is_documented(stringify!($($code)*));
        $($code)*
    };
}
pub(crate) use documented;

pub(crate) fn is_documented(code: &str) {
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let pages = [include_str!("../../src/guide/redis.md"), include_str!("../../src/guide/sentinel.md")];
    let code = without_space(code);
    assert!(pages.iter().any(|page| without_space(page).contains(&code)), "the guide does not have: {code}");
}
