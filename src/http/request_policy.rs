//! The reuse policy of one request (RFC 9111 §4): what it accepts of stored and shared responses.

use super::{
    annotation::{Answer, StatusNote},
    body::CacheBody,
    reply::{self, Reply},
    semantics::{
        freshness::{self, Ages, FreshnessCheck, StoredFreshness},
        request::CacheRequest,
        storing,
    },
    stored_response::{InFlightBody, InFlightResponse, StoredResponse, stored},
    vary::{self, INDEX, SelectingFields, Selector},
};
use crate::{
    clock::Timestamp,
    config::Config,
    engine::frontend::{Answers, Redirect, Reuse, ReusePolicy},
    error::Error,
    key::KeyHash,
    policy::{self, EarlyRefresh, Freshness},
    store::{
        entry::{Audience, Entry, Kind, SharedValue},
        token::Token,
    },
};
use http::{HeaderMap, Response};
use std::{
    borrow::Borrow,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

/// The reuse policy of a request with head `H`, under the settings `C`.
#[derive(Clone)]
pub(super) struct RequestPolicy<H, C> {
    pub(super) cache_request: CacheRequest,
    pub(super) headers: H,
    pub(super) config: C,
    pub(super) requested_at: Timestamp,
    pub(super) early_refresh: EarlyRefresh,
}

impl<H: Borrow<HeaderMap>, C: Borrow<Config>> RequestPolicy<H, C> {
    fn reply(&self) -> Reply<'_> {
        Reply { cache_request: &self.cache_request, client: self.headers.borrow(), length: None }
    }

    fn selector(&self) -> Selector<'_> {
        let (headers, config) = (self.headers.borrow(), self.config.borrow());
        Selector { cache_request: &self.cache_request, headers, options: &config.http }
    }

    /// Returns the stored response, if the entry is one and may be shared with this request.
    fn stored<'e>(&self, entry: &'e Entry) -> Option<&'e StoredResponse> {
        stored(entry).filter(|stored| {
            stored.admits(self.cache_request.credentials) && self.is_selected_by(&stored.freshness, stored.others)
        })
    }

    /// Reports whether this request selects a response, as far as `Vary` does not say.
    fn is_selected_by(&self, freshness: &StoredFreshness, others: Option<KeyHash>) -> bool {
        others == self.selector().others(freshness.for_everyone)
    }

    /// Decides about a response that this request does not select. One to a request without other fields is the index
    /// of this request.
    fn elsewhere<A>(&self, ids: [Token; 2], for_everyone: bool, others: Option<KeyHash>, is_fresh: bool) -> Reuse<A> {
        let [id, index_id] = ids;
        let fields = Arc::new(SelectingFields::without_vary(for_everyone));
        match others {
            None => Reuse::Redirect(Redirect { id, ..self.selector().redirect(index_id, fields) }),
            Some(_) if is_fresh => Reuse::Bypass,
            Some(_) => Reuse::Miss,
        }
    }

    /// Reports whether the shared response is too old for this request.
    fn is_too_old(&self, shared: &InFlightResponse) -> bool {
        let resident_time = Timestamp::now().since(shared.response_time);
        let directives = self.cache_request.directives.for_age(resident_time);
        let age = resident_time + shared.age;
        let rejected = directives.no_cache || directives.max_age.is_some_and(|max_age| age >= max_age);
        // RFC 9111 §4.2.4: a stale response is not reused, even if its body is still arriving.
        let stale = shared.fresh_for.is_some_and(|fresh_for| resident_time >= fresh_for);
        // A response that arrived after the request is new to its client, whatever its lifetime and the request's
        // demands.
        shared.response_time < self.requested_at && (rejected || stale)
    }
}

impl<H: Borrow<HeaderMap> + Send + Sync, C: Borrow<Config> + Send + Sync> ReusePolicy for RequestPolicy<H, C> {
    fn classify(&self, entry: &Entry, now: Timestamp) -> Reuse {
        let freshness = policy::freshness(entry, now);
        if entry.meta().kind == Kind::Value && entry.meta().codec == INDEX {
            // An index is valid while it is stored. The fills of its variants prolong that time.
            let redirect = vary::redirect(entry, self.selector());
            return redirect.map_or(Reuse::Miss, Reuse::Redirect);
        }
        let Some(stored) = stored(entry) else { return Reuse::Miss };
        let stated = &stored.freshness;
        if !stated.auth_sharing.admits(self.cache_request.credentials) {
            return Reuse::Bypass;
        }
        if !self.is_selected_by(stated, stored.others) {
            let is_fresh = freshness == Freshness::Fresh;
            return self.elsewhere([entry.meta().id, stored.index_id], stated.for_everyone, stored.others, is_fresh);
        }
        if stated.always_validated {
            return Reuse::HitForPass;
        }
        let (resident_time, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
        let refresh_early = || !stated.immutable && self.early_refresh.is_due(entry, now);
        let ages = Ages { age: resident_time + stored.age, resident_time, fresh_for };
        match freshness::check_freshness(stated, &self.cache_request.directives, ages) {
            FreshnessCheck::Fresh if refresh_early() => Reuse::ServeAndRevalidate(()),
            FreshnessCheck::Fresh | FreshnessCheck::Stale => Reuse::Serve(()),
            FreshnessCheck::Expired if freshness == Freshness::Revalidate => Reuse::ServeAndRevalidate(()),
            FreshnessCheck::Expired | FreshnessCheck::TooOld if freshness == Freshness::Dead => Reuse::Miss,
            FreshnessCheck::Expired | FreshnessCheck::TooOld => Reuse::Revalidate,
        }
    }

    /// A request may accept a stale response (`max-stale`).
    fn serves_stale(&self) -> bool {
        true
    }

    fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool {
        let Some(stored) = self.stored(entry) else { return false };
        let stale_for = entry.age(now).saturating_sub(entry.meta().lifetimes.fresh_for);
        let accepted = !stored.freshness.never_stale && stale_for < self.cache_request.directives.stale_if_error;
        accepted || policy::allows_stale_on_error(entry, now)
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
{
    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<Answer<B, E>> {
        let stored = self.stored(entry)?;
        let (age, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
        let stale_for = age.saturating_sub(fresh_for);
        Some(Ok(self.reply().stored(stored, age + stored.age, StatusNote::Hit { stale_for })))
    }

    fn accept_shared(&self, value: &SharedValue) -> Reuse<Answer<B, E>> {
        // Of the failure of another kind of request it gets only the status.
        let bare = |status| Reuse::Serve(Ok(reply::empty(status, StatusNote::Collapsed { reason: "uri-miss" })));
        if let Some(status) = value.downcast_ref() {
            return bare(*status);
        }
        let Some(shared) = value.downcast_ref::<InFlightResponse>() else { return Reuse::Bypass };
        let reason = if shared.secondary_key.is_some() { "vary-miss" } else { "uri-miss" };
        let is_admitted = shared.freshness.auth_sharing.admits(self.cache_request.credentials);
        let is_selected = self.is_selected_by(&shared.freshness, shared.others);
        let redirect = shared.secondary_key.as_ref().and_then(|secondary_key| {
            let redirect = self.selector().redirect(shared.id, secondary_key.fields.clone());
            (redirect.variant != secondary_key.variant).then_some(redirect)
        });
        let is_usable = is_admitted && is_selected && redirect.is_none();
        match redirect {
            _ if shared.fresh_for.is_none() && !is_usable && storing::is_origin_failure(shared.status) => {
                return bare(shared.status);
            }
            Some(redirect) => return Reuse::Redirect(redirect),
            None if !is_admitted || shared.freshness.always_validated => return Reuse::Bypass,
            None => {}
        }
        if !is_selected {
            return self.elsewhere([shared.id, shared.index_id], shared.freshness.for_everyone, shared.others, true);
        }
        let body = match &shared.body {
            _ if self.is_too_old(shared) => None,
            InFlightBody::Whole(body) => Some(CacheBody::stored(body.clone())),
            InFlightBody::Collected(body) => CacheBody::shared(body),
        };
        // A truncated body is as useless as an old one to a caller that can still fetch a complete one.
        let Some(body) = body else { return Reuse::Miss };
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (shared.status, shared.headers.clone());
        let age = Timestamp::now().since(shared.response_time) + shared.age;
        Reuse::Serve(Ok(self.reply().shared(response, age, StatusNote::Collapsed { reason })))
    }

    fn reject(&self, error: Error) -> Answer<B, E> {
        Ok(reply::rejection(&error))
    }
}

/// The audience of requests with something that tells their user apart.
pub(super) const WITH_CREDENTIALS: Audience = Audience::Group(1);
