//! A hit in this process: a lookup that borrows all it needs.
//!
//! PERF: such a hit takes a quarter of a microsecond. It clones no handle: two threads that count references to one
//! engine, one configuration and one namespace write to the same cache lines, and together serve less than one thread.

use super::{
    core::Engine,
    frontend::{Answers, MAX_REDIRECTS, Redirect, Reuse},
};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    config::Config,
    key::CacheKeyRef,
    policy::{Freshness, freshness},
    store::entry::Entry,
    telemetry::{self, FrontEnd},
};
use std::time::Duration;

impl Engine {
    /// Returns the answer of a fresh entry, if that is possible without waiting.
    pub(crate) fn peek<R>(
        &self,
        config: &Config,
        front_end: FrontEnd,
        key: CacheKeyRef<'_>,
        policy: &impl Answers<R>,
        now: Timestamp,
    ) -> Option<R> {
        let mut redirect = None;
        for _ in 0..=MAX_REDIRECTS {
            let key = redirect.as_ref().map_or(key, |redirect: &Redirect| key.to_variant(&redirect.variant));
            let entry = self.local_entry(config, key, now)?;
            match policy.evaluate(&entry, now) {
                Reuse::Redirect(next) => redirect = Some(next),
                // PERF: the second look is only for a policy that may serve a stale entry.
                Reuse::Serve(answer) if !policy.serves_stale() || freshness(&entry, now) == Freshness::Fresh => {
                    telemetry::answered(&config.meter, key, front_end, CacheStatus::Hit, false, || Duration::ZERO);
                    if config.near.is_some() {
                        telemetry::near_hit(&config.meter);
                    }
                    return Some(answer);
                }
                _ => return None,
            }
        }
        None
    }

    /// Returns the entry if this process has it.
    fn local_entry(&self, config: &Config, key: CacheKeyRef<'_>, now: Timestamp) -> Option<Entry> {
        match &config.near {
            Some(near) => near.get(key, now),
            None => self.store.peek(key),
        }
    }
}
