//! Answers from the outage cache: results of this process that could not be stored.

use super::{
    erased::{AnyAnswer, Policy},
    flight::Found,
    frontend::Reuse,
    lookup::Lookup,
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    outage_cache::{NotStored, OutageCache},
    policy::status_of,
    store::entry::Entry,
    telemetry,
};

/// What the outage cache has for a caller.
pub(super) enum KeptResult {
    Answer(AnyAnswer, CacheStatus),
    /// The response is private, or for other callers.
    Bypass,
    /// No result, but a redirect: the lookup has moved to the cache key that it leads to.
    NothingThere,
}

impl Lookup {
    /// Asks the outage cache if the store could not be asked, or has no usable entry. Follows redirects that were kept,
    /// and moves to their cache key.
    pub(super) fn consult_outage_cache(&mut self, policy: &Policy, found: &Found) -> Option<KeptResult> {
        if self.resource.config.outage_cache().is_none_or(OutageCache::is_empty) || is_usable(policy, found) {
            return None;
        }
        let redirects = self.redirects.len();
        let kept = self.find_kept(policy, found);
        kept.or_else(|| (self.redirects.len() > redirects).then_some(KeptResult::NothingThere))
    }

    fn find_kept(&mut self, policy: &Policy, found: &Found) -> Option<KeptResult> {
        loop {
            let now = Timestamp::now();
            let entry = match found {
                Err(_) => self.resource.kept_entry(NotStored::Unavailable, None, now)?,
                Ok(stored) => self.resource.kept_entry(NotStored::Refused, stored.as_ref(), now)?,
            };
            match policy.evaluate(&entry, now) {
                Reuse::Serve(answer) | Reuse::ServeAndRevalidate(answer) => {
                    telemetry::outage_cache_hit(&self.resource.config.meter);
                    return Some(KeptResult::Answer(answer, status_of(&entry, now)));
                }
                Reuse::HitForPass | Reuse::Bypass => return Some(KeptResult::Bypass),
                Reuse::Redirect(redirect) if self.follow_remembered(&redirect) => {}
                // A do-not-store marker is not followed: it would lead to the same local flight, but without a permit
                // of `max_fallback_fetches`.
                _ => return None,
            }
        }
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
