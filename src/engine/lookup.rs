//! Looks up the entry of a key, following redirects to the cache key of a variant. If the store has no usable entry, the
//! outage cache may have one.

use super::{
    erased::{AnyAnswer, Policy},
    flight::{Found, JoinCriteria, Waiter},
    frontend::{FollowedRedirect, MAX_REDIRECTS, Redirect, Reuse, ReusePolicy},
    nesting::ACTIVE_FETCHES,
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    outage_cache::{NotStored, OutageCache},
    policy::status_of,
    store::entry::Entry,
    telemetry,
};
use std::{iter, mem};
use tokio::time::Instant;

/// The lookup of one caller, at the cache key that the redirects have led to so far.
///
/// A redirect is confirmed if it comes from the store or from a leader. A remembered redirect is followed in advance,
/// so that it is read together with the entry that it leads to. Without the store, callers of a variant meet at the
/// cache key that the remembered redirects lead to.
pub(super) struct Lookup {
    pub(super) resource: Resource,
    /// The redirects that were followed, the first one first.
    pub(super) redirects: Vec<FollowedRedirect>,
    /// The number of remembered redirects among them, which are the last ones.
    remembered: usize,
    /// The [number](crate::versions::Versions::now) at which the last read began.
    begun: u64,
    /// When the request began.
    pub(super) requested_at: Instant,
    /// What the call has not evaluated yet: the result of its first lookup, or that of a leader.
    pub(super) found: Option<Found>,
}

/// What the outage cache has for a caller.
pub(super) enum KeptResult {
    Answer(AnyAnswer, CacheStatus),
    /// The response is private, or for other callers.
    Bypass,
    /// No result, but a redirect: the lookup has moved to the cache key that it leads to.
    NothingThere,
}

impl Lookup {
    pub(super) fn new(resource: Resource) -> Self {
        let begun = resource.engine.versions.now();
        Self { resource, redirects: Vec::new(), remembered: 0, begun, requested_at: clock::now(), found: None }
    }

    /// Returns to the last cache key that was confirmed, and follows the redirects that are remembered from there. A
    /// remembered redirect may have been invalidated while the entry of its variant is still stored.
    pub(super) fn predict(&mut self, policy: &dyn ReusePolicy) {
        let confirmed = self.redirects.len() - mem::take(&mut self.remembered);
        if let Some(first) = self.redirects.drain(confirmed..).next() {
            self.resource.key = first.key;
        }
        while let Some(index) = self.resource.engine.redirect_cache.get(&self.resource.key)
            && let Some(redirect) = policy.redirect_of(&index, Timestamp::now())
            && self.follow_remembered(&redirect)
        {}
    }

    /// Joins the flight of the cache key, whose callers need no lookup: its leader asks the store itself, or fetches.
    ///
    /// Not at a cache key that only remembered redirects lead to, because they may have been invalidated since the fetch
    /// began; and not if the entry that the fetch replaces answers this caller.
    pub(super) fn join_flight(&self, policy: &dyn ReusePolicy, criteria: JoinCriteria) -> Option<Waiter> {
        if self.remembered > 0 {
            return None;
        }
        let waiter = self.resource.engine.flights.join(&self.resource.key, criteria)?;
        let is_settled = waiter.seen().is_some_and(|seen| policy.settles(seen, Timestamp::now()));
        (!is_settled).then_some(waiter)
    }

    /// Begins a call. Returns `false` if it must look at flights or enclosing fetches before it reads, or reads nothing.
    pub(super) fn reads_first(&mut self, policy: &dyn ReusePolicy) -> bool {
        let is_nested = || ACTIVE_FETCHES.try_with(|active| !active.is_empty()).unwrap_or_default();
        if self.resource.config.bypass || is_nested() {
            return false;
        }
        self.predict(policy);
        self.remembered > 0 || !self.resource.engine.flights.has(&self.resource.key)
    }

    /// Reads the entry, and the remembered redirects that lead to it. Stays at the first cache key whose redirect has
    /// changed. Keeps the remembered redirects if the store does not answer.
    pub(super) async fn read(&mut self, policy: &dyn ReusePolicy) -> Found {
        if self.remembered == 0 {
            let (found, begun) = self.resource.get().await?;
            self.begun = begun;
            return Ok(found);
        }
        let confirmed = self.redirects.len() - self.remembered;
        let followed = self.redirects[confirmed..].iter().map(|redirect| &redirect.key);
        let keys: Vec<_> = followed.chain(iter::once(&self.resource.key)).cloned().collect();
        // Boxed, because few lookups follow redirects.
        let (found, begun) = Box::pin(self.resource.get_all(&keys)).await?;
        (self.begun, self.remembered) = (begun, 0);
        for (at, (pair, index)) in keys.windows(2).zip(&found).enumerate() {
            let redirect = index.as_ref().and_then(|index| policy.redirect_of(index, Timestamp::now()));
            if redirect.is_none_or(|redirect| redirect.target(&pair[0]) != pair[1]) {
                self.resource.engine.redirect_cache.forget(&pair[0]);
                self.redirects.truncate(confirmed + at);
                self.resource.key = pair[0].clone();
                return Ok(index.clone());
            }
        }
        Ok(found.into_iter().next_back().flatten())
    }

    /// Reads, and follows redirects, until there is no entry or one that is no redirect.
    pub(super) async fn find(&mut self, policy: &dyn ReusePolicy) -> Found {
        loop {
            self.predict(policy);
            let Some(entry) = self.read(policy).await? else { return Ok(None) };
            match policy.redirect_of(&entry, Timestamp::now()) {
                Some(redirect) if self.follow(&entry, &redirect) => {}
                _ => return Ok(Some(entry)),
            }
        }
    }

    /// Asks the outage cache if the store could not be asked, or has no usable entry. Follows redirects that were kept,
    /// and moves to their cache key.
    pub(super) fn consult_outage_cache(&mut self, policy: &Policy, found: &Found) -> Option<KeptResult> {
        if self.resource.config.outage_cache().is_none_or(OutageCache::is_empty) || is_usable(policy, found) {
            return None;
        }
        let (reason, stored) = match found {
            Err(_) => (NotStored::Unavailable, None),
            Ok(stored) => (NotStored::Refused, stored.as_ref()),
        };
        let redirects = self.redirects.len();
        loop {
            let now = Timestamp::now();
            let kept = self.resource.kept_entry(reason, stored, now);
            match kept.as_ref().map(|entry| (policy.evaluate(entry, now), status_of(entry, now))) {
                Some((Reuse::Serve(answer) | Reuse::ServeAndRevalidate(answer), status)) => {
                    telemetry::outage_cache_hit(&self.resource.config.meter);
                    return Some(KeptResult::Answer(answer, status));
                }
                Some((Reuse::HitForPass | Reuse::Bypass, _)) => return Some(KeptResult::Bypass),
                Some((Reuse::Redirect(redirect), _)) if self.follow_remembered(&redirect) => {}
                // A do-not-store marker is not followed: it would lead to the same local flight, but without a permit
                // of `max_fallback_fetches`.
                _ => return (self.redirects.len() > redirects).then_some(KeptResult::NothingThere),
            }
        }
    }

    /// Follows the redirect of an entry in the store, and remembers it. Returns `false` if `MAX_REDIRECTS` is reached.
    pub(super) fn follow(&mut self, index: &Entry, redirect: &Redirect) -> bool {
        self.resource.engine.redirect_cache.remember(&self.resource.key, index, self.begun);
        self.move_to(redirect)
    }

    /// Follows a redirect that a leader has confirmed. Returns `false` if `MAX_REDIRECTS` is reached.
    pub(super) fn move_to(&mut self, redirect: &Redirect) -> bool {
        let follows = self.follow_remembered(redirect);
        if follows {
            self.remembered = 0;
        }
        follows
    }

    /// Follows a remembered redirect. Returns `false` if `MAX_REDIRECTS` is reached.
    fn follow_remembered(&mut self, redirect: &Redirect) -> bool {
        if self.redirects.len() == MAX_REDIRECTS {
            return false;
        }
        let target = redirect.target(&self.resource.key);
        let key = mem::replace(&mut self.resource.key, target);
        self.redirects.push(FollowedRedirect { key, id: redirect.id, via: redirect.via.clone() });
        self.remembered += 1;
        true
    }
}

/// Reports whether the store has an entry that decides how this caller is answered.
fn is_usable(policy: &Policy, found: &Found) -> bool {
    let Ok(Some(entry)) = found else { return false };
    let reuse = policy.evaluate(entry, Timestamp::now());
    !matches!(reuse, Reuse::ServeAndRevalidate(_) | Reuse::Revalidate | Reuse::Miss)
}

impl Resource {
    /// Returns the result of an earlier flight that was kept after the caller had asked the outage cache. Without this
    /// check, a flight that begins in the moment in which the earlier one ends would fetch again.
    pub(super) fn kept_result(&self, policy: &Policy, reason: NotStored, seen: Option<&Entry>) -> Option<Entry> {
        let now = Timestamp::now();
        self.kept_entry(reason, seen, now).filter(|entry| policy.servable(entry, now).is_some())
    }

    /// Returns the kept entry of the cache key, if it counts for this reason: see [`OutageCache::get`].
    fn kept_entry(&self, reason: NotStored, stored: Option<&Entry>, now: Timestamp) -> Option<Entry> {
        self.config.outage_cache()?.get(&self.key, &self.engine.versions, (reason, stored), now)
    }
}
