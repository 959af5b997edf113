//! Answering from the outage cache.

use super::{Caller, of_stored};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    engine::{
        execution::Execution,
        flight::Progress,
        frontend::{Reuse, ReusePolicy},
        resource::Resource,
    },
    outage_cache::{NotStored, OutageCache},
    policy::is_uncacheable_marker,
    store::{
        entry::{Entry, Kind},
        error::StoreError,
    },
    telemetry,
};

/// The result of a lookup in the store.
pub(super) type Found = Result<Option<Entry>, StoreError>;

/// What the outage cache has for a caller.
pub(super) enum KeptResult<R> {
    Answer(R, CacheStatus),
    /// The response is private, or for other callers.
    Bypass,
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Asks the outage cache if the store could not be asked, or has no usable entry. Follows redirects that were kept,
    /// and moves to their cache key.
    pub(super) fn consult_outage_cache(&mut self, found: &mut Found) -> Option<KeptResult<R>> {
        if self.resource.config.outage_cache().is_none_or(OutageCache::is_empty)
            || self.is_in_own_fetch()
            || self.is_usable(found)
        {
            return None;
        }
        let redirects = self.redirects.len();
        let kept = self.find_kept(found);
        if self.redirects.len() > redirects && found.is_ok() {
            *found = Ok(None); // it was the entry of another cache key
        }
        kept
    }

    /// Reports whether the store has an entry that decides how this caller is answered.
    fn is_usable(&self, found: &Found) -> bool {
        let Ok(Some(entry)) = found else { return false };
        let now = Timestamp::now();
        is_uncacheable_marker(entry, now)
            || matches!(self.policy.evaluate(entry, now), Reuse::Serve | Reuse::Bypass | Reuse::Redirect)
    }

    fn find_kept(&mut self, found: &Found) -> Option<KeptResult<R>> {
        loop {
            let now = Timestamp::now();
            let entry = match found {
                Err(_) => self.resource.kept_entry(NotStored::Unavailable, None, now)?,
                Ok(stored) => self.resource.kept_entry(NotStored::Refused, stored.as_ref(), now)?,
            };
            if is_uncacheable_marker(&entry, now) {
                // A do-not-store marker would only lead to the local flight that begins without it, but past the limit
                // on fallback fetches.
                let applies = entry.meta().kind == Kind::HitForPass && self.policy.is_covered_by(entry.meta().audience);
                return applies.then_some(KeptResult::Bypass);
            }
            match self.policy.evaluate(&entry, now) {
                Reuse::Serve | Reuse::ServeAndRevalidate => {
                    let answer = self.policy.decode(&entry, now)?;
                    telemetry::outage_cache_hit(&self.resource.engine.stats);
                    return Some(KeptResult::Answer(answer, of_stored(&entry, now)));
                }
                Reuse::Bypass => return Some(KeptResult::Bypass),
                Reuse::Redirect => {
                    let redirect = self.policy.redirect(&entry)?;
                    if !self.follow(redirect) {
                        return None;
                    }
                }
                Reuse::Revalidate | Reuse::Miss => return None,
            }
        }
    }
}

impl Execution {
    /// Returns the result of an earlier flight that was kept after the caller had asked the outage cache. Without this
    /// check, a flight that begins in the moment in which the earlier one ends would fetch again.
    pub(in crate::engine) fn kept_result<R>(
        &self,
        policy: &impl ReusePolicy<R>,
        reason: NotStored,
    ) -> Option<Progress> {
        let now = Timestamp::now();
        let entry = self.resource.kept_entry(reason, self.seen.as_ref(), now)?;
        let is_servable = !is_uncacheable_marker(&entry, now)
            && matches!(policy.evaluate(&entry, now), Reuse::Serve | Reuse::ServeAndRevalidate)
            && policy.decode(&entry, now).is_some();
        is_servable.then_some(Progress::EntryFound(entry))
    }
}

impl Resource {
    /// Returns the kept entry of the cache key, if it counts for this reason: see [`OutageCache::get`].
    fn kept_entry(&self, reason: NotStored, stored: Option<&Entry>, now: Timestamp) -> Option<Entry> {
        let invalidations = self.engine.flights.invalidations.of(&self.key);
        self.config.outage_cache()?.get(&self.key, invalidations, (reason, stored), now)
    }
}
