//! The guard as a layer over an HTTP service.

use super::{
    ask::Asking,
    body::GuardBody,
    confirm,
    future::ResponseFuture,
    key::{Class, Target},
    origin::{self, Call},
    reply,
    semantics::request::{self, Asked, LookOnly, Wish},
    status::{self, Noted},
};
use crate::{
    clock::{self, Timestamp},
    engine::{CacheVerdict, Place, Turn},
    error::BoxError,
    guard::StampedeGuard,
    key::Key,
    policy::Early,
};
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Body;
use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use tower_layer::Layer;
use tower_service::Service;

impl<S> Layer<S> for StampedeGuard {
    type Service = GuardService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardService { inner, guard: self.clone() }
    }
}

/// An HTTP service behind a [`StampedeGuard`]: a shared cache in the sense of RFC 9111.
///
/// It is always ready, since a saturated origin must not keep hits waiting: a call drives a clone of the inner service
/// ready. The inner service's error reaches the request that led unchanged; those who waited for it get a 502.
///
/// What its handlers say in `Cache-Control` counts; each route can have a clone with settings of its own:
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
#[derive(Clone)]
pub struct GuardService<S> {
    pub(super) inner: S,
    pub(super) guard: StampedeGuard,
}

/// What comes of a request, before and after it is stamped.
pub(super) type Answer<B, E> = Result<Noted<GuardBody<B>>, E>;
pub(super) type Stamped<B, E> = Result<Response<GuardBody<B>>, E>;

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
        let rules = &self.guard.config().rules;
        let wish = match request::asked(request.method(), request.headers(), has_body, rules) {
            Asked::Cache(wish) => wish,
            Asked::Forward(why) => return ResponseFuture::slow(self.clone().forward(request, why)),
            Asked::Unsafe => return ResponseFuture::slow(self.clone().change(request)),
        };
        let Some(target) = Target::clear(&request, rules) else {
            return ResponseFuture::slow(self.clone().forward(request, "request"));
        };
        let mut place = self.guard.place(target.key(Class::Get, rules));
        if let Some(Deadline(at)) = request.extensions().get() {
            place.deadline = Some((*at).into());
        }
        let (headers, config, asked) = (request.headers(), &*place.config, Timestamp::now());
        let early = config.policy.early(clock::draw);
        let asking = Asking { wish, headers, config, asked, early, of: PhantomData::<fn() -> (B, S::Error)> };
        if let Some(Ok(hit)) = place.peek(&asking, asked) {
            return ResponseFuture::ready(status::stamp(hit, CacheVerdict::Hit, shown(&place)));
        }
        match wish.head || wish.look_only.is_some() {
            true => ResponseFuture::slow(self.clone().look(request, place, wish, (asked, early))),
            false => ResponseFuture::slow(self.clone().answer(request, place, wish, (asked, early))),
        }
    }
}

impl<S> GuardService<S> {
    /// Waits, or leads.
    fn answer<Req, B>(
        self,
        mut request: Request<Req>,
        place: Place,
        wish: Wish,
        (asked, early): (Timestamp, Early),
    ) -> impl Future<Output = Stamped<B, S::Error>> + Send
    where
        S: Service<Request<Req>, Response = Response<B>, Error: Send + 'static, Future: Send> + Clone + Send + 'static,
        Req: Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let (config, shown) = (place.config.clone(), shown(&place).cloned());
        // In one place until somebody leads: most of those who come here wait.
        let client = Arc::new(mem::take(request.headers_mut()));
        let call = Call { wish, client: client.clone(), place: place.clone() };
        let asking: Asking<_, _, B, S::Error> = Asking { wish, headers: client, config, asked, early, of: PhantomData };
        let answer = place.resolve(asking, move |turn: Turn| call.make(self.inner, request, turn));
        answer.map(move |(answer, verdict)| answer.map(|noted| status::stamp(noted, verdict, shown.as_ref())))
    }

    /// Looks first whether what is stored will do for a request that fetches nothing for the cache, or for a HEAD.
    async fn look<Req, B>(
        self,
        request: Request<Req>,
        mut place: Place,
        wish: Wish,
        (asked, early): (Timestamp, Early),
    ) -> Stamped<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>, Error: Send + 'static, Future: Send> + Clone + Send + 'static,
        Req: Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let (client, config, of) = (Arc::new(request.headers().clone()), place.config.clone(), PhantomData);
        let asking: Asking<_, _, B, S::Error> = Asking { wish, headers: client, config, asked, early, of };
        if let Some((answer, verdict)) = place.clone().look(asking.clone()).await {
            return answer.map(|noted| status::stamp(noted, verdict, shown(&place)));
        }
        match wish.look_only {
            Some(LookOnly::Or504) => {
                return Ok(status::stamp(reply::only_if_cached(), CacheVerdict::Refused, shown(&place)));
            }
            Some(LookOnly::OrForward) => return self.forward(request, "miss").await,
            None => {}
        }
        // What is stored of a GET would have done; but the answer to a HEAD never fills it.
        let get = place.clone();
        place.at = self.guard.place(Target::of(&request).key(Class::Head, &place.config.rules)).at;
        let began = clock::wall();
        let response = self.answer(request, place, wish, (asked, early)).await?;
        let by_origin = [CacheVerdict::Filled, CacheVerdict::Bypassed, CacheVerdict::FailedOpen];
        if response.extensions().get().is_some_and(|verdict| by_origin.contains(verdict)) {
            let (status, headers) = (response.status(), response.headers().clone());
            // RFC 9111 §4: of two, the most recent counts. What was stored meanwhile may be newer than this.
            if let Some(found) = get.found(asking).await.filter(|(_, entry)| entry.meta().answered < asked) {
                confirm::after_head(found, &wish, began, status, &headers).await;
            }
        }
        Ok(response)
    }

    /// As it is, for this client alone.
    async fn forward<Req, B>(self, request: Request<Req>, why: &'static str) -> Stamped<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let noted = origin::alone(self.inner, request, why).await?;
        Ok(status::stamp(noted, CacheVerdict::Bypassed, None))
    }
}

/// The key, if it is to be shown.
fn shown(place: &Place) -> Option<&Key> {
    place.config.rules.show_key.then(|| place.at.key())
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

impl<S: fmt::Debug> fmt::Debug for GuardService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardService").field("inner", &self.inner).field("guard", &self.guard).finish()
    }
}
