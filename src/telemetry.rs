//! What happened, as counters and, with the feature `tracing`, as events. The only place that names them.
//!
//! Keys appear as their hash: they come from URLs and may hold what must not be logged.

use crate::{
    engine::CacheVerdict,
    entry::Kind,
    error::Error,
    key::Address,
    store::{Filled, StoreError},
};
use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Emits an event, if somebody may listen.
macro_rules! event {
    ($level:ident, $at:expr, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "stampede_guard", tracing::Level::$level, key = ?Lazily($at), $($fields)*);
        #[cfg(not(feature = "tracing"))]
        let _ = $at;
    };
}

#[derive(Default)]
pub(crate) struct Stats {
    hits: AtomicU64,
    near_hits: AtomicU64,
    stale: AtomicU64,
    filled: AtomicU64,
    coalesced: AtomicU64,
    bypassed: AtomicU64,
    failed_open: AtomicU64,
    refused: AtomicU64,
    fenced: AtomicU64,
    leases_lost: AtomicU64,
    waits_given_up: AtomicU64,
    store_errors: AtomicU64,
    breaker_opened: AtomicU64,
    shed: AtomicU64,
    cycles: AtomicU64,
}

/// What a guard, with all its clones, has done since it was made. The answers given are the sum of the first eight, without
/// `near_hits`, which are among the hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Answers that were [`CacheVerdict::Hit`].
    pub hits: u64,
    /// Those among them that were copies of the [near cache](crate::NearCache).
    pub near_hits: u64,
    /// Answers that were [`CacheVerdict::Stale`].
    pub stale: u64,
    /// Answers that were [`CacheVerdict::Filled`].
    pub filled: u64,
    /// Answers that were [`CacheVerdict::Coalesced`]: the stampede that did not happen.
    pub coalesced: u64,
    /// Answers that were [`CacheVerdict::Bypassed`].
    pub bypassed: u64,
    /// Answers that were [`CacheVerdict::FailedOpen`].
    pub failed_open: u64,
    /// Answers that were [`CacheVerdict::Refused`].
    pub refused: u64,
    /// Fills that came too late and were refused by the store.
    pub fenced: u64,
    /// Leases that ended while their fetch was running.
    pub leases_lost: u64,
    /// Waits that outlasted their budget.
    pub waits_given_up: u64,
    /// Operations of the store that failed or took too long.
    pub store_errors: u64,
    /// How often the circuit breaker opened, because the store did not answer.
    pub breaker_opened: u64,
    /// Requests refused with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    pub shed: u64,
    /// Computations that would have waited for themselves, by way of others, and were answered on their own instead.
    pub cycles: u64,
}

impl Stats {
    pub(crate) fn report(&self) -> Report {
        Report {
            hits: self.hits.load(Relaxed),
            near_hits: self.near_hits.load(Relaxed),
            stale: self.stale.load(Relaxed),
            filled: self.filled.load(Relaxed),
            coalesced: self.coalesced.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            failed_open: self.failed_open.load(Relaxed),
            refused: self.refused.load(Relaxed),
            fenced: self.fenced.load(Relaxed),
            leases_lost: self.leases_lost.load(Relaxed),
            waits_given_up: self.waits_given_up.load(Relaxed),
            store_errors: self.store_errors.load(Relaxed),
            breaker_opened: self.breaker_opened.load(Relaxed),
            shed: self.shed.load(Relaxed),
            cycles: self.cycles.load(Relaxed),
        }
    }
}

/// The time that it took is asked for if somebody may listen: reading a clock is a good part of a hit.
pub(crate) fn answered(stats: &Stats, at: &Address, verdict: CacheVerdict, took: impl Fn() -> Duration) {
    let counter = match verdict {
        CacheVerdict::Hit => &stats.hits,
        CacheVerdict::Stale => &stats.stale,
        CacheVerdict::Filled => &stats.filled,
        CacheVerdict::Coalesced => &stats.coalesced,
        CacheVerdict::Bypassed => &stats.bypassed,
        CacheVerdict::FailedOpen => &stats.failed_open,
        CacheVerdict::Refused => &stats.refused,
    };
    counter.fetch_add(1, Relaxed);
    event!(DEBUG, at, ?verdict, took = ?took(), "answered");
    let _ = took;
}

pub(crate) fn near_hit(stats: &Stats) {
    stats.near_hits.fetch_add(1, Relaxed);
}

pub(crate) fn filled(stats: &Stats, at: &Address, kind: Kind, filled: Filled) {
    match filled {
        Filled::Stored => {
            event!(DEBUG, at, ?kind, "stored");
        }
        Filled::Fenced => {
            stats.fenced.fetch_add(1, Relaxed);
            event!(INFO, at, ?kind, "a late fill was refused");
        }
    }
    let _ = kind;
}

pub(crate) fn lease_lost(stats: &Stats, at: &Address) {
    stats.leases_lost.fetch_add(1, Relaxed);
    event!(INFO, at, "the lease ended while its fetch was running");
}

pub(crate) fn waited_enough(stats: &Stats, at: &Address) {
    stats.waits_given_up.fetch_add(1, Relaxed);
    event!(WARN, at, "another computation did not end within the wait budget");
}

pub(crate) fn store_failed(stats: &Stats, at: &Address, operation: &'static str, error: &StoreError) {
    stats.store_errors.fetch_add(1, Relaxed);
    event!(WARN, at, operation, %error, "the store did not answer as asked");
    let _ = (operation, error);
}

/// Somebody has to set it right; until then the origin is asked.
#[cfg(feature = "redis")]
pub(crate) fn misconfigured(connection: &'static str, error: &dyn std::fmt::Display, way_out: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "stampede_guard", connection, %error, way_out, "the server will not serve this client");
    let _ = (connection, error, way_out);
}

pub(crate) fn breaker_opened(stats: &Stats, at: &Address) {
    stats.breaker_opened.fetch_add(1, Relaxed);
    event!(WARN, at, "the store does not answer; this process goes on without it, and tries it again behind");
}

pub(crate) fn sent_again(at: &Address, invalidations: usize) {
    event!(INFO, at, invalidations, "the store may have forgotten recent invalidations; they are sent again");
    let _ = invalidations;
}

pub(crate) fn shed(stats: &Stats, at: &Address, error: &Error) {
    stats.shed.fetch_add(1, Relaxed);
    event!(WARN, at, %error, "refused");
    let _ = error;
}

pub(crate) fn cycle(stats: &Stats, at: &Address) {
    stats.cycles.fetch_add(1, Relaxed);
    event!(WARN, at, "a computation would have waited for itself, by way of others");
}

pub(crate) fn codec_failed(at: &Address, kind: &'static str, what: &str) {
    event!(ERROR, at, r#type = kind, what, "the value cannot be cached");
    let _ = (kind, what);
}

/// The flight as part of the span in which it was asked for: a spawned task inherits none.
pub(crate) fn in_current_span<F: Future>(flight: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "tracing")]
    let flight = tracing::Instrument::in_current_span(flight);
    flight
}

/// Hashed only if somebody listens.
#[cfg(feature = "tracing")]
struct Lazily<'a>(&'a Address);

#[cfg(feature = "tracing")]
impl std::fmt::Debug for Lazily<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0.hash(), f)
    }
}
