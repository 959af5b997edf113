//! The reuse policy of one request (RFC 9111 §4): what it accepts of stored and shared responses.

use super::{
    body::CacheBody,
    cache_status_field::{Answer, StatusNote},
    in_flight::InFlightResponse,
    reply::Reply,
    semantics::{
        request::{CacheRequest, Credentials},
        reuse::{self, Ages, FreshnessCheck},
    },
    stored_response::{StoredResponse, stored},
    vary::{self, INDEX},
};
use crate::{
    clock::Timestamp,
    config::{Config, http::HttpOptions},
    engine::{
        failure::{Circumstances, Seen},
        frontend::{Answers, Redirect, ReuseClass, ReusePolicy, SharedReuse},
    },
    error::Error,
    policy::{self, EarlyRefresh, Freshness},
    store::entry::{Audience, Entry, Kind, SharedValue},
};
use http::HeaderMap;
use std::{borrow::Borrow, marker::PhantomData, time::Duration};

/// The reuse policy of a request with head `H` under settings `C`.
pub(super) struct RequestPolicy<H, C, B, E> {
    pub(super) cache_request: CacheRequest,
    pub(super) headers: H,
    pub(super) config: C,
    pub(super) requested_at: Timestamp,
    pub(super) early_refresh: EarlyRefresh,
    pub(super) of: PhantomData<fn() -> (B, E)>,
}

impl<H: Borrow<HeaderMap>, C: Borrow<Config>, B, E> RequestPolicy<H, C, B, E> {
    fn options(&self) -> &HttpOptions {
        &self.config.borrow().http
    }

    fn reply(&self) -> Reply<'_> {
        Reply { cache_request: &self.cache_request, headers: self.headers.borrow() }
    }

    /// Returns the stored response, if the entry is one and may be shared with this request.
    fn stored<'e>(&self, entry: &'e Entry) -> Option<&'e StoredResponse> {
        stored(entry).filter(|stored| stored.freshness.auth_sharing.admits(self.cache_request.credentials))
    }

    /// Reports whether the shared response is too old for this request.
    fn is_too_old(&self, shared: &InFlightResponse) -> bool {
        let directives = &self.cache_request.directives;
        let resident_time = Timestamp::now().since(shared.response_time);
        let age = resident_time + shared.age;
        let rejected = directives.no_cache || directives.max_age.is_some_and(|max_age| age >= max_age);
        // RFC 9111 §4.2.4: a stale response is not reused, even if its body is still arriving.
        let stale = shared.fresh_for.is_some_and(|fresh_for| resident_time >= fresh_for);
        // A response that arrived after the request is new to its client, whatever its lifetime and the request's
        // demands.
        shared.response_time < self.requested_at && (rejected || stale)
    }
}

impl<H: Borrow<HeaderMap> + Send + Sync, C: Borrow<Config> + Send + Sync, B, E> ReusePolicy
    for RequestPolicy<H, C, B, E>
{
    fn classify(&self, entry: &Entry, now: Timestamp) -> ReuseClass {
        let freshness = policy::freshness(entry, now);
        if entry.meta().kind == Kind::Value && entry.meta().codec == INDEX {
            // An index is valid for as long as it is stored. The fills of its variants prolong that time.
            return ReuseClass::Redirect;
        }
        let Some(stored) = stored(entry) else { return ReuseClass::Miss };
        let stated = &stored.freshness;
        if !stated.auth_sharing.admits(self.cache_request.credentials) {
            return ReuseClass::Bypass;
        }
        let (resident_time, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
        let refresh_early = || !stated.immutable && self.early_refresh.is_due(entry, now);
        let ages = Ages { age: resident_time + stored.age, resident_time, fresh_for };
        match reuse::check_freshness(stated, &self.cache_request.directives, ages) {
            FreshnessCheck::Fresh if refresh_early() => ReuseClass::ServeAndRevalidate,
            FreshnessCheck::Fresh | FreshnessCheck::Stale => ReuseClass::Serve,
            FreshnessCheck::Expired if freshness == Freshness::Revalidate => ReuseClass::ServeAndRevalidate,
            FreshnessCheck::Expired | FreshnessCheck::TooOld if freshness == Freshness::Dead => ReuseClass::Miss,
            FreshnessCheck::Expired | FreshnessCheck::TooOld => ReuseClass::Revalidate,
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

    fn redirect(&self, index: &Entry) -> Option<Redirect> {
        (index.meta().codec == INDEX).then(|| vary::redirect(index, self.headers.borrow(), self.options()))?
    }

    fn is_covered_by(&self, audience: Audience) -> bool {
        match audience {
            Audience::Everyone => true,
            WITH_CREDENTIALS => self.cache_request.credentials != Credentials::None,
            WITHOUT_CREDENTIALS => self.cache_request.credentials == Credentials::None,
            _ => false,
        }
    }

    /// A request with other fields may succeed where this one failed, so a failure blocks other requests for
    /// [`MAX_BLOCK`], unless they get the stored response meanwhile.
    fn circumstances(&self, seen: Option<&Entry>, now: Timestamp) -> Circumstances {
        let is_good = |entry: &&Entry| stored(entry).is_some_and(|stored| !stored.status.is_server_error());
        let seen = seen.filter(is_good).map(|entry| {
            let (age, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
            Seen {
                is_fresh: age < fresh_for,
                was_fresh: age < fresh_for.saturating_add(self.config.borrow().failure_memory()),
                servable_for: policy::servable_for(entry, now),
            }
        });
        let directives = &self.cache_request.directives;
        let is_reload = directives.no_cache || directives.max_age.is_some_and(|max_age| max_age.is_zero());
        Circumstances { seen, is_reload, max_block: MAX_BLOCK }
    }
}

impl<H: Borrow<HeaderMap> + Send + Sync, C: Borrow<Config> + Send + Sync, B, E> Answers<Answer<B, E>>
    for RequestPolicy<H, C, B, E>
{
    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<Answer<B, E>> {
        let stored = self.stored(entry)?;
        let (age, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
        // RFC 9651 §3.3.1: an integer has at most 15 digits.
        let seconds =
            |span: Duration| (span.as_secs().min(10_u64.pow(15) - 2) + u64::from(span.subsec_millis() > 0)) as i64;
        let ttl = seconds(fresh_for.saturating_sub(age)) - seconds(age.saturating_sub(fresh_for));
        Some(Ok(self.reply().stored(stored, age + stored.age, StatusNote::Hit { ttl })))
    }

    fn accept_shared(&self, value: &SharedValue) -> SharedReuse<Answer<B, E>> {
        let Some(shared) = value.downcast_ref::<InFlightResponse>() else { return SharedReuse::Bypass };
        let redirect = shared.secondary_key.as_ref().and_then(|secondary_key| {
            let redirect =
                vary::redirect_for(shared.id, secondary_key.fields.clone(), self.headers.borrow(), self.options());
            (redirect.variant != secondary_key.variant).then_some(redirect)
        });
        let admitted = shared.auth_sharing.admits(self.cache_request.credentials);
        let reason = if shared.secondary_key.is_some() { "vary-miss" } else { "uri-miss" };
        match redirect {
            _ if shared.is_failure && !admitted => {
                let bare = (shared.status, HeaderMap::new(), CacheBody::stored(bytes::Bytes::new()));
                SharedReuse::Use(Ok(self.reply().shared(bare, &[], Duration::ZERO, StatusNote::Collapsed { reason })))
            }
            Some(redirect) => SharedReuse::Redirect(redirect),
            None if !admitted => SharedReuse::Bypass,
            None if self.is_too_old(shared) => SharedReuse::TooOld,
            None => {
                let body = match &shared.body {
                    Some(body) => CacheBody::shared(body),
                    None => Some(CacheBody::stored(bytes::Bytes::new())),
                };
                // A truncated body is as useless as an old one to a caller that can still fetch a complete one.
                let Some(body) = body else { return SharedReuse::TooOld };
                let (head, age) = ((shared.status, shared.headers.clone(), body), shared.age);
                let age = Timestamp::now().since(shared.response_time) + age;
                SharedReuse::Use(Ok(self.reply().shared(
                    head,
                    &shared.per_request,
                    age,
                    StatusNote::Collapsed { reason },
                )))
            }
        }
    }

    fn reject(&self, error: Error) -> Answer<B, E> {
        Ok(super::reply::rejection(&error))
    }
}

impl<H: Clone, C: Clone, B, E> Clone for RequestPolicy<H, C, B, E> {
    fn clone(&self) -> Self {
        let Self { cache_request, requested_at, early_refresh, of, .. } = *self;
        Self {
            cache_request,
            headers: self.headers.clone(),
            config: self.config.clone(),
            requested_at,
            early_refresh,
            of,
        }
    }
}

/// The audiences of requests with credentials, and without.
pub(super) const WITH_CREDENTIALS: Audience = Audience::Group(1);
pub(super) const WITHOUT_CREDENTIALS: Audience = Audience::Group(2);
/// How long a failure marker blocks requests, at most: a request with other fields may succeed.
const MAX_BLOCK: Duration = Duration::from_millis(100);
