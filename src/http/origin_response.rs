//! What follows from a response of the origin: how it is shared and stored, and what its own client gets.

use super::{
    annotation::{Annotated, Answer, Recorder, StatusNote, Storage},
    body::{BodyCollector, CacheBody},
    reply::{self, Reply},
    request_policy::WITH_CREDENTIALS,
    semantics::{
        fields,
        freshness::Times,
        request::ForwardedFields,
        storing::{self, Storable, StorageTerms},
        validation,
    },
    stored_response::{self, InFlightBody, InFlightResponse, RESPONSE, StoredResponse, stored},
    vary::{SecondaryKey, SelectingFields, Selector},
};
use crate::{
    clock::{self, Timestamp},
    config::FailureClass,
    engine::{
        frontend::{
            Completed, Completion, FetchHead, FollowedRedirect, MAX_REDIRECTS, Shareability, StoreAs, Unshared,
        },
        resource::Resource,
    },
    error::BoxError,
    policy::{self, Freshness},
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
    pub(super) sent_at: Timestamp,
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
        let storable = self.storable(response.status(), response.headers());
        let is_stated = matches!(storable, Storable::Shared(terms) if terms.freshness.lifetime.is_some());
        let stays = self.is_worse_than_stored();
        let error = (stays || matches!(storable, Storable::WaitersOnly(_))).then(|| self.class());
        let head = match storable {
            Storable::Shared(terms) | Storable::WaitersOnly(terms) => {
                match (self.plan(self.status, response.headers(), terms), error) {
                    (Ok(plan), _) if min_size <= self.room_after(&plan.encoded) => self.collect(response, plan, error),
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

    /// Reports whether this is an error, and a good response is stored that was fresh when the request was sent. That
    /// response stays. Otherwise one client could replace a fresh page by an error, with a forced reload and a request
    /// that the origin does not like. Within its stale windows (RFC 5861) the good response stays too, unless the status
    /// says that the page has gone.
    fn is_worse_than_stored(&self) -> bool {
        let may_be_gone = storing::is_heuristically_cacheable(self.status);
        let stays = |entry: &Entry| match policy::freshness(entry, self.sent_at) {
            Freshness::Fresh => true,
            _ => !may_be_gone && !policy::servable_for(entry, Timestamp::now()).is_zero(),
        };
        let is_good = |entry: &&Entry| stored(entry).is_some_and(|stored| !is_error(stored.status));
        is_error(self.status) && self.seen.filter(is_good).is_some_and(stays)
    }

    /// Handles an error that is neither stored nor shared. Of a failure the waiters get the status: if each sent a request
    /// of its own, a failing origin would be flooded.
    fn on_error<B, E>(&self, response: Response<B>) -> FetchHead<Answer<B, E>> {
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
    fn collect<B, E>(
        &self,
        response: Response<B>,
        plan: StoragePlan,
        error: Option<(FailureClass, Uncached)>,
    ) -> FetchHead<Answer<B, E>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let StoragePlan { response: shared, encoded, store_as } = plan;
        // Waiters stream the body only if its size is known to be within the cap. Otherwise they wait for its end.
        let fits = response.body().size_hint().upper().is_some_and(|most| most <= self.room_after(&encoded));
        let (limit, at_limit) = match fits {
            true => (self.deadline, Completed::Truncated),
            // The body may never end, so waiters do not wait for its end for as long as for a fetch.
            false => (clock::deadline_after(MAX_WAIT_FOR_UNKNOWN_LENGTH).min(self.deadline), Completed::TooLarge),
        };
        let (parts, body) = response.into_parts();
        let length = fields::content_length(&parts.headers);
        let max_payload = self.resource.config.max_payload;
        let (collector, shared_body, body) = BodyCollector::new(body, &encoded, length, max_payload);
        let recorder = (error.is_none() && self.unstorable.is_none()).then(|| self.recorder.clone());
        let (collected, no_body) = (InFlightBody::Collected(shared_body), InFlightBody::Whole(Bytes::new()));
        let (sharing, storage) = match error {
            None if fits => (Shareability::Cacheable(shared.with(collected), store_as), Storage::Stored),
            None => {
                let redirects = shared.secondary_key.is_some() || shared.others.is_none();
                let value = redirects.then(|| shared.with(no_body));
                (Shareability::CacheableAtEnd(value, store_as), Storage::Undecided)
            }
            Some((class, reason)) => {
                let error = InFlightResponse { fresh_for: None, ..shared };
                let value = match fits {
                    true => error.with(collected),
                    false => InFlightResponse { headers: without_body(error.headers), ..error }.with(no_body),
                };
                (Shareability::Unshared(Unshared::Response(value, class)), Storage::NotStored(reason))
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

    /// Returns the number of bytes of a body that `max_payload` permits after the encoded head.
    fn room_after(&self, encoded: &[u8]) -> u64 {
        (self.resource.config.max_payload as u64).saturating_sub(encoded.len() as u64)
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
        FetchHead { is_inconclusive: true, ..FetchHead::new(Ok(answer), self.uncacheable()) }
    }

    /// Handles a 304 for the stored response, which is served again with the fields of the 304 (RFC 9111 §4.3.3,
    /// §4.3.4).
    fn on_not_modified<B, E>(&self, old: &StoredResponse, newer: &HeaderMap) -> FetchHead<Answer<B, E>> {
        let stated = validation::aged(validation::updated(&old.headers, newer), newer);
        let plan = match self.storable(old.status, &stated) {
            Storable::Shared(terms) | Storable::WaitersOnly(terms) => self.plan(old.status, &stated, terms),
            Storable::Private(reason) => Err(reason),
        };
        let storage = plan.as_ref().map_or_else(|reason| Storage::NotStored(*reason), |_| Storage::Stored);
        let mut response = Response::new(CacheBody::stored(old.body.clone()));
        (*response.status_mut(), *response.headers_mut()) = (old.status, stated);
        let answer = self.annotated(response, storage);
        match plan {
            Ok(plan) => {
                let payload = Bytes::from([&plan.encoded, &old.body[..]].concat());
                FetchHead::new(Ok(answer), Shareability::Complete(payload.into(), plan.store_as))
            }
            Err(_) => FetchHead::new(Ok(answer), self.uncacheable()),
        }
    }

    fn private<B, E>(&self, response: Response<B>, reason: Uncached) -> FetchHead<Answer<B, E>> {
        let answer = self.annotated(response.map(CacheBody::origin), Storage::NotStored(reason));
        FetchHead::new(Ok(answer), self.uncacheable())
    }

    /// Returns the sharing of a response that is not shared. If something told the user of this request apart, that holds
    /// only for such requests, because an anonymous request may get a response that can be shared.
    fn uncacheable(&self) -> Shareability {
        let is_anonymous = self.reply.cache_request.is_anonymous();
        Shareability::private(if is_anonymous { Audience::Everyone } else { WITH_CREDENTIALS })
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
        // A refresh keeps the variants of requests with other fields. After an invalidation nothing was seen.
        let replaced = self.seen.filter(|_| secondary_key.is_none()).and_then(stored);
        let index_id = replaced.map_or(self.id, |replaced| replaced.index_id);
        let encoded = stored_response::encode(status, &headers, terms.age, freshness, (others, index_id))
            .ok_or(Uncached::TooLarge)?;
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
            index_id,
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

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
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
