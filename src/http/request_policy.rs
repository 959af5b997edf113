//! The reuse policy of one request (RFC 9111 §4): what it accepts of stored and shared responses.

use super::{
    body::{CacheBody, OriginBody},
    reply::{self, Answer, StatusNote},
    semantics::{
        request::{CacheRequest, ClientRequest},
        storing,
    },
    stored_response::{InFlightResponse, SharedHead, StoredResponse, stored},
    vary::{self, FRESHNESS_OF_UNKNOWN, INDEX, SelectingFields},
};
use crate::{
    clock::Timestamp,
    config::Config,
    engine::frontend::{Answers, Redirect, Reuse, ReusePolicy},
    error::Error,
    policy::{self, EarlyRefresh, Freshness},
    store::{
        entry::{Audience, Entry, Kind, SharedValue},
        token::Token,
    },
};
use bytes::Bytes;
use http::HeaderMap;
use std::{
    borrow::Borrow,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

/// The reuse policy of a request with head `H`, under the settings `C`.
#[derive(Clone)]
pub(super) struct RequestPolicy<H, C> {
    pub(super) cache_request: CacheRequest,
    pub(super) headers: H,
    pub(super) config: C,
    pub(super) requested_at: Timestamp,
    pub(super) early_refresh: Option<EarlyRefresh>,
}

/// The policy of a request that has left its caller, with the head of the request.
pub(super) type SharedPolicy = RequestPolicy<Arc<HeaderMap>, Arc<Config>>;

impl<H: Borrow<HeaderMap>, C: Borrow<Config>> RequestPolicy<H, C> {
    pub(super) fn request(&self) -> ClientRequest<'_> {
        let (headers, config) = (self.headers.borrow(), self.config.borrow());
        ClientRequest { cache_request: &self.cache_request, headers, options: &config.http }
    }

    /// Returns the stored response, if the entry is one and may be shared with this request.
    fn stored<'e>(&self, entry: &'e Entry) -> Option<&'e StoredResponse> {
        stored(entry)
            .filter(|stored| !stored.head.sharing.always_validated)
            .filter(|stored| self.is_admitted(&stored.head) && stored.head.is_selected_by(self.request()))
    }

    /// Reports whether the credentials of this request permit it to be given the response to another.
    fn is_admitted(&self, head: &SharedHead) -> bool {
        head.sharing.auth_sharing.admits(self.cache_request.credentials)
    }

    /// Decides about a response that this request does not select. One to a request without other fields is the index
    /// of this request. Any other response is replaced, unless `stays` is set.
    fn elsewhere<A>(&self, id: Token, head: &SharedHead, stays: bool) -> Reuse<A> {
        let fields = Arc::new(SelectingFields { vary: Vec::new(), for_everyone: head.sharing.for_everyone });
        match head.others {
            None => Reuse::Redirect(Redirect { id, ..self.request().redirect(head.index_id, fields) }),
            Some(_) if stays => Reuse::Bypass,
            Some(_) => Reuse::Miss,
        }
    }

    /// Reports whether a response with this head, which arrived `resident_time` ago, must be validated first.
    fn rejects(&self, head: &SharedHead, resident_time: Duration, fresh_for: Duration) -> bool {
        let left = fresh_for.saturating_sub(resident_time);
        self.cache_request.directives.reject(resident_time + head.age, resident_time, left)
    }

    /// Reports whether the shared response is too old for this request.
    fn is_too_old(&self, shared: &InFlightResponse) -> bool {
        let resident_time = Timestamp::now().since(shared.response_time);
        let fresh_for = shared.fresh_for.unwrap_or(Duration::MAX);
        // RFC 9111 §4.2.4: a stale response is not reused, even if its body is still arriving.
        let is_rejected = resident_time >= fresh_for || self.rejects(&shared.head, resident_time, fresh_for);
        // A response that arrived after the request is new to its client, whatever its lifetime and the request's
        // demands.
        shared.response_time < self.requested_at && is_rejected
    }
}

impl<H: Borrow<HeaderMap> + Send + Sync, C: Borrow<Config> + Send + Sync> ReusePolicy for RequestPolicy<H, C> {
    fn classify(&self, entry: &Entry, now: Timestamp) -> Reuse {
        let freshness = policy::freshness(entry, now);
        if entry.meta().kind == Kind::Value && entry.meta().codec == INDEX {
            // An index is valid while it is stored. The fills of its variants prolong that time.
            let redirect = vary::redirect(entry, self.request());
            return redirect.map_or(Reuse::Miss, Reuse::Redirect);
        }
        let Some(StoredResponse { head, .. }) = stored(entry) else { return Reuse::Miss };
        if !self.is_admitted(head) {
            return Reuse::Bypass;
        }
        if !head.is_selected_by(self.request()) {
            // A response keeps its name for at most one second, because one client can take all 64 names. Herds of other
            // combinations would then not be coalesced.
            let stays = freshness == Freshness::Fresh && entry.age(now) < FRESHNESS_OF_UNKNOWN;
            return self.elsewhere(entry.meta().id, head, stays);
        }
        if head.sharing.always_validated {
            return Reuse::HitForPass;
        }
        let is_rejected = self.rejects(head, entry.age(now), entry.meta().lifetimes.fresh_for);
        let is_due = || self.early_refresh.is_some_and(|early| early.is_due(entry, now));
        match freshness {
            Freshness::Fresh if !is_rejected && !is_due() => Reuse::Serve(()),
            Freshness::Fresh | Freshness::Revalidate if !is_rejected => Reuse::ServeAndRevalidate(()),
            Freshness::Dead => Reuse::Miss,
            _ => Reuse::Revalidate,
        }
    }

    fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool {
        self.stored(entry).is_some() && policy::allows_stale_on_error(entry, now)
    }

    fn is_covered_by(&self, audience: Audience) -> bool {
        match audience {
            Audience::Everyone => true,
            WITH_CREDENTIALS => !self.cache_request.is_anonymous(),
            _ => false,
        }
    }

    /// A request with other fields may succeed where this one failed.
    fn request_hash(&self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        for (name, value) in self.headers.borrow() {
            (name.as_str(), value.as_bytes()).hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

impl<H, C, B, E> Answers<Answer<B, E>> for RequestPolicy<H, C>
where
    H: Borrow<HeaderMap> + Send + Sync,
    C: Borrow<Config> + Send + Sync,
    B: OriginBody,
{
    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<Answer<B, E>> {
        let stored = self.stored(entry)?;
        let resident_time = entry.age(now);
        let stale_for = resident_time.saturating_sub(entry.meta().lifetimes.fresh_for);
        let body = CacheBody::stored(stored.body.clone());
        Some(Ok(self.request().shared(&stored.head, body, resident_time, StatusNote::Hit { stale_for })))
    }

    fn accept_shared(&self, value: &SharedValue) -> Reuse<Answer<B, E>> {
        // Of the failure of another kind of request it gets only the status.
        let bare = |status| Reuse::Serve(Ok(reply::empty(status, StatusNote::Collapsed { reason: "uri-miss" })));
        if let Some(status) = value.downcast_ref() {
            return bare(*status);
        }
        let Some(shared) = value.downcast_ref::<InFlightResponse>() else { return Reuse::Bypass };
        let reason = if shared.secondary_key.is_some() { "vary-miss" } else { "uri-miss" };
        let (is_admitted, is_selected) = (self.is_admitted(&shared.head), shared.head.is_selected_by(self.request()));
        let redirect = shared.secondary_key.as_ref().and_then(|secondary_key| {
            let redirect = self.request().redirect(shared.id, secondary_key.fields.clone());
            (redirect.variant != secondary_key.variant).then_some(redirect)
        });
        let is_usable = is_admitted && is_selected && redirect.is_none();
        match redirect {
            _ if shared.fresh_for.is_none() && !is_usable && storing::is_origin_failure(shared.head.status) => {
                return bare(shared.head.status);
            }
            Some(redirect) => return Reuse::Redirect(redirect),
            None if !is_admitted || shared.head.sharing.always_validated => return Reuse::Bypass,
            None if !is_selected => return self.elsewhere(shared.id, &shared.head, true),
            None => {}
        }
        let body = match &shared.body {
            _ if self.is_too_old(shared) => None,
            None => Some(CacheBody::stored(Bytes::new())),
            Some(body) => CacheBody::shared(body),
        };
        // A truncated body is as useless as an old one to a caller that can still fetch a complete one.
        let Some(body) = body else { return Reuse::Miss };
        let resident_time = Timestamp::now().since(shared.response_time);
        Reuse::Serve(Ok(self.request().shared(&shared.head, body, resident_time, StatusNote::Collapsed { reason })))
    }

    fn reject(&self, error: Error) -> Answer<B, E> {
        Ok(reply::rejection(&error))
    }
}

/// The audience of requests with something that tells their user apart.
pub(super) const WITH_CREDENTIALS: Audience = Audience::Group(1);
