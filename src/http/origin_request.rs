//! One request to the origin: what is sent, and what follows from the response.

use super::{
    annotation::{Answer, Recorder},
    forward::{call_when_ready, forward_uncached},
    origin_response::OriginResponse,
    reply::Reply,
    semantics::{fields, freshness::Times, request::CacheRequest, validation},
    stored_response::{StoredResponse, stored},
    vary::Selector,
};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    config::{FailureClass, http::HttpOptions},
    engine::{
        frontend::{FetchHead, FetchMode, FollowedRedirect, Shareability, Unshared},
        resource::Resource,
    },
    error::{BoxError, Error, ErrorKind},
    policy::{self, Freshness},
    store::entry::Entry,
    uncached::Uncached,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Body;
use std::{mem, sync::Arc};
use tower_service::Service;

/// A request to the origin, before it is sent.
pub(super) struct OriginRequest {
    pub(super) cache_request: CacheRequest,
    /// Head of the client's request.
    pub(super) client: Arc<HeaderMap>,
    pub(super) recorder: Arc<Recorder>,
}

impl OriginRequest {
    /// Sends the request and decides at the head of the response what is shared, before any waiter is released. A leader
    /// sends a GET, because the response to a HEAD would fill no entry.
    pub(super) async fn send<Req, B, S: Service<Request<Req>, Response = Response<B>>>(
        self,
        inner: S,
        mut request: Request<Req>,
        mode: FetchMode,
        resource: Arc<Resource>,
    ) -> FetchHead<Answer<B, S::Error>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let (id, redirects, seen, deadline, unstorable) = match mode {
            FetchMode::Lead { id, redirects, seen, deadline, status, .. } => {
                validation::strip(request.headers_mut());
                (id, redirects, seen, deadline, unstorable(status))
            }
            FetchMode::HitForPass { id, redirects, seen, deadline } => (id, redirects, seen, deadline, None),
            FetchMode::Bypass(reason) => {
                let reason = self.bypass_reason(reason);
                return FetchHead::private(forward_uncached(inner, request, "bypass", reason).await);
            }
        };
        ask_as_get(&mut request);
        let reason = forward_reason(seen.as_ref(), &redirects);
        let known = self.make_conditional(request.headers_mut(), seen.as_ref(), &resource.config.http);
        let sent_at = Timestamp::now();
        let mut response = match call_when_ready(inner, request).await {
            Ok(response) => response,
            Err(error) => return failed(error),
        };
        let (times, status) = (times_since(sent_at), response.status());
        fields::dated(response.headers_mut(), times.response_time);
        let origin = OriginResponse {
            reply: Reply { cache_request: &self.cache_request, client: &self.client, length: length_of(&response) },
            resource: &resource,
            recorder: &self.recorder,
            unstorable,
            id,
            redirects,
            deadline: deadline.into(),
            seen: seen.as_ref(),
            sent_at,
            times,
            reason,
            status,
        };
        match known {
            Some(known) if status == StatusCode::NOT_MODIFIED => origin.on_304(known, response.headers()).await,
            _ => origin.on_full_response(response),
        }
    }

    /// Makes the request conditional on the stored response if that is a 200 with validators that the request selects,
    /// and returns that response.
    fn make_conditional<'a>(
        &self,
        request: &mut HeaderMap,
        seen: Option<&'a Entry>,
        options: &HttpOptions,
    ) -> Option<&'a StoredResponse> {
        let known = seen.and_then(stored).filter(|stored| stored.status == StatusCode::OK)?;
        let selector = Selector { cache_request: &self.cache_request, headers: &self.client, options };
        let conditions = validation::conditions(&known.headers);
        if conditions.is_empty() || selector.others(known.freshness.for_everyone) != known.others {
            return None;
        }
        validation::strip(request);
        request.extend(conditions);
        Some(known)
    }

    fn bypass_reason(&self, reason: BypassReason) -> Uncached {
        match reason {
            BypassReason::ForOthers => match self.cache_request.credentials.uncached() {
                Some(reason) => reason,
                None if self.cache_request.is_anonymous() => Uncached::NotShared,
                None => Uncached::OtherFields,
            },
            BypassReason::Private => Uncached::NotShared,
            BypassReason::Nested => Uncached::Nested,
            BypassReason::UnknownLength => Uncached::UnknownLength,
        }
    }
}

/// Returns why no response to a leader with this status is stored.
fn unstorable(status: CacheStatus) -> Option<Uncached> {
    match status {
        CacheStatus::Miss => None,
        CacheStatus::FailOpen => Some(Uncached::FailOpen),
        _ => Some(Uncached::StoreTooSmall), // a do-not-store marker takes the place of the entry
    }
}

fn length_of<B: Body>(response: &Response<B>) -> Option<u64> {
    response.body().size_hint().exact().or_else(|| fields::content_length(response.headers()))
}

fn ask_as_get<Req>(request: &mut Request<Req>) {
    if mem::replace(request.method_mut(), Method::GET) == Method::HEAD {
        request.headers_mut().remove(header::RANGE); // RFC 9110 §14.2: it is for a GET
    }
}

/// Returns the result of a fetch that the inner service ended with an error.
fn failed<B, E>(error: E) -> FetchHead<Answer<B, E>> {
    let failure = Error::new(ErrorKind::Origin, "the inner service failed");
    let sharing = Shareability::Unshared(Unshared::Error(failure, FailureClass::OriginDown));
    FetchHead { is_inconclusive: true, ..FetchHead::new(Err(error), sharing) }
}

/// Returns the times of a request that was sent then. The delay is no difference of two times of day, because the clock
/// may be set meanwhile.
fn times_since(sent_at: Timestamp) -> Times {
    let (response_time, delay) = (clock::wall_clock(), Timestamp::now().since(sent_at));
    Times { request_time: response_time.checked_sub(delay).unwrap_or(response_time), response_time }
}

/// Returns why the request is forwarded (`fwd` of RFC 9211 §2.2).
fn forward_reason(seen: Option<&Entry>, redirects: &[FollowedRedirect]) -> &'static str {
    match seen.filter(|entry| stored(entry).is_some()) {
        Some(entry) if policy::freshness(entry, Timestamp::now()) == Freshness::Fresh => "request",
        Some(_) => "stale",
        None if redirects.is_empty() => "uri-miss",
        None => "vary-miss",
    }
}
