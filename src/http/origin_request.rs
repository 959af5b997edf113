//! One request to the origin: what is sent, and what follows from the response.

use super::{
    cache_status_field::Answer,
    forward::{call_when_ready, forward_uncached},
    origin_response::OriginResponse,
    recorder::Recorder,
    semantics::{fields, freshness::Times, request::CacheRequest, validation},
    stored_response::{StoredResponse, stored},
};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    engine::{
        failure::FailureCause,
        frontend::{Completion, FetchHead, FetchMode, FollowedRedirect, Shareability, Unshared},
        resource::Resource,
    },
    error::{BoxError, Error, ErrorKind},
    policy::{self, Freshness},
    store::entry::Entry,
    uncached::Uncached,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use std::{sync::Arc, time::Duration};
use tower_service::Service;

/// A request to the origin, before it is sent.
pub(super) struct OriginRequest {
    pub(super) cache_request: CacheRequest,
    /// Head of the client's request. It is copied into the request to the origin when that is sent.
    pub(super) client: Arc<HeaderMap>,
    pub(super) recorder: Recorder,
}

impl OriginRequest {
    /// Sends the request and decides at the head of the response what is shared, before any waiter is released.
    pub(super) async fn send<S, Req, B>(
        self,
        inner: S,
        mut request: Request<Req>,
        mode: FetchMode,
        resource: Resource,
    ) -> FetchHead<Answer<B, S::Error>>
    where
        S: Service<Request<Req>, Response = Response<B>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        *request.headers_mut() = HeaderMap::clone(&self.client);
        let (id, redirects, seen, deadline, unstorable) = match mode {
            FetchMode::Lead { id, redirects, seen, deadline, status, .. } => {
                validation::strip(request.headers_mut());
                (id, redirects, seen, deadline, unstorable(status))
            }
            FetchMode::HitForPass { id, redirects, deadline } => (id, redirects, None, deadline, None),
            FetchMode::Bypass(reason) => {
                let reason = self.bypass_reason(reason);
                return FetchHead::private(forward_uncached(inner, request, "bypass", reason).await);
            }
        };
        let reason = forward_reason(seen.as_ref(), &redirects);
        let age = seen.as_ref().map(|seen| seen.age(Timestamp::now())).unwrap_or_default();
        let known = make_conditional(request.headers_mut(), seen.as_ref());
        let request_time = clock::wall_clock();
        let mut response = match call_when_ready(inner, request).await {
            Ok(response) => response,
            Err(error) => return failed(Err(error), "the inner service failed"),
        };
        let (times, status) = (Times { request_time, response_time: clock::wall_clock() }, response.status());
        fields::dated(response.headers_mut(), times.response_time);
        let origin = OriginResponse {
            cache_request: &self.cache_request,
            client: &self.client,
            resource: &resource,
            recorder: &self.recorder,
            unstorable,
            id,
            redirects,
            deadline: deadline.into(),
            seen: seen.as_ref(),
            times,
            reason,
            status,
        };
        decide(&origin, response, known, age).await
    }

    fn bypass_reason(&self, reason: BypassReason) -> Uncached {
        match reason {
            BypassReason::ForOthers => self.cache_request.credentials.uncached().unwrap_or(Uncached::NotShared),
            BypassReason::Private => Uncached::NotShared,
            BypassReason::Nested => Uncached::Nested,
            BypassReason::UnknownLength => Uncached::UnknownLength,
            BypassReason::Attempts => Uncached::Attempts,
        }
    }
}

/// Decides what follows from the response: `known` is the stored response that its request was conditional on.
async fn decide<B, E>(
    origin: &OriginResponse<'_>,
    response: Response<B>,
    known: Option<&StoredResponse>,
    age: Duration,
) -> FetchHead<Answer<B, E>>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let Some(known) = known.filter(|_| origin.status == StatusCode::NOT_MODIFIED) else {
        return origin.on_full_response(response);
    };
    if validation::freshens(&known.headers, response.headers()) {
        return origin.on_not_modified(known, response.headers());
    }
    // If the stored response stayed in the store, the next request would validate it again.
    let _ = origin.resource.to_primary().invalidate().await;
    origin.on_mismatched_304(known, age)
}

/// Returns why no response to a leader with this status is stored.
fn unstorable(status: CacheStatus) -> Option<Uncached> {
    match status {
        CacheStatus::Miss => None,
        CacheStatus::FailOpen => Some(Uncached::FailOpen),
        _ => Some(Uncached::StoreTooSmall), // a do-not-store marker takes the place of the entry
    }
}

/// Makes the request conditional on the stored response if that is a 200 with validators, and returns that response.
fn make_conditional<'a>(request: &mut HeaderMap, seen: Option<&'a Entry>) -> Option<&'a StoredResponse> {
    let known = seen.and_then(stored).filter(|stored| stored.status == StatusCode::OK)?;
    let conditions = validation::conditions(&known.headers);
    if conditions.is_empty() {
        return None;
    }
    request.extend(conditions);
    Some(known)
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

fn failed<B, E>(answer: Answer<B, E>, what: &'static str) -> FetchHead<Answer<B, E>> {
    let failure = Unshared::Error(Error::new(ErrorKind::Origin, what));
    FetchHead {
        response: answer,
        sharing: Shareability::Unshared(failure, FailureCause::Origin, StatusCode::BAD_GATEWAY.as_u16()),
        completion: Completion::None,
    }
}
