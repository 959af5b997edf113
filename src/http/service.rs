//! The guard as a tower layer over an HTTP service, and the invalidation of stored responses: by unsafe requests (RFC 9111
//! §4.4), and by the application.

use super::{
    body::{CacheBody, OriginBody},
    forward,
    key::{Target, layout_of_responses},
    origin::OriginRequest,
    reply::{self, Answer, Finished, Recorder, StatusNote, Storage, annotate},
    request_policy::{RequestPolicy, SharedPolicy},
    semantics::request::{self, Credentials, Disposition},
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    engine::{
        frontend::{FetchHead, FetchMode, Shareability, Unshared},
        resolve::IN_A_TASK,
        resource::Resource,
    },
    error::{BoxError, Error, ErrorKind},
    guard::StampedeGuard,
    key::{CacheKey, Qualifier},
    store::error::BoxFuture,
    telemetry::FrontEnd,
    uncached::Uncached,
};
use futures_util::{
    FutureExt,
    future::{Either, join_all},
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Body;
use std::{
    fmt,
    future::{self, Future},
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Instant,
};
use tower_layer::Layer;
use tower_service::Service;

impl<S> Layer<S> for StampedeGuard {
    type Service = HttpCache<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.engine.routes.is_layer.store(true, Relaxed);
        HttpCache { inner, guard: self.clone() }
    }
}

/// An HTTP service protected by a [`StampedeGuard`]: a shared cache in the sense of RFC 9111. A response without
/// freshness information is shared for the 10 s of the policy, by requests without `Cookie` and `Authorization` that
/// agree in all fields but [harmless](crate::http::HttpOptions::harmless_fields) ones. Responses that say `public` or
/// `s-maxage` are shared by all clients, and responses that say `private` by none. A handler that knows its user from
/// something that is no field, such as an extension or an address, needs
/// [`private_if`](crate::http::HttpOptions::private_if), or
/// [`require_explicit_freshness`](crate::http::HttpOptions::require_explicit_freshness) and directives of its own.
///
/// It is always ready, so that a saturated origin does not delay hits; each call drives a clone of the inner service to
/// readiness. An error of the inner service reaches the leading request unchanged; its waiters get a 502. Other errors
/// become responses too: 504 for the fetch timeout, 500 for a panic, and 503 with `Retry-After` for a rejected request,
/// also after a recent failure.
///
/// A request with a body bypasses the cache, because the body is not part of the key. So does one whose body does not say
/// that it is empty, because a layer above the guard hides that, for example tower-http's `RequestBodyTimeoutLayer`: put
/// that layer inside of the guard.
///
/// `Cache-Control` of the handlers decides what is stored. Each route can have a clone with settings of its own:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, http::header::CACHE_CONTROL, routing::get};
/// use stampede_guard::{Policy, StampedeGuard};
/// use std::time::Duration;
///
/// let guard = StampedeGuard::in_memory();
/// let silent = guard.clone().policy(Policy::fresh_for(Duration::from_secs(60)));
/// let app: Router = Router::new()
///     .route("/news", get(async || "fresh for a minute").route_layer(silent))
///     .route("/rates", get(async || ([(CACHE_CONTROL, "max-age=300")], "for five")).route_layer(guard.clone()))
///     .route("/basket", get(async || ([(CACHE_CONTROL, "private")], "for one client")).route_layer(guard));
/// # }
/// ```
///
/// # Invalidation
///
/// A successful unsafe request, such as a POST, invalidates the pages of its own URL. A handler that changes what other
/// pages show calls [`invalidate_url`](StampedeGuard::invalidate_url) with their URLs. The host is a part of the key, so
/// the URL names it. For an application that answers every `Host` alike, set
/// [`HttpOptions::ignore_host`](crate::http::HttpOptions::ignore_host): then a path is enough.
/// [`invalidate`](StampedeGuard::invalidate) is for values, and refuses the URL of a page.
///
/// The [guide](crate::guide::layers) lists which layers belong outside of the guard, and which inside.
#[derive(Clone, Debug)]
pub struct HttpCache<S> {
    pub(super) inner: S,
    pub(super) guard: StampedeGuard,
}

impl<S, Req, B> Service<Request<Req>> for HttpCache<S>
where
    S: Service<Request<Req>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    Req: Body + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<CacheBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<B, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Req>) -> Self::Future {
        let has_body = forward::has_body(&request);
        let options = &self.guard.config.http;
        let mut cache_request = match request::disposition(request.method(), request.headers(), has_body, options) {
            Disposition::Cache(cache_request) => cache_request,
            Disposition::Forward(reason) => return ResponseFuture::slow(self.clone().forward(request, reason)),
            Disposition::Unsafe => return ResponseFuture::slow(self.clone().forward_unsafe(request)),
        };
        if let Some(is_private) = &options.private_if {
            let (parts, body) = request.into_parts();
            if is_private.0(&parts) {
                cache_request.credentials = Credentials::PrivateIf;
            }
            request = Request::from_parts(parts, body);
        }
        let target = match Target::unambiguous(&request, &mut cache_request.forwarded, options) {
            Ok(target) => target,
            Err(reason) => return ResponseFuture::slow(self.clone().forward(request, reason)),
        };
        let key = target.key(options);
        let (config, requested_at) = (&*self.guard.config, Timestamp::now());
        let early_refresh = config.policy.sample_early_refresh(clock::random_unit);
        let headers = request.headers();
        let policy = RequestPolicy { cache_request, headers, config, requested_at, early_refresh };
        let layout = layout_of_responses(config);
        let hit: Option<Answer<B, S::Error>> = self.guard.peek(FrontEnd::Http, layout, &key, &policy, requested_at);
        if let Some(Ok(hit)) = hit {
            return ResponseFuture::ready(annotate(hit, CacheStatus::Hit));
        }
        let mut resource = self.guard.resource_in(FrontEnd::Http, layout, key);
        if let Some(Deadline(at)) = request.extensions().get() {
            resource.deadline = Some((*at).into());
        }
        // PERF: shared instead of cloned, because most requests here wait, and only a leader needs a copy. With smaller
        // futures, a waiter takes 2,290 bytes instead of 8,621.
        let headers = Arc::new(mem::take(request.headers_mut()));
        let config = resource.config.clone();
        let policy = RequestPolicy { cache_request, headers, config, requested_at, early_refresh };
        match cache_request.lookup_only {
            Some(reason) => ResponseFuture::slow(self.clone().lookup_only(request, resource, policy, reason)),
            None => ResponseFuture::slow(self.clone().resolve(request, resource, policy)),
        }
    }
}

impl<S> HttpCache<S> {
    /// Joins the flight of the request, or leads one. The head of the request is in the policy. PERF: not an `async fn`,
    /// which reserves space for its arguments twice.
    fn resolve<Req: Send + 'static, B: OriginBody>(
        self,
        request: Request<Req>,
        resource: Resource,
        policy: SharedPolicy,
    ) -> impl Future<Output = Finished<B, S::Error>> + Send
    where
        S: Service<Request<Req>, Response = Response<B>, Error: Send + 'static, Future: Send> + Clone + Send + 'static,
    {
        let recorder = Arc::new(Recorder::new(&self.guard, &request));
        let origin_request = OriginRequest { policy: policy.clone(), recorder: recorder.clone() };
        // PERF: in a box, because a lookup and then a waiter have room for it.
        let fetch = Box::new(move |mode: FetchMode, resource| async move {
            let is_whole = origin_request.policy.cache_request.range && matches!(mode, FetchMode::Lead { .. });
            let (mut parts, body) = request.into_parts();
            parts.headers = HeaderMap::clone(&origin_request.policy.headers);
            // An `h2c`. A proxy within would remove the fields that `Connection` names, although they may be in the key.
            for field in ["upgrade", "connection", "te", "keep-alive", "proxy-connection"] {
                parts.headers.remove(field);
            }
            // Without a `Host`, a handler would answer with its default host, although the key has the authority.
            let authority = parts.uri.authority().filter(|_| !origin_request.policy.config.http.ignore_host);
            if let Some(Ok(host)) = authority.map(|authority| HeaderValue::try_from(authority.as_str())) {
                parts.headers.entry(header::HOST).or_insert(host);
            }
            let own = is_whole.then(forward::empty_body).flatten();
            let own = own.map(|empty| Box::new(Request::from_parts(parts.clone(), empty)));
            let head = origin_request.send(self.inner.clone(), Request::from_parts(parts, body), mode, resource).await;
            let is_page = head.response.as_ref().is_ok_and(|answer| answer.response.status().is_success());
            let is_private = matches!(head.sharing, Shareability::Unshared(Unshared::Private(_), ..));
            match own {
                // No other request needs the whole, so the client's own request is sent after all.
                Some(own) if is_page && is_private => {
                    drop(head.response);
                    let response = Box::pin(forward::forward_uncached(self.inner, *own, "miss", Uncached::Range)).await;
                    FetchHead { response, ..head }
                }
                _ => head,
            }
        });
        let answer = resource.resolve(policy, IN_A_TASK, fetch);
        answer.map(move |(answer, status)| Ok(recorder.annotate(answer?, status)))
    }

    /// Looks for a suitable stored response, for a request that fetches nothing for the cache. The head of the request is
    /// in the policy.
    async fn lookup_only<Req: Send + 'static, B: OriginBody>(
        self,
        mut request: Request<Req>,
        resource: Resource,
        policy: SharedPolicy,
        reason: Uncached,
    ) -> Finished<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>, Error: Send + 'static, Future: Send> + Clone + Send + 'static,
    {
        let recorder = Recorder::new(&self.guard, &request);
        let found = resource.lookup_only::<Answer<B, S::Error>>(policy.clone()).await;
        if let Ok(Some((answer, status))) = found {
            return answer.map(|annotated| recorder.annotate(annotated, status));
        }
        if reason == Uncached::OnlyIfCached {
            let refusal = reply::empty(StatusCode::GATEWAY_TIMEOUT, StatusNote::Generated(reason));
            return Ok(recorder.annotate(refusal, CacheStatus::Rejected));
        }
        *request.headers_mut() = HeaderMap::clone(&policy.headers);
        self.forward(request, reason).await
    }

    /// Forwards the request unchanged, for its own client only.
    async fn forward<Req, B>(self, request: Request<Req>, reason: Uncached) -> Finished<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let recorder = Recorder::new(&self.guard, &request);
        let fwd = if reason == Uncached::Method { "method" } else { "request" };
        let annotated = forward::forward_uncached(self.inner, request, fwd, reason).await?;
        Ok(recorder.annotate(annotated, CacheStatus::Bypass))
    }

    /// Forwards an unsafe request and invalidates its target, unless the response is an error.
    ///
    /// The response is returned after the store has acknowledged. Then no fetch that began before the change is stored.
    /// The response does not wait for a store that is unavailable: its `Cache-Status` says that the invalidation is
    /// pending. If the client leaves after the origin has responded, the invalidation goes on.
    async fn forward_unsafe<Req, B>(self, request: Request<Req>) -> Finished<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let targets = Target::changed_by(&request, &self.guard.config.http);
        let resources: Vec<_> = targets.into_iter().filter_map(|target| self.guard.url(target)).collect();
        let recorder = Recorder::new(&self.guard, &request);
        let mut annotated = forward::forward_uncached(self.inner, request, "method", Uncached::Method).await?;
        if invalidates(annotated.response.status()) {
            // All begin before the first await, at which the client may leave.
            let begun: Vec<_> = resources.into_iter().map(Resource::invalidate_or_defer).collect();
            if join_all(begun).await.contains(&false) {
                let status = annotated.response.status().as_u16();
                let storage = Storage::NotStored(Uncached::InvalidationPending);
                annotated.note = StatusNote::Forwarded { reason: "method", status, storage };
            }
        }
        Ok(recorder.annotate(annotated, CacheStatus::Bypass))
    }
}

impl StampedeGuard {
    /// Invalidates a URL: drops all its stored variants and refuses every response to it that was requested earlier.
    ///
    /// For handlers that change what other URLs show. A successful unsafe request to the URL itself invalidates it
    /// without this call.
    ///
    /// The URL is absolute, as clients write it: `https://example.org/products/7?lang=en`. It is
    /// invalidated under both schemes, because a server after a TLS terminator sees `http`, and in one step. With
    /// [`ignore_host`](crate::http::HttpOptions::ignore_host) a path is enough. Request fields that
    /// [`HttpOptions`](crate::http::HttpOptions) add to the key are taken to be absent. Call this on a clone with the same
    /// `ignore_host` and `vary_key_on` as the layer. Otherwise the keys differ: an absolute URL returns `Ok` and drops
    /// nothing. If middleware has rewritten the
    /// URI of a request, only an unsafe request that is rewritten alike invalidates its entry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// guard.invalidate_url(&"https://example.org/products/7".parse()?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`] for a URL without authority, unless the keys have none.
    /// Otherwise as [`invalidate`](Self::invalidate).
    pub async fn invalidate_url(&self, url: &Uri) -> Result<(), Error> {
        if url.authority().is_none() && !self.config.http.ignore_host {
            let what = "the URL names no host, which is part of the key; add one, or set `HttpOptions::ignore_host`";
            return Err(Error::new(ErrorKind::InvalidUrl, what));
        }
        match self.url(Target::of_uri(url)) {
            Some(url) => url.invalidate().await,
            None => Ok(()),
        }
    }

    /// Refuses the key of a page of this layer, which is not the key of a value.
    pub(crate) fn refuse_url(&self, key: &CacheKey) -> Result<(), Error> {
        let is_url = ["/", "http://", "https://"].iter().any(|start| key.primary().starts_with(start.as_bytes()));
        let what = "the key is a URL, and the guard is a layer: invalidate pages with `invalidate_url`";
        let is_refused = is_url && self.engine.routes.is_layer.load(Relaxed);
        if is_refused { Err(Error::new(ErrorKind::InvalidUrl, what)) } else { Ok(()) }
    }

    /// Returns the resource that stands for all responses to the target. `None` if it is too long, because nothing is
    /// stored of such a target.
    fn url(&self, target: Target<'_>) -> Option<Resource> {
        let key = || target.qualified(Qualifier::Any, &self.config.http);
        let resource = || self.resource_in(FrontEnd::Http, layout_of_responses(&self.config), key());
        (!target.exceeds_limit()).then(resource)
    }
}

/// The response future of [`HttpCache`]. A hit in memory is ready at once, without an allocation.
///
/// Cancel safe: dropping it does not stop a fetch that other requests may share, within the limit of
/// [`max_detached`](StampedeGuard::max_detached). An invalidation by an unsafe request goes on too.
///
/// # Panics
///
/// If polled again after completion.
pub struct ResponseFuture<B, E>(ReadyOrSlow<Finished<B, E>>);

type ReadyOrSlow<T> = Either<future::Ready<T>, BoxFuture<'static, T>>;

impl<B, E> ResponseFuture<B, E> {
    fn ready(response: Response<CacheBody<B>>) -> Self {
        Self(Either::Left(future::ready(Ok(response))))
    }

    fn slow(answer: impl Future<Output = Finished<B, E>> + Send + 'static) -> Self {
        Self(Either::Right(Box::pin(answer)))
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<CacheBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().0.poll_unpin(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// A request extension: the time at which the response is needed, so that an outer layer can pass on the time that a
/// client has left. The request does not wait longer for a fetch. It does not wait at all for the fetch of another
/// request if the last fetch of the key took longer than the time left. It then gets the stale response, if that may be
/// served on errors, otherwise a 503. A fetch that it leads continues for others, within the limit of
/// [`max_detached`](StampedeGuard::max_detached).
///
/// ```
/// use stampede_guard::http::Deadline;
/// use std::time::{Duration, Instant};
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline(Instant::now() + Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Instant);

/// Reports whether this status of a response to an unsafe request invalidates the target: 2xx and 3xx do.
fn invalidates(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::semantics::kit::status;

    /// RFC 9111 §4.4.
    #[test]
    fn response_without_error_invalidates() {
        for (code, expected) in
            [(200, true), (204, true), (201, true), (303, true), (304, true), (400, false), (412, false), (500, false)]
        {
            assert_eq!(invalidates(status(code)), expected, "{code}");
        }
    }
}
