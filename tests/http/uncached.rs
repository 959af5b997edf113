//! Why a response was not answered from the cache and not stored: the `detail` of `Cache-Status`, and its counter.

use crate::{
    bodies::{breaks_off, head, streaming},
    kit::{Answer, ask, at_rest, get, get_with, request, site, taps, waiting},
    support::{Origin, eventually},
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::any,
};
use futures_util::{FutureExt, future::join_all};
use stampede_guard::{
    CacheStatus, MemoryStore, StampedeGuard, Stats,
    http::{HttpOptions, Uncached},
    testing::{FakeRedis, Fault, Operation},
};
use std::{
    future::pending,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::sleep;
use tower::ServiceExt;

/// One request to an empty cache.
struct Case {
    reason: Uncached,
    /// The parameters of `Cache-Status` before `detail`.
    parameters: &'static str,
    request: Request,
    response: Response,
    options: HttpOptions,
}

/// A request that is not answered from the cache, whatever the response says.
fn refused(reason: Uncached, request: Request) -> Case {
    let parameters = "; fwd=request; fwd-status=200";
    let response = ([("cache-control", "public, max-age=60")], "page").into_response();
    Case { reason, parameters, request, response, options: HttpOptions::default() }
}

/// A request for the response with this field.
fn answered(reason: Uncached, name: &'static str, value: &'static str) -> Case {
    let (mut response, parameters) = ("page".into_response(), "; fwd=uri-miss; fwd-status=200");
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    Case { reason, parameters, request: get("/page"), response, options: HttpOptions::default() }
}

impl Case {
    fn with(self, parameters: &'static str) -> Self {
        Self { parameters, ..self }
    }

    fn status(mut self, status: StatusCode, parameters: &'static str) -> Self {
        *self.response.status_mut() = status;
        self.with(parameters)
    }

    fn options(self, options: HttpOptions) -> Self {
        Self { options, ..self }
    }

    fn request(self, request: Request) -> Self {
        Self { request, ..self }
    }

    /// Sends the request. The stated body is larger than the layer stores.
    async fn check(self) -> Stats {
        let Self { reason, parameters, request, response, options } = self;
        let guard = StampedeGuard::in_memory().max_payload(CAP).http(options);
        let response = Arc::new(std::sync::Mutex::new(Some(response)));
        let handler = move || std::future::ready(response.lock().expect("no panic").take().expect("one request"));
        let app = Router::new().fallback(any(handler)).layer(guard.clone());
        let answer = ask(&app, request).await;
        assert_eq!(answer.header("cache-status"), format!("stampede-guard{parameters}; detail={reason}"));
        at_rest(&guard).await;
        counted(&guard, &[(reason, 1)])
    }
}

/// Asserts that the guard has counted exactly these reasons.
#[track_caller]
fn counted(guard: &StampedeGuard, expected: &[(Uncached, u64)]) -> Stats {
    let stats = guard.stats();
    let all = Uncached::ALL.iter().map(|reason| (*reason, stats.uncached(*reason)));
    let occurred: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
    assert_eq!(occurred.len(), expected.len(), "{occurred:?}");
    assert!(occurred.iter().all(|counted| expected.contains(counted)), "{occurred:?}");
    stats
}

fn of_requests() -> Vec<Case> {
    let with = |name: &str, value: &str| get_with("/page", &[(name, value)]);
    let body = http_body_util::combinators::UnsyncBoxBody::new(http_body_util::Full::from("body"));
    let mut with_body = get("/page");
    *with_body.body_mut() = Body::new(body);
    let long = format!("/{}", "x".repeat(8_000));
    vec![
        refused(Uncached::Method, request(Method::OPTIONS, "/page", &[])).with("; fwd=method; fwd-status=200"),
        refused(Uncached::Method, request(Method::POST, "/page", &[])).with("; fwd=method; fwd-status=200"),
        refused(Uncached::RequestBody, with_body),
        refused(Uncached::RequestNoStore, with("cache-control", "no-store"))
            .options(HttpOptions::default().honour_request_directives()),
        refused(Uncached::Upgrade, with("upgrade", "websocket")),
        refused(Uncached::InvalidTarget, get("ftp://example.test/page")),
        refused(Uncached::AmbiguousHost, with("host", "other.test")),
        refused(Uncached::TargetTooLong, get(&long)),
        refused(Uncached::OnlyIfCached, with("cache-control", "only-if-cached")).with(""),
    ]
}

fn of_responses() -> Vec<Case> {
    let fresh = |reason| answered(reason, "cache-control", "max-age=60");
    let with = |name: &str| get_with("/page", &[(name, "alice")]);
    let by_path = HttpOptions::default().private_if(|parts| parts.uri == Uri::from_static("/page"));
    vec![
        fresh(Uncached::Authorization).request(with("authorization")),
        fresh(Uncached::Cookie).request(with("cookie")),
        fresh(Uncached::CredentialField).request(with("proxy-authorization")),
        fresh(Uncached::PrivateIf).options(by_path),
        answered(Uncached::NoStore, "cache-control", "no-store"),
        answered(Uncached::NoStore, "cache-control", "no-store").request(with("cookie")),
        answered(Uncached::Private, "cache-control", "private"),
        answered(Uncached::SetCookie, "set-cookie", "a=b"),
        answered(Uncached::UserField, "x-csrf-token", "a"),
        answered(Uncached::Vary, "vary", "*"),
        answered(Uncached::EventStream, "content-type", "text/event-stream"),
        fresh(Uncached::Partial).status(StatusCode::PARTIAL_CONTENT, "; fwd=uri-miss; fwd-status=206"),
        answered(Uncached::Status, "x", "y").status(StatusCode::FOUND, "; fwd=uri-miss; fwd-status=302"),
        answered(Uncached::NoFreshness, "x", "y").options(HttpOptions::default().require_explicit_freshness()),
        answered(Uncached::NoFreshness, "x", "y").options(HttpOptions::default().heuristic_freshness(0.1)),
        answered(Uncached::Expired, "cache-control", "max-age=0"),
        answered(Uncached::ClientError, "x", "y").status(StatusCode::BAD_REQUEST, "; fwd=uri-miss; fwd-status=400"),
        answered(Uncached::OriginFailure, "x", "y").status(StatusCode::BAD_GATEWAY, "; fwd=uri-miss; fwd-status=502"),
        Case { response: "x".repeat(CAP + 1).into_response(), ..answered(Uncached::TooLarge, "x", "y") },
    ]
}

/// Seen to fail without `detail`.
#[tokio::test(start_paused = true)]
async fn each_reason_is_in_cache_status_and_counted() {
    let mut stats = Vec::new();
    for case in of_requests().into_iter().chain(of_responses()) {
        stats.push(case.check().await);
    }
    stats.extend([
        private_herd().await,
        nested().await,
        bypassed().await,
        leaders_break_off().await,
        fail_open().await,
        failed().await,
    ]);
    stats.extend([
        range_of_private().await,
        invalidation_pending().await,
        unrelated_304().await,
        store_too_small().await,
    ]);
    stats.extend([other_fields().await, too_large_at_its_end().await, endless().await, breaks_off_at_its_end().await]);
    let missing = Uncached::ALL.iter().filter(|reason| stats.iter().all(|stats| stats.uncached(**reason) == 0));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Uncached>::new());
}

#[tokio::test(start_paused = true)]
async fn stored_and_shared_responses_have_no_detail() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let herd = waiting(&app, 3, |_| get("/page")).await;
    origin.open();
    let mut answers = herd.answers().await;
    at_rest(&guard).await;
    answers.push(ask(&app, get("/page")).await);
    assert!(answers.iter().all(|answer| !answer.header("cache-status").contains("detail")), "{answers:?}");
    counted(&guard, &[]);
}

fn assert_detail(answer: &Answer, parameters: &str, reason: Uncached) {
    assert_eq!(answer.header("cache-status"), format!("stampede-guard{parameters}; detail={reason}"));
}

async fn range_of_private() -> Stats {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |_, _| ([("cache-control", "private")], "page")).layer(guard.clone());
    let answer = ask(&app, get_with("/page", &[("range", "bytes=0-0")])).await;
    assert_detail(&answer, "; fwd=miss; fwd-status=200", Uncached::Range);
    at_rest(&guard).await;
    counted(&guard, &[(Uncached::Range, 1)])
}

/// A request that waits for a private response.
/// Sends values of a field until two of them have the same of the 64 names.
async fn other_fields() -> Stats {
    let guard = StampedeGuard::in_memory();
    let app = Router::new().fallback(any(async || ([("cache-control", "max-age=60")], "page"))).layer(guard.clone());
    for n in 0..100 {
        let answer = ask(&app, get_with("/page", &[("x-unknown", &n.to_string())])).await;
        at_rest(&guard).await;
        if answer.cache_status() == CacheStatus::Bypass {
            let status = "stampede-guard; fwd=bypass; fwd-status=200; detail=other-fields";
            assert_eq!(answer.header("cache-status"), status);
            return counted(&guard, &[(Uncached::OtherFields, 1)]);
        }
    }
    panic!("100 values have 100 names")
}

async fn private_herd() -> Stats {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, _| [("cache-control", "private")]).layer(guard.clone());
    let herd = waiting(&app, 2, |_| get("/page")).await;
    origin.open();
    assert_detail(&herd.answers().await[1], "; fwd=bypass; fwd-status=200", Uncached::NotShared);
    at_rest(&guard).await;
    let later = ask(&app, get("/page")).await;
    assert_detail(&later, "; fwd=uri-miss; fwd-status=200", Uncached::Private);
    counted(&guard, &[(Uncached::Private, 2), (Uncached::NotShared, 1)])
}

/// A handler that requests its own page.
async fn bypassed() -> Stats {
    let guard = StampedeGuard::in_memory().bypass(true);
    let handler = || async { ([("cache-control", "max-age=60")], "page") };
    let app = Router::new().fallback(any(handler)).layer(guard.clone());
    for _ in 0..2 {
        let answer = ask(&app, get("/page")).await;
        let expected = "stampede-guard; fwd=bypass; fwd-status=200; detail=disabled";
        assert_eq!(answer.header("cache-status"), expected);
    }
    counted(&guard, &[(Uncached::Disabled, 2)])
}

async fn nested() -> Stats {
    let (guard, app) = (StampedeGuard::in_memory(), Arc::new(OnceLock::<Router>::new()));
    let own = app.clone();
    let handler = async move |request: Request| match request.headers().contains_key("inner") {
        true => "inner".to_owned(),
        false => {
            let inner = own.get().expect("it is set").clone().oneshot(get_with("/page", &[("inner", "1")]));
            inner.boxed().await.expect("an answer").headers()["cache-status"].to_str().expect("a text").to_owned()
        }
    };
    let app = app.get_or_init(|| Router::new().route("/page", any(handler)).layer(guard.clone()));
    let answer = ask(app, get("/page")).await;
    assert_eq!(answer.text(), "stampede-guard; fwd=bypass; fwd-status=200; detail=nested");
    at_rest(&guard).await;
    counted(&guard, &[(Uncached::Nested, 1)])
}

/// Bodies of unknown length that break off: one waiter repeats the call.
async fn leaders_break_off() -> Stats {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let ((taps, bodies), requests) = (taps(2, None), 66);
    let app = site(&origin, move |_, _| bodies()).layer(guard.clone());
    taps.into_iter().for_each(crate::kit::Tap::break_off);
    let heads = join_all((0..requests).map(|_| head(&app, "/page"))).await;
    let details = heads.iter().map(|head| head.headers()["cache-status"].to_str().expect("a text"));
    assert_eq!(details.filter(|detail| detail.contains("detail=failed")).count(), 64);
    assert_eq!(origin.calls(), 2);
    drop(heads);
    at_rest(&guard).await;
    counted(&guard, &[(Uncached::Failed, 64), (Uncached::Truncated, 2)])
}

async fn fail_open() -> Stats {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    for operation in [Operation::Get, Operation::GetOrLease] {
        node.always(operation, Fault::Fails);
    }
    let guard = node.guard();
    let app = site(&origin, |_, _| "page").layer(guard.clone());
    assert_detail(&ask(&app, get("/page")).await, "; fwd=uri-miss; fwd-status=200", Uncached::FailOpen);
    counted(&guard, &[(Uncached::FailOpen, 1)])
}

async fn failed() -> Stats {
    let guard = StampedeGuard::in_memory().fetch_timeout(Duration::from_secs(1));
    let app = Router::new().route("/page", any(pending::<()>)).layer(guard.clone());
    assert_detail(&ask(&app, get("/page")).await, "", Uncached::Failed);
    counted(&guard, &[(Uncached::Failed, 1)])
}

async fn invalidation_pending() -> Stats {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    node.once(Operation::Invalidate, Fault::Fails);
    let guard = node.guard();
    let app = site(&origin, |_, _| "done").layer(guard.clone());
    let answer = ask(&app, request(Method::POST, "/page", &[])).await;
    assert_detail(&answer, "; fwd=method; fwd-status=200", Uncached::InvalidationPending);
    counted(&guard, &[(Uncached::InvalidationPending, 1)])
}

async fn unrelated_304() -> Stats {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let respond = |_: &Request, n: usize| match n {
        1 => ([("etag", "\"a\""), ("cache-control", "max-age=0")], "page").into_response(),
        _ => (StatusCode::NOT_MODIFIED, [("etag", "\"b\"")]).into_response(),
    };
    let app = site(&origin, respond).layer(guard.clone());
    ask(&app, get("/page")).await;
    at_rest(&guard).await;
    let answer = ask(&app, get("/page")).await;
    assert_detail(&answer, "; fwd=stale; fwd-status=304", Uncached::UnrelatedNotModified);
    counted(&guard, &[(Uncached::UnrelatedNotModified, 1)])
}

/// The first response is too large for the store. Its field says `stored`, because the store is asked at its end.
async fn store_too_small() -> Stats {
    let (guard, origin) = (StampedeGuard::new(MemoryStore::with_max_bytes(1_000)), Origin::new());
    let app = site(&origin, |_, _| "x".repeat(10_000)).layer(guard.clone());
    ask(&app, get("/page")).await;
    at_rest(&guard).await;
    let later = ask(&app, get("/page")).await;
    assert_detail(&later, "; fwd=uri-miss; fwd-status=200", Uncached::StoreTooSmall);
    counted(&guard, &[(Uncached::StoreTooSmall, 1)])
}

/// A body of unknown length that turns out too large. A second body is stored, and does not count.
async fn too_large_at_its_end() -> Stats {
    let guard = StampedeGuard::in_memory().max_payload(CAP);
    for (path, body) in [("/large", "x".repeat(CAP + 1)), ("/small", "small".to_owned())] {
        let (app, _, mut taps) = streaming(&guard, 1, None, "max-age=60");
        let tap = taps.remove(0);
        tap.send(body);
        drop(tap);
        let answer = ask(&app, get(path)).await;
        assert_detail(&answer, "; fwd=uri-miss; fwd-status=200", Uncached::UnknownLength);
        at_rest(&guard).await;
    }
    counted(&guard, &[(Uncached::TooLarge, 1)])
}

/// A body that does not end within 5 s, and a request that comes after its head.
async fn endless() -> Stats {
    let guard = StampedeGuard::in_memory();
    let (app, origin, _taps) = streaming(&guard, 2, None, "max-age=60");
    let _leader = head(&app, "/page").await;
    let later = head(&app, "/page").await;
    assert_eq!(later.headers()["cache-status"], "stampede-guard; fwd=bypass; fwd-status=200; detail=unknown-length");
    assert_eq!((counted(&guard, &[(Uncached::UnknownLength, 1)]).bypassed, origin.calls()), (1, 2));
    sleep(Duration::from_secs(6)).await;
    at_rest(&guard).await;
    counted(&guard, &[(Uncached::UnknownLength, 2)])
}

async fn breaks_off_at_its_end() -> Stats {
    let guard = StampedeGuard::in_memory();
    let (app, _, mut taps) = streaming(&guard, 1, Some(8), "max-age=60");
    taps.remove(0).break_off();
    let answer = head(&app, "/page").await;
    assert_eq!(answer.headers()["cache-status"], "stampede-guard; fwd=uri-miss; fwd-status=200; stored");
    assert!(breaks_off(answer).await);
    eventually("it is counted", async || guard.stats().uncached(Uncached::Truncated) == 1).await;
    counted(&guard, &[(Uncached::Truncated, 1)])
}

const CAP: usize = 2_000;
