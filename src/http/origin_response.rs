//! What follows from a response of the origin: how it is shared and stored, and what its own client gets.

use super::{
    annotation::{Annotated, Answer, Recorder, StatusNote, Storage},
    body::{BodyCollector, CacheBody},
    reply::{self, Reply},
    request_policy::{WITH_CREDENTIALS, WITHOUT_CREDENTIALS},
    semantics::{
        fields,
        freshness::{StoredFreshness, Times},
        request::ForwardedFields,
        storing::{self, Storable, StorageTerms},
        validation,
    },
    stored_response::{self, InFlightBody, InFlightResponse, RESPONSE, StoredResponse, stored},
    vary::{SecondaryKey, SelectingFields, Selector},
};
use crate::{
    clock::{self, Timestamp},
    engine::{
        failure::FailureCause,
        frontend::{
            Completed, Completion, FetchHead, FollowedRedirect, MAX_REDIRECTS, Shareability, StoreAs, Unshared,
        },
        resource::Resource,
    },
    error::BoxError,
    policy,
    store::{
        entry::{Audience, Entry, Lifetimes},
        token::Token,
    },
    uncached::Uncached,
};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A response of the origin, with what is known about its request.
pub(super) struct OriginResponse<'a> {
    /// The client's request.
    pub(super) reply: Reply<'a>,
    pub(super) resource: &'a Resource,
    pub(super) recorder: &'a Arc<Recorder>,
    /// Why the response is not stored, whatever it says.
    pub(super) unstorable: Option<Uncached>,
    /// Id of the entry, if the response is stored.
    pub(super) id: Token,
    pub(super) redirects: Vec<FollowedRedirect>,
    /// When the fetch ends.
    pub(super) deadline: Instant,
    /// The entry that is stored when the request is sent.
    pub(super) seen: Option<&'a Entry>,
    pub(super) times: Times,
    /// Why the request was forwarded (RFC 9211 §2.2), and the status of the response.
    pub(super) reason: &'static str,
    pub(super) status: StatusCode,
}

/// A response to store: as its waiters get it, with its head encoded, and how to store it.
struct StoragePlan {
    /// Its body is not set yet.
    response: InFlightResponse,
    encoded: Vec<u8>,
    store_as: StoreAs,
}

impl OriginResponse<'_> {
    /// Handles a full response: decides at its head how it is shared.
    pub(super) fn on_full_response<B, E>(&self, response: Response<B>) -> FetchHead<Answer<B, E>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let min_size = response.body().size_hint().lower();
        match self.storable(response.status(), response.headers()) {
            Storable::Shared(_) | Storable::Private(_) if self.is_worse_than_stored() => {
                match self.status.is_client_error() {
                    true => self.on_client_error(response),
                    false => {
                        let whole = !response.headers().contains_key(header::VARY);
                        self.on_failure(response, whole)
                    }
                }
            }
            Storable::Shared(terms) => match self.plan(self.status, response.headers(), terms) {
                Ok(plan) if min_size <= self.room_after(&plan.encoded) => self.collect(response, Some(plan)),
                Ok(_) => self.private(response, Uncached::TooLarge),
                Err(reason) => self.private(response, reason),
            },
            Storable::Failure { whole } => self.on_failure(response, whole),
            Storable::ClientError => self.on_client_error(response),
            Storable::Private(reason) => self.private(response, reason),
        }
    }

    /// Handles a client error that may be due to this request alone.
    fn on_client_error<B, E>(&self, response: Response<B>) -> FetchHead<Answer<B, E>> {
        let audience = match self.reply.cache_request.is_anonymous() {
            true => WITHOUT_CREDENTIALS,
            false => WITH_CREDENTIALS,
        };
        FetchHead { sharing: Shareability::inconclusive(audience), ..self.private(response, Uncached::ClientError) }
    }

    /// Reports whether this is an error, and a good response is stored that is fresh or within a stale window (RFC 5861).
    /// That response stays. Otherwise one client could replace a fresh page by an error, with a forced reload and a
    /// request that the origin does not like.
    fn is_worse_than_stored(&self) -> bool {
        // These client errors are about the resource.
        let is_about_resource = matches!(self.status.as_u16(), 404 | 405 | 410 | 414 | 451);
        let is_error = |status: StatusCode| status.is_server_error() || status.is_client_error();
        let is_good = |entry: &&Entry| stored(entry).is_some_and(|stored| !is_error(stored.status));
        is_error(self.status)
            && !is_about_resource
            && self.seen.filter(is_good).is_some_and(|entry| policy::is_servable(entry, Timestamp::now()))
    }

    /// Handles a server error that is not stored.
    fn on_failure<B, E>(&self, response: Response<B>, whole: bool) -> FetchHead<Answer<B, E>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        if whole && response.body().size_hint().lower() <= self.room_after(&[]) {
            return self.collect(response, None);
        }
        // Waiters get the status only: if each sent a request of its own, a failing origin would be flooded.
        let sharing = self.share_failure(HeaderMap::new(), InFlightBody::Whole(Bytes::new()));
        FetchHead { sharing, ..self.private(response, Uncached::OriginFailure) }
    }

    /// Collects the body of a response that is stored as planned, or that is a server error if there is no plan.
    fn collect<B, E>(&self, response: Response<B>, plan: Option<StoragePlan>) -> FetchHead<Answer<B, E>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let encoded = plan.as_ref().map_or(&[][..], |plan| &plan.encoded);
        // Waiters stream the body only if its size is known to be within the cap. Otherwise they wait for its end.
        let fits = response.body().size_hint().upper().is_some_and(|most| most <= self.room_after(encoded));
        let (limit, at_limit) = match fits {
            true => (self.deadline, Completed::Truncated),
            // The body may never end, so waiters do not wait for its end for as long as for a fetch.
            false => (clock::deadline_after(MAX_WAIT_FOR_UNKNOWN_LENGTH).min(self.deadline), Completed::TooLarge),
        };
        let (parts, body) = response.into_parts();
        let length = fields::content_length(&parts.headers);
        let max_payload = self.resource.config.max_payload;
        let (collector, shared_body, body) = BodyCollector::new(body, encoded, length, max_payload);
        let recorder = (plan.is_some() && self.unstorable.is_none()).then(|| self.recorder.clone());
        let (collected, no_body) = (InFlightBody::Collected(shared_body), InFlightBody::Whole(Bytes::new()));
        let (sharing, storage) = match (plan, fits) {
            (Some(StoragePlan { response, store_as, .. }), true) => {
                (Shareability::Cacheable(response.with(collected), store_as), Storage::Stored)
            }
            (Some(StoragePlan { response, store_as, .. }), false) => {
                let redirects = response.secondary_key.is_some() || response.others.is_none();
                let value = redirects.then(|| response.with(no_body));
                (Shareability::CacheableAtEnd(value, store_as), Storage::Undecided)
            }
            (None, _) => {
                let headers = fields::end_to_end(&parts.headers);
                let sharing = match fits {
                    true => self.share_failure(headers, collected),
                    false => self.share_failure(without_body(headers), no_body),
                };
                (sharing, Storage::NotStored(Uncached::OriginFailure))
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
        FetchHead { response: Ok(answer), sharing, completion: Some(completion) }
    }

    /// Returns the number of bytes of a body that `max_payload` permits after the encoded head.
    fn room_after(&self, encoded: &[u8]) -> u64 {
        (self.resource.config.max_payload as u64).saturating_sub(encoded.len() as u64)
    }

    /// Returns the sharing of a failure. Many handlers answer 500 for one request that they cannot cope with.
    fn share_failure(&self, headers: HeaderMap, body: InFlightBody) -> Shareability {
        let freshness = StoredFreshness::of(&headers, &self.resource.config.http);
        let response = InFlightResponse {
            id: self.id,
            secondary_key: None,
            freshness,
            others: self.selector().others(freshness.for_everyone),
            response_time: Timestamp::now(),
            age: self.times.initial_age(&headers),
            fresh_for: None,
            status: self.status,
            headers,
            body,
        };
        let cause = match self.status {
            StatusCode::INTERNAL_SERVER_ERROR => FailureCause::Inconclusive,
            _ => FailureCause::Origin,
        };
        Shareability::Unshared(Unshared::Response(Arc::new(response)), cause, self.status.as_u16())
    }

    /// Handles a 304 to a request that was conditional on the stored response. One about another response neither freshens
    /// it nor is shared, and waiters try again (RFC 9111 §4.3.4); its client gets a 502, because its request cannot be sent
    /// twice.
    pub(super) async fn on_304<B, E>(&self, old: &StoredResponse, newer: &HeaderMap) -> FetchHead<Answer<B, E>> {
        if validation::freshens(&old.headers, newer) {
            return self.on_not_modified(old, newer);
        }
        // If the stored response stayed in the store, the next request would validate it again.
        let _ = self.resource.to_primary().invalidate().await;
        let note = self.note(Storage::NotStored(Uncached::UnrelatedNotModified));
        let answer = reply::empty(StatusCode::BAD_GATEWAY, note);
        FetchHead { response: Ok(answer), sharing: Shareability::private(Audience::NoOne), completion: None }
    }

    /// Handles a 304 for the stored response, which is served again with the fields of the 304 (RFC 9111 §4.3.3,
    /// §4.3.4).
    fn on_not_modified<B, E>(&self, old: &StoredResponse, newer: &HeaderMap) -> FetchHead<Answer<B, E>> {
        let stated = validation::aged(validation::updated(&old.headers, newer), newer);
        let plan = match self.storable(old.status, &stated) {
            Storable::Shared(terms) => self.plan(old.status, &stated, terms),
            Storable::Private(reason) => Err(reason),
            Storable::ClientError => Err(Uncached::ClientError),
            Storable::Failure { .. } => Err(Uncached::OriginFailure),
        };
        let storage = plan.as_ref().map_or_else(|reason| Storage::NotStored(*reason), |_| Storage::Stored);
        let mut response = Response::new(CacheBody::stored(old.body.clone()));
        (*response.status_mut(), *response.headers_mut()) = (old.status, stated);
        let answer = self.annotated(response, storage);
        match plan {
            Ok(plan) => stored_at_once(answer, &old.body, plan),
            Err(_) => FetchHead { response: Ok(answer), sharing: self.uncacheable(), completion: None },
        }
    }

    fn private<B, E>(&self, response: Response<B>, reason: Uncached) -> FetchHead<Answer<B, E>> {
        let answer = self.annotated(response.map(CacheBody::origin), Storage::NotStored(reason));
        FetchHead { response: Ok(answer), sharing: self.uncacheable(), completion: None }
    }

    /// Returns the sharing of a response that is not shared. If something told the user of this request apart, that holds
    /// only for such requests, because an anonymous request may get a response that can be shared.
    fn uncacheable(&self) -> Shareability {
        match self.reply.cache_request.is_anonymous() {
            true => Shareability::private(Audience::Everyone),
            false => Shareability::private(WITH_CREDENTIALS),
        }
    }

    fn selector(&self) -> Selector<'_> {
        let Reply { cache_request, client, .. } = self.reply;
        Selector { cache_request, headers: client, options: &self.resource.config.http }
    }

    fn storable(&self, status: StatusCode, headers: &HeaderMap) -> Storable {
        storing::storable(status, headers, self.reply.cache_request.credentials, self.times, &self.resource.config.http)
    }

    /// Returns how to store the response, or why it cannot be stored after all.
    fn plan(&self, status: StatusCode, headers: &HeaderMap, terms: StorageTerms) -> Result<StoragePlan, Uncached> {
        let (selector, freshness) = (self.selector(), terms.freshness);
        self.recorder.selected(selector, freshness.for_everyone);
        let mut fields = SelectingFields::of(headers, freshness.for_everyone).ok_or(Uncached::Vary)?;
        // Some handlers negotiate an encoding without a `Vary`. A client that cannot decode it must not get it by default.
        if terms.lifetime.is_none() && headers.contains_key(header::CONTENT_ENCODING) {
            fields = fields.with(header::ACCEPT_ENCODING).ok_or(Uncached::Vary)?;
        }
        let (named, others) = (fields.len(), selector.others(freshness.for_everyone));
        let is_unknown = selector.is_unknown(&fields);
        let contradicts = self.reply.cache_request.forwarded == ForwardedFields::Contradicting;
        let remaining = fields.remaining(&self.redirects);
        // An index that the response does not need any more ends.
        let keeps_redirects = remaining.len() < named || others.is_some();
        // The fields of proxies are a part of each variant.
        let is_selected = others.is_some() && (self.redirects.is_empty() || !remaining.for_everyone);
        let secondary_key = match remaining.len() {
            0 if !is_selected => None,
            _ if self.redirects.len() == MAX_REDIRECTS => return Err(Uncached::Vary),
            _ => Some(SecondaryKey::new(self.id, remaining, selector)),
        };
        let headers = fields::end_to_end(headers);
        let encoded =
            stored_response::encode(status, &headers, terms.age, freshness, others).ok_or(Uncached::TooLarge)?;
        let lifetimes = match stored_response::lifetimes(&self.resource.config, &terms) {
            // A flood of values leaves nothing, and a session that is revoked ends.
            Lifetimes { fresh_for, .. } if is_unknown && (freshness.lifetime.is_none() || contradicts) => {
                Lifetimes::fresh_for(fresh_for.min(MAX_FRESHNESS_OF_UNKNOWN))
            }
            lifetimes => lifetimes,
        };
        let index = secondary_key.as_ref().map(|secondary_key| Box::new(secondary_key.index()));
        let response = InFlightResponse {
            id: self.id,
            secondary_key,
            freshness,
            others,
            response_time: Timestamp::now(),
            age: terms.age,
            fresh_for: Some(lifetimes.fresh_for),
            status,
            headers,
            body: InFlightBody::Whole(Bytes::new()),
        };
        Ok(StoragePlan { response, encoded, store_as: StoreAs { lifetimes, codec: RESPONSE, keeps_redirects, index } })
    }

    fn annotated<B>(&self, response: Response<CacheBody<B>>, storage: Storage) -> Annotated<CacheBody<B>> {
        self.reply.own(response, self.note(storage))
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

/// Returns the head of a response whose body is known already: it is shared and stored with this body.
fn stored_at_once<B, E>(answer: Annotated<CacheBody<B>>, body: &[u8], plan: StoragePlan) -> FetchHead<Answer<B, E>> {
    let payload = Bytes::from([&plan.encoded, body].concat());
    let sharing = Shareability::Complete(payload.into(), plan.store_as);
    FetchHead { response: Ok(answer), sharing, completion: None }
}

fn without_body(mut headers: HeaderMap) -> HeaderMap {
    for of_the_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        headers.remove(of_the_body);
    }
    headers
}

/// Maximum freshness lifetime of a response that unknown fields select, unless it states one for such requests.
const MAX_FRESHNESS_OF_UNKNOWN: Duration = Duration::from_secs(1);
/// Maximum time that waiters wait for the end of a body of unknown length.
const MAX_WAIT_FOR_UNKNOWN_LENGTH: Duration = Duration::from_secs(5);
