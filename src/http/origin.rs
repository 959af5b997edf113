//! One request to the origin, and what follows from the response: how it is shared and stored, and what its own client
//! gets.

use super::{
    body::{BodyCollector, CacheBody, OriginBody},
    forward::{call_when_ready, forward_uncached},
    reply::{self, Annotated, Answer, Recorder, StatusNote, Storage},
    request_policy::{SharedPolicy, WITH_CREDENTIALS},
    semantics::{
        freshness::Times,
        request::{ClientRequest, ForwardedFields},
        storing::{self, Storable, StorageTerms},
        validation,
    },
    stored_response::{self, InFlightResponse, RESPONSE, SharedHead, StoredResponse, stored},
    vary::{FRESHNESS_OF_UNKNOWN, SecondaryKey, SelectingFields},
};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    config::FailureClass,
    engine::{
        frontend::{
            Completed, Completion, FetchHead, FetchMode, FollowedRedirect, MAX_REDIRECTS, Shareability, StoreAs,
            Unshared,
        },
        resource::Resource,
    },
    error::{Error, ErrorKind},
    policy::{self, Freshness},
    store::{
        entry::{Audience, Entry, Lifetimes, SharedValue},
        port::Renewal,
        token::Token,
    },
    uncached::Uncached,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use std::{mem, sync::Arc, time::Duration};
use tokio::time::Instant;
use tower_service::Service;

/// A request to the origin, before it is sent.
pub(super) struct OriginRequest {
    /// The policy of the client's request.
    pub(super) policy: SharedPolicy,
    pub(super) recorder: Arc<Recorder>,
}

impl OriginRequest {
    /// Sends the request and decides at the head of the response what is shared, before any waiter is released. A leader
    /// sends a GET, because the response to a HEAD would fill no entry.
    pub(super) async fn send<Req, B: OriginBody, S: Service<Request<Req>, Response = Response<B>>>(
        self,
        inner: S,
        mut request: Request<Req>,
        mode: FetchMode,
        resource: Arc<Resource>,
    ) -> FetchHead<Answer<B, S::Error>> {
        let (id, redirects, seen, deadline, unstorable) = match mode {
            FetchMode::Lead { id, redirects, seen, deadline, status, .. } => {
                validation::strip(request.headers_mut());
                (id, redirects, seen, deadline, unstorable(status))
            }
            FetchMode::HitForPass { id, redirects, seen, deadline } => (id, redirects, seen, deadline, None),
            FetchMode::Bypass { reason, .. } => {
                let reason = self.bypass_reason(reason);
                return FetchHead::private(forward_uncached(inner, request, "bypass", reason).await);
            }
        };
        ask_as_get(&mut request);
        let reason = forward_reason(seen.as_ref(), &redirects);
        let known = self.make_conditional(request.headers_mut(), seen.as_ref());
        let sent_at = Timestamp::now();
        let mut response = match call_when_ready(inner, request).await {
            Ok(response) => response,
            Err(error) => return failed(error),
        };
        let (times, status) = (times_since(sent_at), response.status());
        validation::dated(response.headers_mut(), times.response_time);
        let origin = OriginResponse {
            request: self.policy.request(),
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
            Some(known) if status == StatusCode::NOT_MODIFIED => {
                origin.on_not_modified(known, response.headers()).await
            }
            _ => origin.on_full_response(response),
        }
    }

    /// Makes the request conditional on the stored response if that is a 200 with validators that the request selects,
    /// and returns that response.
    fn make_conditional<'a>(&self, request: &mut HeaderMap, seen: Option<&'a Entry>) -> Option<&'a StoredResponse> {
        let known = seen.and_then(stored).filter(|stored| stored.head.status == StatusCode::OK)?;
        let conditions = validation::conditions(&known.head.headers);
        if conditions.is_empty() || !known.head.is_selected_by(self.policy.request()) {
            return None;
        }
        validation::strip(request);
        request.extend(conditions);
        Some(known)
    }

    fn bypass_reason(&self, reason: BypassReason) -> Uncached {
        match reason {
            BypassReason::ForOthers => match self.policy.cache_request.credentials.uncached() {
                Some(reason) => reason,
                None if self.policy.cache_request.is_anonymous() => Uncached::NotShared,
                None => Uncached::OtherFields,
            },
            BypassReason::Private => Uncached::NotShared,
            BypassReason::Nested => Uncached::Nested,
            BypassReason::UnknownLength => Uncached::UnknownLength,
            BypassReason::Disabled => Uncached::Disabled,
        }
    }
}

/// A response of the origin, with what is known about its request.
struct OriginResponse<'a> {
    request: ClientRequest<'a>,
    resource: &'a Resource,
    recorder: &'a Arc<Recorder>,
    /// Why the response is not stored, whatever it says.
    unstorable: Option<Uncached>,
    /// Id of the entry, if the response is stored.
    id: Token,
    redirects: Vec<FollowedRedirect>,
    /// When the fetch ends.
    deadline: Instant,
    /// The entry that is stored when the request is sent.
    seen: Option<&'a Entry>,
    sent_at: Timestamp,
    times: Times,
    /// Why the request was forwarded (RFC 9211 §2.2), and the status of the response.
    reason: &'static str,
    status: StatusCode,
}

/// A response to store: as its waiters get it, with its head encoded, and how to store it.
struct StoragePlan {
    response: InFlightResponse,
    encoded: Vec<u8>,
    store_as: StoreAs,
}

impl OriginResponse<'_> {
    /// Handles a full response: decides at its head how it is shared.
    fn on_full_response<B: OriginBody, E>(&self, response: Response<B>) -> FetchHead<Answer<B, E>> {
        let (min_size, max_payload) = (response.body().size_hint().lower(), self.resource.config.max_payload as u64);
        let storable = self.storable(response.status(), response.headers());
        let is_stated = matches!(storable, Storable::Shared(terms) if terms.is_stated);
        let stays = self.is_worse_than_stored();
        let error = (stays || matches!(storable, Storable::WaitersOnly(_))).then(|| self.class());
        let head = match storable {
            Storable::Shared(terms) | Storable::WaitersOnly(terms) => {
                match (self.plan(self.status, response.headers(), terms), error) {
                    (Ok(plan), _) if min_size <= max_payload => self.collect(response, plan, error),
                    (_, Some(_)) => self.on_error(response),
                    (Ok(_), None) => self.private(response, Uncached::TooLarge),
                    (Err(reason), None) => self.private(response, reason),
                }
            }
            Storable::Private(_) if storing::is_origin_failure(self.status) => self.on_error(response),
            Storable::Private(reason) => self.private(response, reason),
        };
        FetchHead { is_inconclusive: is_error(self.status) && (stays || !is_stated), ..head }
    }

    /// Reports whether this is an error, and a good response for this request is stored that was fresh when the request
    /// was sent. That response stays. Otherwise one client could replace a fresh page by an error, with a forced reload
    /// and a request that the origin does not like. Within its stale windows (RFC 5861) the good response stays too,
    /// unless the status says that the page has gone.
    fn is_worse_than_stored(&self) -> bool {
        let may_be_gone = storing::is_heuristically_cacheable(self.status);
        let stays = |entry: &Entry| match policy::freshness(entry, self.sent_at) {
            Freshness::Fresh => true,
            _ => !may_be_gone && !policy::servable_for(entry, Timestamp::now()).is_zero(),
        };
        let is_good = |head: &SharedHead| !is_error(head.status) && head.is_selected_by(self.request);
        let good = self.seen.filter(|entry| stored(entry).is_some_and(|stored| is_good(&stored.head)));
        is_error(self.status) && good.is_some_and(stays)
    }

    /// Handles an error that is neither stored nor shared. Of a failure the waiters get the status: if each sent a request
    /// of its own, a failing origin would be flooded.
    fn on_error<B: OriginBody, E>(&self, response: Response<B>) -> FetchHead<Answer<B, E>> {
        let (class, reason) = self.class();
        let head = self.private(response, reason);
        let status = Shareability::Unshared(Unshared::Response(Arc::new(self.status), class));
        if class == FailureClass::OriginDown { FetchHead { sharing: status, ..head } } else { head }
    }

    /// Returns the class of an error, and why it is not stored.
    fn class(&self) -> (FailureClass, Uncached) {
        match storing::is_origin_failure(self.status) {
            true => (FailureClass::OriginDown, Uncached::OriginFailure),
            false => (FailureClass::Answer, Uncached::ClientError),
        }
    }

    /// Collects the body of a response that is stored as planned, or that is an `error` for the waiters.
    fn collect<B: OriginBody, E>(
        &self,
        response: Response<B>,
        plan: StoragePlan,
        error: Option<(FailureClass, Uncached)>,
    ) -> FetchHead<Answer<B, E>> {
        let StoragePlan { response: mut shared, encoded, store_as } = plan;
        let max_payload = self.resource.config.max_payload;
        // Waiters stream the body only if its size is known to be within the cap. Otherwise they wait for its end.
        let fits = response.body().size_hint().upper().is_some_and(|most| most <= max_payload as u64);
        let (limit, at_limit) = match fits {
            true => (self.deadline, Completed::Truncated),
            // The body may never end, so waiters do not wait for its end for as long as for a fetch.
            false => (clock::deadline_after(MAX_WAIT_FOR_UNKNOWN_LENGTH).min(self.deadline), Completed::TooLarge),
        };
        let (parts, body) = response.into_parts();
        let length = validation::content_length(&parts.headers);
        let (collector, shared_body, body) = BodyCollector::new(body, &encoded, length, max_payload);
        let recorder = (error.is_none() && self.unstorable.is_none()).then(|| self.recorder.clone());
        shared.body = fits.then_some(shared_body);
        let (sharing, storage) = match error {
            None if fits => (Shareability::Cacheable(Arc::new(shared), store_as), Storage::Stored),
            None => {
                let redirects = shared.secondary_key.is_some() || shared.head.others.is_none();
                let value = redirects.then(|| -> SharedValue { Arc::new(shared) });
                (Shareability::CacheableAtEnd(value, store_as), Storage::Undecided)
            }
            Some((class, reason)) => {
                shared.fresh_for = None;
                if !fits {
                    without_body(&mut shared.head.headers);
                }
                (Shareability::Unshared(Unshared::Response(Arc::new(shared), class)), Storage::NotStored(reason))
            }
        };
        let answer = self.annotated(Response::from_parts(parts, body), storage);
        let completion: Completion = Box::pin(async move {
            let completed = collector.run(limit, at_limit).await;
            if let Some(recorder) = recorder {
                recorder.body_ended(&completed, limit);
            }
            completed
        });
        FetchHead { completion: Some(completion), ..FetchHead::new(Ok(answer), sharing) }
    }

    /// Handles a 304 for the stored response, which is served again with the fields of the 304 (RFC 9111 §4.3.3,
    /// §4.3.4). One about another response neither freshens it nor is shared, and waiters try again; its client gets a
    /// 502, because its request cannot be sent twice.
    async fn on_not_modified<B: OriginBody, E>(
        &self,
        old: &StoredResponse,
        newer: &HeaderMap,
    ) -> FetchHead<Answer<B, E>> {
        if !validation::freshens(&old.head.headers, newer) {
            // If the stored response stayed in the store, the next request would validate it again.
            let _ = self.resource.to_primary().invalidate().await;
            let note = self.note(Storage::NotStored(Uncached::UnrelatedNotModified));
            let answer = reply::empty(StatusCode::BAD_GATEWAY, note);
            return FetchHead { is_inconclusive: true, ..FetchHead::new(Ok(answer), self.uncacheable()) };
        }
        let (status, mut stated) = (old.head.status, validation::updated(&old.head.headers, newer));
        stated.extend(newer.get(header::AGE).map(|age| (header::AGE, age.clone())));
        let plan = match self.storable(status, &stated) {
            Storable::Shared(terms) | Storable::WaitersOnly(terms) => self.plan(status, &stated, terms),
            Storable::Private(reason) => Err(reason),
        };
        let (sharing, storage) = match plan {
            Ok(StoragePlan { encoded, mut store_as, .. }) => {
                let payload = Bytes::from([&encoded, &old.body[..]].concat());
                // A head of the same length leaves the body in its place. Most heads differ in their dates alone.
                let renewed = self.seen.filter(|seen| seen.payload().bytes().len() == payload.len());
                store_as.renews = renewed.map(|seen| Renewal { id: seen.meta().id, changed: encoded.len() });
                (Shareability::Complete(payload.into(), store_as), Storage::Stored)
            }
            Err(reason) => (self.uncacheable(), Storage::NotStored(reason)),
        };
        let mut response = old.head.with(CacheBody::stored(old.body.clone()));
        *response.headers_mut() = stated;
        FetchHead::new(Ok(self.annotated(response, storage)), sharing)
    }

    fn private<B: OriginBody, E>(&self, response: Response<B>, reason: Uncached) -> FetchHead<Answer<B, E>> {
        let answer = self.annotated(response.map(CacheBody::origin), Storage::NotStored(reason));
        FetchHead::new(Ok(answer), self.uncacheable())
    }

    /// Returns the sharing of a response that is not shared. If something told the user of this request apart, that holds
    /// only for such requests, because an anonymous request may get a response that can be shared.
    fn uncacheable(&self) -> Shareability {
        let is_anonymous = self.request.cache_request.is_anonymous();
        Shareability::private(if is_anonymous { Audience::Everyone } else { WITH_CREDENTIALS })
    }

    fn storable(&self, status: StatusCode, headers: &HeaderMap) -> Storable {
        storing::storable(status, headers, self.request.cache_request.credentials, self.times, self.request.options)
    }

    /// Returns how to store the response, or why it cannot be stored after all.
    fn plan(&self, status: StatusCode, headers: &HeaderMap, terms: StorageTerms) -> Result<StoragePlan, Uncached> {
        let (request, for_everyone) = (self.request, terms.sharing.for_everyone);
        let mut fields = SelectingFields::of(headers, for_everyone).ok_or(Uncached::Vary)?;
        // Some handlers negotiate an encoding without a `Vary`. A client that cannot decode it must not get it by default.
        if (!terms.is_stated || terms.sharing.always_validated) && headers.contains_key(header::CONTENT_ENCODING) {
            fields = fields.with(header::ACCEPT_ENCODING).ok_or(Uncached::Vary)?;
        }
        let (others, is_unknown) = (request.others(for_everyone), request.is_unknown(&fields));
        if others.is_some() {
            self.recorder.selected(request, for_everyone);
        }
        let (needs_index, remaining) = fields.remaining(&self.redirects);
        // An index that the response does not need any more ends.
        let keeps_redirects = needs_index || others.is_some();
        // The fields of proxies are a part of each variant.
        let is_selected = others.is_some() && (self.redirects.is_empty() || !remaining.for_everyone);
        let secondary_key = match remaining.vary.len() {
            0 if !is_selected => None,
            _ if self.redirects.len() == MAX_REDIRECTS => return Err(Uncached::Vary),
            _ => Some(SecondaryKey::new(self.id, remaining, request)),
        };
        // A refresh keeps the variants of requests with other fields. After an invalidation nothing was seen.
        let replaced = self.seen.filter(|_| secondary_key.is_none()).and_then(stored);
        let head = SharedHead {
            status,
            headers: validation::end_to_end(headers),
            age: terms.age,
            sharing: terms.sharing,
            others,
            index_id: replaced.map_or(self.id, |replaced| replaced.head.index_id),
        };
        let encoded = stored_response::encode(&head);
        if encoded.len() > self.resource.config.max_payload {
            return Err(Uncached::TooLarge);
        }
        let lifetimes = self.lifetimes(head.status, &terms, is_unknown);
        let index = secondary_key.as_ref().map(|secondary_key| Box::new(secondary_key.index()));
        let response = InFlightResponse {
            id: self.id,
            head,
            secondary_key,
            response_time: Timestamp::now(),
            fresh_for: Some(lifetimes.fresh_for),
            body: None,
        };
        let store_as = StoreAs { lifetimes, codec: RESPONSE, keeps_redirects, index, renews: None };
        Ok(StoragePlan { response, encoded, store_as })
    }

    /// Returns the lifetimes of a response. If unknown fields select it, a flood of values leaves nothing, and a session
    /// that is revoked ends.
    fn lifetimes(&self, status: StatusCode, terms: &StorageTerms, is_unknown: bool) -> Lifetimes {
        let lifetimes = stored_response::lifetimes(&self.resource.config, status, terms);
        let contradicts = self.request.cache_request.forwarded == ForwardedFields::Contradicting;
        match is_unknown && (!terms.is_stated || contradicts) {
            true => Lifetimes::fresh_for(lifetimes.fresh_for.min(FRESHNESS_OF_UNKNOWN)),
            false => lifetimes,
        }
    }

    fn annotated<B: OriginBody>(&self, response: Response<CacheBody<B>>, storage: Storage) -> Annotated<CacheBody<B>> {
        self.request.own(response, self.note(storage))
    }

    /// Returns the note about a response that would be stored, or not, if the store took it.
    fn note(&self, storage: Storage) -> StatusNote {
        let storage = match (storage, self.unstorable) {
            (Storage::Stored | Storage::Undecided, Some(reason)) => Storage::NotStored(reason),
            _ => storage,
        };
        StatusNote::Forwarded { reason: self.reason, status: self.status.as_u16(), storage }
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

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

fn without_body(headers: &mut HeaderMap) {
    for of_the_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        headers.remove(of_the_body);
    }
}

/// Maximum time that waiters wait for the end of a body of unknown length.
const MAX_WAIT_FOR_UNKNOWN_LENGTH: Duration = Duration::from_secs(5);
