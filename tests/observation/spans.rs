//! The span of a request, and what events and spans show of its key.

use crate::{
    collector::{Collected, SpanData},
    support::{Down, MS, Origin, RedisServer, SECOND},
};
use futures_util::future::join_all;
use stampede_guard::{
    Policy, StampedeGuard,
    testing::{FakeRedis, Fault, Operation},
};
use std::{
    convert::Infallible,
    future::pending,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use tracing::{Instrument, Span, info_span};
use tracing_subscriber::{Layer, filter::LevelFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

const FETCH: &str = "stampede_guard.fetch";

/// Returns the field of the guard with this name.
fn field<'a>(span: &'a SpanData, name: &str) -> Option<&'a str> {
    span.fields.get(&format!("stampede_guard.{name}")).map(String::as_str)
}

/// Returns the field as a number of milliseconds.
fn ms(span: &SpanData, name: &str) -> Option<f64> {
    field(span, name).map(|value| value.parse().expect("a number"))
}

#[tokio::test(start_paused = true)]
async fn spans_of_leader_and_waiters_say_what_they_did() {
    let spans = Collected::record();
    let guard = StampedeGuard::in_memory().namespace("shop").named("reports");
    let call = async || {
        sleep(20 * MS).await;
        Ok::<_, Infallible>(1)
    };
    join_all((0..3).map(|_| guard.fetch("k", call))).await;
    let fetches = spans.named(FETCH);
    let about = |span: &SpanData| ["role", "status"].map(|name| field(span, name).unwrap_or("none").to_owned());
    let mut parts: Vec<_> = fetches.iter().map(about).collect();
    parts.sort();
    assert_eq!(parts, [["leader", "miss"], ["waiter", "coalesced"], ["waiter", "coalesced"]]);
    for span in &fetches {
        let names = ["namespace", "name", "front_end"].map(|name| field(span, name).expect("a field"));
        assert_eq!((names, span.fields["otel.kind"].as_str()), (["shop", "reports", "fetch"], "internal"));
        assert_eq!(field(span, "key"), None);
        assert_eq!(field(span, "key_hash").expect("a hash").len(), 32);
        let is_leader = field(span, "role") == Some("leader");
        assert_eq!(ms(span, "fetch_ms").is_some_and(|took| (20.0..22.0).contains(&took)), is_leader, "{span:?}");
        assert_eq!(ms(span, "lease_wait_ms").is_some(), is_leader, "{span:?}");
    }
}

/// Seen to fail (the call has the span of the caller) without a span of the request.
#[tokio::test(start_paused = true)]
async fn fetch_span_is_between_the_spans_of_caller_and_call() {
    let spans = Collected::record();
    let guard = StampedeGuard::in_memory();
    let call = || async || Ok::<_, Infallible>(info_span!("call").in_scope(|| 1));
    guard.fetch("k", call()).instrument(info_span!("caller")).await.expect("an answer");
    guard
        .cache::<i32>("n")
        .entry("scoped")
        .fetch_scoped(call())
        .instrument(info_span!("caller"))
        .await
        .expect("an answer");
    assert_eq!(spans.paths("call"), ["caller/stampede_guard.fetch/call"; 2]);
}

/// Seen to fail (the span ends with its caller) when the task of the leader did not hold the span.
#[tokio::test(start_paused = true)]
async fn fetch_keeps_its_span_when_its_caller_leaves() {
    let (spans, origin) = (Collected::record(), Origin::gated());
    let guard = StampedeGuard::in_memory();
    let call = origin.clone();
    let fetch = async move || {
        let number = call.call().await;
        info_span!("after").in_scope(|| ());
        Ok::<_, Down>(number)
    };
    timeout(SECOND, guard.fetch("k", fetch).instrument(info_span!("caller"))).await.expect_err("the gate is closed");
    assert!(!spans.named(FETCH)[0].closed);
    origin.open();
    guard.drain().await;
    assert_eq!(spans.paths("after"), ["caller/stampede_guard.fetch/after"]);
    let span = &spans.named(FETCH)[0];
    assert!(span.closed && ms(span, "fetch_ms").expect("a time") >= 1000.0, "{span:?}");
}

/// Seen to fail (two spans, and the second one stays open) when the refresh ran in the span of its request.
#[tokio::test(start_paused = true)]
async fn refresh_in_the_background_leaves_the_trace_of_its_request() {
    let spans = Collected::record();
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(60 * SECOND).jitter(0.0);
    let guard = StampedeGuard::in_memory().policy(policy);
    guard.fetch("k", async || Ok::<_, Down>(0_usize)).await.expect("an answer");
    guard.drain().await;
    sleep(2 * SECOND).await;
    let gate = Origin::gated();
    let fetch = {
        let gate = gate.clone();
        async move || {
            let number = gate.call().await;
            info_span!("call").in_scope(|| ());
            Ok::<_, Down>(number)
        }
    };
    let stale = guard.fetch("k", fetch).instrument(info_span!("caller")).await;
    assert_eq!(stale.expect("the stale value"), 0);
    gate.arrived(1).await;
    let [_, request, refresh] = &spans.named(FETCH)[..] else { panic!("three spans: {}", spans.text()) };
    assert_eq!((field(request, "status"), field(request, "role")), (Some("stale"), None));
    assert!(request.closed && spans.named("caller")[0].closed && !refresh.closed);
    assert_eq!((field(refresh, "status"), field(refresh, "role")), (None, Some("leader")));
    assert_eq!(refresh.fields["follows"], FETCH);
    gate.open();
    guard.drain().await;
    assert_eq!(spans.paths("call"), ["stampede_guard.fetch/call"]);
    let refresh = &spans.named(FETCH)[2];
    assert!(refresh.closed && ms(refresh, "fetch_ms").is_some() && ms(refresh, "lease_wait_ms").is_some());
}

#[tokio::test(start_paused = true)]
async fn wait_for_another_process_is_the_lease_wait() {
    let spans = Collected::record();
    let server = FakeRedis::new();
    let [a, b] = [server.node().guard().named("a"), server.node().guard().named("b")];
    let call = async || {
        sleep(SECOND).await;
        Ok::<_, Infallible>(1)
    };
    let later = async {
        sleep(SECOND / 2).await;
        b.fetch("k", call).await
    };
    let (first, second) = tokio::join!(a.fetch("k", call), later);
    assert_eq!((first.expect("an answer"), second.expect("an answer")), (1, 1));
    let all = spans.named(FETCH);
    let waited = |name| ms(all.iter().find(|span| field(span, "name") == Some(name)).expect("a span"), "lease_wait_ms");
    assert!(waited("a").expect("a time") < 10.0, "{all:?}");
    assert!((490.0..600.0).contains(&waited("b").expect("a time")), "{all:?}");
}

#[tokio::test]
async fn hit_in_this_process_has_no_span() {
    let spans = Collected::record();
    let guard = StampedeGuard::in_memory();
    for _ in 0..5 {
        guard.fetch("k", async || Ok::<_, Infallible>(1)).await.expect("an answer");
        guard.drain().await;
    }
    assert_eq!((spans.named(FETCH).len(), guard.stats().hits), (1, 4));
    assert_eq!(spans.text().matches("answered").count(), 5, "each has its event: {}", spans.text());
}

#[tokio::test]
async fn hit_over_redis_has_no_span() {
    let (spans, server) = (Collected::record(), RedisServer::start());
    let guard = StampedeGuard::new(server.client());
    for _ in 0..5 {
        guard.fetch("k", async || Ok::<_, Infallible>(1)).await.expect("an answer");
        assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    }
    assert_eq!((spans.named(FETCH).len(), guard.stats().hits), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn span_of_a_failed_fetch_or_rejected_request_has_an_error() {
    let spans = Collected::record();
    let guard = StampedeGuard::in_memory().fetch_timeout(SECOND).failure_ttl(Duration::ZERO);
    let errors = |of: &[SpanData]| -> Vec<(String, String)> {
        let error = |span: &SpanData| {
            ["otel.status_code", "error.type"].map(|name| span.fields.get(name).cloned().unwrap_or_default())
        };
        of.iter().map(error).map(|[code, kind]| (code, kind)).collect()
    };
    guard.fetch("works", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.fetch("down", async || Err::<u64, _>(Down)).await.expect_err("it fails");
    guard.fetch("slow", pending::<Result<u64, Down>>).await.expect_err("it takes too long");
    let busy = guard.max_waiters(1);
    let full = join_all((0..3).map(|_| busy.fetch("full", pending::<Result<u64, Down>>))).await;
    assert!(full.iter().all(Result::is_err));
    let error = |kind: &str| ("ERROR".to_owned(), kind.to_owned());
    let expected = [
        (String::new(), String::new()),
        error("origin"),
        error("timed_out"),
        error("timed_out"),
        error("timed_out"),
        error("overloaded"),
    ];
    assert_eq!(errors(&spans.named(FETCH)), expected, "{}", spans.text());
}

/// A failed refresh in the background is an error of its own span. The request that it follows was answered.
#[tokio::test(start_paused = true)]
async fn failed_refresh_is_no_error_of_its_request() {
    let spans = Collected::record();
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(60 * SECOND).jitter(0.0);
    let guard = StampedeGuard::in_memory().policy(policy);
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.drain().await;
    sleep(2 * SECOND).await;
    guard.fetch("k", async || Err::<i32, _>(Down)).await.expect("the stale value");
    guard.drain().await;
    let failed: Vec<_> = spans.named(FETCH).iter().map(|span| span.fields.contains_key("error.type")).collect();
    assert_eq!(failed, [false, false, true], "{}", spans.text());
}

/// The span of the application has fields with the same names, and is the current one because ours is off.
#[tokio::test]
async fn spans_of_the_application_stay_as_they_are_without_ours() {
    let spans = Collected::at_info();
    let span = info_span!("request", otel.status_code = tracing::field::Empty, "error.type" = tracing::field::Empty);
    let guard = StampedeGuard::in_memory();
    guard.fetch("k", async || Err::<u64, _>(Down)).instrument(span).await.expect_err("it fails");
    let request = &spans.named("request")[0];
    assert!(request.fields.is_empty(), "{request:?}");
    assert_eq!(spans.named(FETCH).len(), 0);
}

/// As `tracing_subscriber::fmt::init()` shows it. A span of level `INFO` put 300 characters before the line.
#[tokio::test]
async fn line_of_a_handler_has_no_fields_of_ours_at_level_info() {
    Collected::keep_spans_enabled();
    let lines = Lines::default();
    let writer = lines.clone();
    let log = fmt().with_ansi(false).without_time().with_writer(move || writer.clone());
    let _installed = log.set_default();
    let handler = async || {
        tracing::info!(target: "shop", "loading from the database");
        Ok::<_, Infallible>(1)
    };
    let fetched = StampedeGuard::in_memory().fetch("k", handler).instrument(info_span!("request", id = 7)).await;
    assert_eq!(fetched.expect("an answer"), 1);
    let text = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("text");
    assert_eq!(text, " INFO request{id=7}: shop: loading from the database\n");
}

/// Beside a layer of traces. The guide says so.
#[tokio::test]
async fn line_of_a_handler_has_the_span_that_its_call_enters() {
    Collected::keep_spans_enabled();
    let lines = Lines::default();
    let writer = lines.clone();
    let log = fmt::layer().with_ansi(false).without_time().with_writer(move || writer.clone());
    let traces = fmt::layer().with_writer(io::sink).with_filter(LevelFilter::DEBUG);
    let _installed = tracing_subscriber::registry().with(log.with_filter(LevelFilter::INFO)).with(traces).set_default();
    let guard = StampedeGuard::in_memory();
    async fn handler() -> Result<i32, Infallible> {
        tracing::info!(target: "shop", "loading");
        Ok(1)
    }
    let request = async {
        let span = Span::current();
        guard.fetch("inside", move || handler().instrument(span)).await.expect("an answer");
        guard.fetch("outside", handler).await.expect("an answer");
    };
    request.instrument(info_span!("request", id = 7)).await;
    let text = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("text");
    assert_eq!(text, " INFO request{id=7}: shop: loading\n INFO shop: loading\n");
}

#[tokio::test]
async fn span_names_the_server_without_user_and_password() {
    let spans = Collected::record();
    let server = RedisServer::start();
    let url = format!("redis://default:hunter2@127.0.0.1:{}", server.port());
    let guard = StampedeGuard::new(stampede_guard::redis::Client::open(url).expect("a URL"));
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    assert_eq!(spans.named(FETCH)[0].fields["server.address"], "127.0.0.1", "{}", spans.text());
    assert!(!spans.text().contains("hunter2"), "{}", spans.text());
    let embedded = StampedeGuard::in_memory();
    embedded.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    assert_eq!(spans.named(FETCH)[1].fields.get("server.address"), None);
}

/// What a subscriber has written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes all kinds of answers and failures with a key that has a secret, and returns what was logged.
async fn logged(set: impl Fn(StampedeGuard) -> StampedeGuard) -> String {
    let spans = Collected::record();
    let node = FakeRedis::new().node();
    let guard = set(node.guard());
    let key = "/invoice?token=hunter2";
    guard.fetch(key, async || Err::<u64, _>(Down)).await.expect_err("it fails");
    sleep(20 * SECOND).await;
    guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.invalidate(key).await.expect("acknowledged");
    node.always(Operation::Get, Fault::Hangs);
    guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
    timeout(SECOND, guard.clone().max_detached(0).fetch(key, pending::<Result<u64, Down>>))
        .await
        .expect_err("it hangs");
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    spans.text()
}

/// Seen to fail when `log_keys` was on by default.
#[tokio::test(start_paused = true)]
async fn keys_are_hashed_in_events_and_spans() {
    let text = logged(|guard| guard).await;
    assert!(text.contains("key=") && text.contains("key_hash="), "{text}");
    assert!(!text.contains("invoice") && !text.contains("hunter2"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn log_keys_shows_keys_in_events_and_spans() {
    let text = logged(|guard| guard.log_keys(true)).await;
    assert!(text.contains("key=/invoice?token=hunter2"), "{text}");
    assert!(text.contains("stampede_guard.key=/invoice?token=hunter2"), "{text}");
}

/// Two fetches in two processes that need each other. Seen to fail with no line.
#[tokio::test(start_paused = true)]
async fn nested_wait_is_reported_once_with_both_keys() {
    let (spans, server) = (Collected::record(), FakeRedis::new());
    let [a, b] = [(); 2].map(|()| server.node().guard().log_keys(true).fetch_timeout(20 * SECOND));
    let needs = |guard: &StampedeGuard, key: &'static str, other: &'static str| {
        let (guard, inner) = (guard.clone(), guard.clone());
        async move {
            let fetch = async move || {
                sleep(SECOND).await;
                inner.fetch(other, async || Ok::<_, Down>(1)).await
            };
            guard.fetch(key, fetch).await
        }
    };
    let (x, y) = tokio::join!(needs(&a, "x", "y"), needs(&b, "y", "x"));
    x.expect_err("it needs y");
    y.expect_err("it needs x");
    for keys in ["key=y within=x", "key=x within=y"] {
        assert_eq!(spans.text().matches(keys).count(), 1, "{}", spans.text());
    }
}
