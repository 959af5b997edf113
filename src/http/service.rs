//! The guard as a layer over an HTTP service.

use super::{
    body::{Growing, GuardBody, Pump},
    future::ResponseFuture,
    head, key,
    semantics::{self, Asked, Shared},
    status::{self, Note},
};
use crate::{
    clock::{self, Timestamp},
    config::Config,
    engine::{CacheVerdict, End, Failure, Head, Judge, Keep, Share, Turn, Verdict},
    entry::{Entry, Kind, Lifetimes, Live},
    error::{BoxError, Error, ErrorKind},
    guard::StampedeGuard,
    policy::{self, Early, Freshness},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tower_layer::Layer;
use tower_service::Service;

impl<S> Layer<S> for StampedeGuard {
    type Service = GuardService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardService { inner, guard: self.clone() }
    }
}

/// An HTTP service behind a [`StampedeGuard`].
///
/// It is always ready, since a saturated origin must not keep hits waiting: a call drives a clone of the inner service
/// ready. The inner service's error reaches the request that led unchanged; those who waited for it get a 502.
#[derive(Clone)]
pub struct GuardService<S> {
    inner: S,
    guard: StampedeGuard,
}

impl<S, Req, B> Service<Request<Req>> for GuardService<S>
where
    S: Service<Request<Req>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    Req: Body + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<GuardBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<B, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        let has_body = !request.body().is_end_stream();
        let asked = semantics::asked(request.method(), request.headers(), has_body);
        let (max_age, place) = match asked {
            Asked::Cache { max_age } => {
                let mut place = self.guard.place(key::of(&request));
                if let Some(Deadline(at)) = request.extensions().get() {
                    place.deadline = Some((*at).into());
                }
                (max_age, place)
            }
            Asked::Bypass(reason) => {
                let mut inner = self.inner.clone();
                return ResponseFuture::slow(async move {
                    poll_fn(|cx| inner.poll_ready(cx)).await?;
                    let mut response = pass(inner.call(request).await?);
                    status::note(response.extensions_mut(), Note::Reason(reason));
                    Ok(status::stamp(response, CacheVerdict::Bypassed))
                });
            }
        };
        let max_age = max_age.map(|max_age| (max_age, Timestamp::now()));
        let judge = Asking { max_age, early: place.config.policy.early(), of: PhantomData };
        if let Some(Ok(hit)) = place.peek::<Answer<B, S::Error>>(&judge) {
            return ResponseFuture::ready(status::stamp(hit, CacheVerdict::Hit));
        }
        let (mut inner, config) = (self.inner.clone(), place.config.clone());
        let fetch = async move |turn: Turn| {
            let mut request = request;
            let stale = match &turn {
                Turn::Lead { seen, .. } => {
                    unconditional(request.headers_mut());
                    seen.is_some()
                }
                Turn::Pass | Turn::Alone => false,
            };
            let answer = match poll_fn(|cx| inner.poll_ready(cx)).await {
                Ok(()) => inner.call(request).await,
                Err(error) => Err(error),
            };
            match turn {
                Turn::Lead { .. } | Turn::Pass => head_of(answer, &config, stale),
                Turn::Alone => Head::private(answer.map(pass)),
            }
        };
        ResponseFuture::slow(async move {
            let (answer, verdict) = place.resolve(judge, fetch).await;
            answer.map(|response| status::stamp(response, verdict))
        })
    }
}

/// An extension of a request: when its answer is needed. It takes the place of the guard's
/// [`deadline`](StampedeGuard::deadline), so that a layer above can hand on what is left of a client's time.
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

type Answer<B, E> = Result<Response<GuardBody<B>>, E>;

/// What one request makes of what is stored or shared.
struct Asking<B, E> {
    /// The age that the client accepts, and when it asked.
    max_age: Option<(Duration, Timestamp)>,
    early: Early,
    of: PhantomData<fn() -> (B, E)>,
}

impl<B: 'static, E: 'static> Judge<Answer<B, E>> for Asking<B, E> {
    fn judge(&self, entry: &Entry, now: Timestamp) -> Verdict {
        if !is_response(entry) {
            return Verdict::Ignore;
        }
        // RFC 9111 §5.2.1.1: the client does not want it older than that, the age with which it came included.
        let came_with = || entry.payload().live(head::decode).map_or(0, |stored| stored.age);
        let age = || entry.age(now) + Duration::from_secs(came_with().into());
        let too_old = self.max_age.is_some_and(|(max_age, _)| age() >= max_age);
        match policy::freshness(entry, now) {
            Freshness::Dead => Verdict::Ignore,
            _ if too_old => Verdict::Validate,
            Freshness::Fresh if self.early.is_due(entry, now, clock::draw) => Verdict::ServeAndRefresh,
            Freshness::Fresh => Verdict::Serve,
            Freshness::Revalidate => Verdict::ServeAndRefresh,
            Freshness::Grace => Verdict::Validate,
        }
    }

    fn forgives(&self, entry: &Entry, now: Timestamp) -> bool {
        is_response(entry) && policy::forgives(entry, now)
    }

    fn read(&self, entry: &Entry) -> Option<Answer<B, E>> {
        let stored = entry.payload().live(head::decode)?;
        let (now, fresh_for) = (Timestamp::now(), entry.meta().lifetimes.fresh_for);
        let age = entry.age(now);
        let mut response = Response::new(GuardBody::stored(stored.body.clone()));
        *response.status_mut() = stored.status;
        *response.headers_mut() = stored.headers.clone();
        // RFC 9111 §5.1: the age it came with, and the time it has spent here.
        response.headers_mut().insert(header::AGE, age.as_secs().saturating_add(stored.age.into()).into());
        let ttl = fresh_for.as_secs().cast_signed().saturating_sub(age.as_secs().cast_signed());
        status::note(response.extensions_mut(), Note::Ttl(ttl));
        Some(Ok(response))
    }

    fn share(&self, live: &Live) -> Option<Answer<B, E>> {
        let shared: &InTransit = live.downcast_ref()?;
        let waited = Timestamp::now().since(shared.answered);
        let age = waited.as_secs().saturating_add(semantics::age(&shared.headers).into());
        // What was answered after the client asked is new to it, whatever age it accepts.
        let too_old = |(max_age, asked): (Duration, _)| shared.answered < asked && age >= max_age.as_secs();
        let broken = shared.body.as_ref().is_some_and(|body| body.has_broken_off());
        if broken || self.max_age.is_some_and(too_old) {
            return None;
        }
        let body = shared.body.as_ref().map_or_else(|| GuardBody::stored(Bytes::new()), GuardBody::growing);
        let mut response = Response::new(body);
        *response.status_mut() = shared.status;
        *response.headers_mut() = shared.headers.clone();
        if age > 0 {
            response.headers_mut().insert(header::AGE, age.into());
        }
        Some(Ok(response))
    }

    fn refuse(&self, error: Error) -> Answer<B, E> {
        Ok(refused(&error))
    }
}

impl<B, E> Clone for Asking<B, E> {
    fn clone(&self) -> Self {
        Self { max_age: self.max_age, early: self.early, of: PhantomData }
    }
}

/// A response on its way, for those who wait in this process.
struct InTransit {
    answered: Timestamp,
    status: StatusCode,
    headers: HeaderMap,
    /// None: it cannot be shared, and they get none.
    body: Option<Arc<Growing>>,
}

/// Decides at the head of the response, before anybody who waits is released.
fn head_of<B, E>(answer: Result<Response<B>, E>, config: &Config, stale: bool) -> Head<Answer<B, E>>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let response = match answer {
        Ok(response) => response,
        Err(error) => {
            let shared = Error::new(ErrorKind::Origin, "the service failed");
            let share = Share::Failed(Failure::Error(shared), StatusCode::BAD_GATEWAY.as_u16());
            return Head { own: Err(error), share, end: End::Nothing };
        }
    };
    let shared = semantics::shared(response.status(), response.headers(), clock::wall());
    let encoded = head::encode(response.status(), response.headers());
    let (Some(encoded), size) = (encoded, response.body().size_hint()) else {
        return Head::private(Ok(forwarded(pass(response), stale, false)));
    };
    let room = (config.max_payload as u64).saturating_sub(encoded.len() as u64);
    let lifetimes = match shared {
        Shared::Everybody { lifetime, stale: allowed } if size.lower() <= room => {
            let lifetimes = config.policy.lifetimes(lifetime, clock::draw());
            Some(if allowed { lifetimes } else { Lifetimes { fresh_for: lifetimes.fresh_for, ..Lifetimes::default() } })
        }
        Shared::Failure { whole: true } if size.lower() <= room => None,
        Shared::Failure { .. } => {
            // A failing origin is no reason to fall on it: those who wait hear that it fails, and no more.
            let (answered, status, headers) = (Timestamp::now(), response.status(), HeaderMap::new());
            let live = Arc::new(InTransit { answered, status, headers, body: None });
            let share = Share::Failed(Failure::Live(live), status.as_u16());
            return Head { own: Ok(forwarded(pass(response), stale, false)), share, end: End::Nothing };
        }
        Shared::Everybody { .. } | Shared::Nobody => {
            return Head::private(Ok(forwarded(pass(response), stale, false)));
        }
    };
    // Those who wait may read along only where the size is known to be within the cap: else they wait for the end.
    let known = size.upper().is_some_and(|most| most <= room);
    // The end may never come: they are let go while they still have time to ask themselves.
    let patience = (!known).then(|| config.wait / 2);
    let (parts, body) = response.into_parts();
    let (pump, growing, body) =
        Pump::new(body, &encoded, semantics::content_length(&parts.headers), config.max_payload);
    let mut headers = semantics::end_to_end(&parts.headers);
    headers.extend(parts.headers.get(header::AGE).map(|age| (header::AGE, age.clone())));
    let status = parts.status;
    let own = Ok(forwarded(Response::from_parts(parts, body), stale, known && lifetimes.is_some()));
    let answered = Timestamp::now();
    let transit =
        |body: Option<Arc<Growing>>, headers| -> Live { Arc::new(InTransit { answered, status, headers, body }) };
    let share = match lifetimes {
        Some(lifetimes) if known => Share::Everybody(transit(Some(growing), headers), Keep { lifetimes, codec: CODEC }),
        Some(lifetimes) => Share::AtEnd(Keep { lifetimes, codec: CODEC }),
        None if known => Share::Failed(Failure::Live(transit(Some(growing), headers)), status.as_u16()),
        None => {
            for of_the_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING] {
                headers.remove(of_the_body);
            }
            Share::Failed(Failure::Live(transit(None, headers)), status.as_u16())
        }
    };
    Head { own, share, end: End::Later(Box::pin(pump.run(patience))) }
}

/// The origin's own response, untouched: its first byte is passed on when it comes.
fn pass<B>(response: Response<B>) -> Response<GuardBody<B>> {
    response.map(GuardBody::origin)
}

fn forwarded<B>(mut response: Response<B>, stale: bool, stored: bool) -> Response<B> {
    status::note(response.extensions_mut(), Note::Forwarded { stale, stored });
    response
}

/// What is computed for everybody must be complete: a 304 would say something only to the client that asked.
fn unconditional(headers: &mut HeaderMap) {
    headers.remove(header::IF_NONE_MATCH);
    headers.remove(header::IF_MODIFIED_SINCE);
}

/// A refusal is a response: the inner service's error type is not ours to make.
fn refused<B>(error: &Error) -> Response<GuardBody<B>> {
    let status = match error.kind() {
        ErrorKind::FailedElsewhere => StatusCode::from_u16(error.code())
            .ok()
            .filter(StatusCode::is_server_error)
            .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        ErrorKind::Store | ErrorKind::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut response = Response::new(GuardBody::stored(Bytes::new()));
    *response.status_mut() = status;
    if let Some(retry_in) = error.retry_in() {
        let seconds = retry_in.as_millis().div_ceil(1000).min(u128::from(u32::MAX)) as u32;
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn is_response(entry: &Entry) -> bool {
    entry.meta().kind == Kind::Value && entry.meta().codec == CODEC
}

impl<S: fmt::Debug> fmt::Debug for GuardService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardService").field("inner", &self.inner).field("guard", &self.guard).finish()
    }
}

/// Tells stored responses from typed values, and from later formats of the head.
const CODEC: u64 = u64::from_be_bytes(*b"http-1\0\0");
