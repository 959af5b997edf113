//! HTTP from the side of a client: reqwest with the layer around it, which makes it a shared cache (RFC 9111), and a view
//! whose values come from an API and are validated by their `ETag`.

use crate::{
    kit::{Answer, BOUND, at_rest},
    sockets::serve,
};
use axum::{Router, extract::State, routing::get};
use futures_util::future::join_all;
use http::{HeaderMap, Request, Response, StatusCode, header};
use reqwest::{Body, Client};
use serde::{Deserialize, Serialize};
use stampede_guard::{BoxError, Cache, Error, FetchContext, FetchOutcome, Policy, StampedeGuard, http::CacheBody};
use stampede_guard_support::Origin;
use std::{net::SocketAddr, time::Duration};
use tokio::time::timeout;
use tower::{Service, ServiceBuilder, ServiceExt};

/// Returns a client that stores responses as their fields say, validates them by their `ETag`, and sends one request for
/// all callers that need the same resource. The URI of a request is absolute.
fn cached_client(
    guard: StampedeGuard,
    client: Client,
) -> impl Service<Request<Body>, Response = Response<CacheBody<Body>>, Error = reqwest::Error, Future: Send> + Clone {
    let send = move |request: Request<Body>| {
        let client = client.clone();
        async move { Ok::<Response<Body>, reqwest::Error>(client.execute(request.try_into()?).await?.into()) }
    };
    ServiceBuilder::new().layer(guard).service_fn(send)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Feed {
    items: Vec<String>,
}

/// The feeds of an API: decoded once, then shared by the fleet. After a minute the API is asked whether the feed has
/// changed, and a feed that has not is neither sent nor decoded again.
#[derive(Clone)]
struct Feeds {
    client: Client,
    base: String,
    cache: Cache<Feed>,
}

impl Feeds {
    fn new(guard: &StampedeGuard, base: String) -> Self {
        let policy = Policy::fresh_for(Duration::from_secs(60))
            .stale_if_error(Duration::from_secs(3600))
            .keep_for_validation(Duration::from_secs(86_400));
        Self { client: Client::new(), base, cache: guard.cache("feed").policy(policy) }
    }

    async fn get(&self, name: &str) -> Result<Feed, Error> {
        let request = self.client.get(format!("{}/{name}", self.base));
        self.cache.entry(name).fetch_with(|cx| load(request, cx)).await
    }
}

async fn load(mut request: reqwest::RequestBuilder, cx: FetchContext<Feed>) -> Result<FetchOutcome<Feed>, BoxError> {
    if let Some(etag) = cx.validator() {
        request = request.header(header::IF_NONE_MATCH, etag);
    }
    let response = request.send().await?.error_for_status()?;
    if response.status() == StatusCode::NOT_MODIFIED {
        return cx.unchanged().ok_or_else(|| "304 without a validator".into());
    }
    let etag = response.headers().get(header::ETAG).cloned();
    let feed = FetchOutcome::new(response.json().await?);
    Ok(match etag {
        Some(etag) => feed.validator(etag.as_bytes().to_vec()),
        None => feed,
    })
}

/// An API with one feed, which counts its responses: with the feed, and without it if it has not changed.
#[derive(Clone)]
struct Api {
    sent: Origin,
    unchanged: Origin,
}

impl Api {
    async fn start() -> (Self, SocketAddr, tokio::task::JoinSet<()>) {
        let api = Self { sent: Origin::new(), unchanged: Origin::new() };
        let (address, server) = serve(Router::new().route("/news", get(Self::news)).with_state(api.clone())).await;
        (api, address, server)
    }

    async fn news(State(api): State<Self>, headers: HeaderMap) -> Response<axum::body::Body> {
        let response = Response::builder().header(header::ETAG, "\"v1\"").header(header::CACHE_CONTROL, "max-age=60");
        let response = if headers.get(header::IF_NONE_MATCH).is_some_and(|etag| etag == "\"v1\"") {
            api.unchanged.call().await;
            response.status(StatusCode::NOT_MODIFIED).body(axum::body::Body::empty())
        } else {
            api.sent.work(Duration::from_millis(50)).await;
            response.header(header::CONTENT_TYPE, "application/json").body(r#"{"items":["tea"]}"#.into())
        };
        response.expect("valid fields")
    }
}

#[tokio::test]
async fn reqwest_in_the_layer_sends_one_request_for_all() {
    let (api, address, _server) = Api::start().await;
    let guard = StampedeGuard::in_memory();
    let client = cached_client(guard.clone(), Client::new());
    let ask = || {
        let request = Request::get(format!("http://{address}/news")).body(Body::default()).expect("a request");
        client.clone().oneshot(request)
    };
    for response in timeout(BOUND, join_all((0..20).map(|_| ask()))).await.expect("in time") {
        assert_eq!(Answer::of(response.expect("a response")).await.text(), r#"{"items":["tea"]}"#);
    }
    at_rest(&guard).await;
    let hit = Answer::of(ask().await.expect("a response")).await;
    assert!(hit.is_hit() && hit.header("cache-status").contains("; hit"), "{hit:?}");
    assert_eq!(api.sent.calls(), 1);
}

/// The feed is made stale by `expire`, as if its minute were over.
#[tokio::test]
async fn reqwest_in_a_view_asks_whether_the_feed_has_changed() {
    let (api, address, _server) = Api::start().await;
    let guard = StampedeGuard::in_memory();
    let feeds = Feeds::new(&guard, format!("http://{address}"));
    let tea = Feed { items: vec!["tea".to_owned()] };
    for _ in 0..3 {
        for feed in timeout(BOUND, join_all((0..20).map(|_| feeds.get("news")))).await.expect("in time") {
            assert_eq!(feed.expect("a feed"), tea);
        }
        at_rest(&guard).await;
        feeds.cache.expire("news").await.expect("the store answers");
    }
    assert_eq!((api.sent.calls(), api.unchanged.calls()), (1, 2));

    let error = feeds.get("sport").await.expect_err("no such feed");
    assert_eq!(error.origin::<reqwest::Error>().and_then(reqwest::Error::status), Some(StatusCode::NOT_FOUND));
}
