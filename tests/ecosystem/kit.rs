//! Helpers: sites, requests, and responses that are read to their end.

use axum::{
    Router,
    body::{Body, Bytes, HttpBody, to_bytes},
    extract::Request,
    http::{HeaderMap, Method, Response},
    response::IntoResponse,
    routing::any,
};
use futures_util::future::BoxFuture;
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use stampede_guard_support::Origin;
use std::{error::Error, fmt::Debug, future::poll_fn, task::Poll, time::Duration};
use tokio::time;
use tower::{Service, ServiceExt};

/// Returns a guard whose entries stay fresh on a busy machine.
pub(crate) fn guard() -> StampedeGuard {
    StampedeGuard::in_memory().policy(Policy::fresh_for(Duration::from_secs(600)))
}

/// Returns a router that answers `/page` at once, and every other path once the origin lets the call through.
/// Responses come from `respond(fields, n)` on the `n`-th call of the origin.
pub(crate) fn site<R: IntoResponse>(
    origin: &Origin,
    respond: impl Fn(HeaderMap, usize) -> R + Clone + Send + Sync + 'static,
) -> Router {
    let (at_once, gated) = (respond.clone(), respond);
    let (open, origin) = (Origin::new(), origin.clone());
    let page = move |headers: HeaderMap| {
        let (open, respond) = (open.clone(), at_once.clone());
        async move { respond(headers, open.call().await) }
    };
    let other = move |headers: HeaderMap| {
        let (origin, respond) = (origin.clone(), gated.clone());
        async move { respond(headers, origin.call().await) }
    };
    // With its state, so that axum applies layers once and not for each request.
    Router::new().route("/page", any(page)).route("/{*path}", any(other)).with_state(())
}

pub(crate) fn get(path: &str) -> Request {
    get_with(path, &[])
}

pub(crate) fn get_with(path: &str, fields: &[(&str, &str)]) -> Request {
    request(Method::GET, path, fields, Body::empty())
}

pub(crate) fn request(method: Method, path: &str, fields: &[(&str, &str)], body: Body) -> Request {
    let mut request = Request::builder().method(method).uri(path).header("host", "example.test");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(body).expect("a request")
}

/// A response whose body was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) cache_status: Option<CacheStatus>,
}

impl Answer {
    pub(crate) async fn of<B>(response: Response<B>) -> Self
    where
        B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let (parts, body) = response.into_parts();
        let cache_status = parts.extensions.get().copied();
        let body = to_bytes(Body::new(body), usize::MAX).await.expect("a body that does not break off");
        Self { status: parts.status.as_u16(), headers: parts.headers, body, cache_status }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a printable value"))
    }

    pub(crate) fn is_hit(&self) -> bool {
        self.cache_status == Some(CacheStatus::Hit)
    }
}

/// Sends one request and reads its response to the end. Panics if that takes longer than [`BOUND`].
pub(crate) fn ask<S, B>(service: &S, request: Request) -> BoxFuture<'static, Answer>
where
    S: Service<Request, Response = Response<B>, Error: Debug, Future: Send> + Clone + Send + 'static,
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let service = service.clone();
    let answer = async move { Answer::of(service.oneshot(request).await.expect("an answer")).await };
    Box::pin(async { time::timeout(BOUND, answer).await.expect("an answer in time") })
}

/// Polls the future once and reports whether it is pending.
pub(crate) async fn is_pending<T>(future: &mut BoxFuture<'static, T>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Waits until the guard has no task left, so that what was fetched is stored.
pub(crate) async fn at_rest(guard: &StampedeGuard) {
    time::timeout(BOUND, async { while guard.drain().await > 0 {} }).await.expect("all tasks end in time");
}

/// Longer than the rate limits and timeouts of these tests.
pub(crate) const BOUND: Duration = Duration::from_secs(30);
