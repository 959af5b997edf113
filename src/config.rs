//! The settings of one clone of a guard.

#[cfg(feature = "http")]
pub(crate) mod http;

use crate::{
    near_cache::NearCache,
    outage_cache::{OutageCache, OutageCacheConfig},
    policy::Policy,
    sync::newest_first::NewestFirst,
    telemetry::Meter,
};
use std::{error::Error, fmt, sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) namespace: Arc<str>,
    pub(crate) schema_version: u32,
    #[cfg(feature = "_typed")]
    pub(crate) codec: crate::codec::Codec,
    #[cfg(feature = "_typed")]
    pub(crate) fingerprint: bool,
    pub(crate) policy: Policy,
    /// Whether each request calls the origin for itself.
    pub(crate) bypass: bool,
    pub(crate) lease_ttl: Duration,
    /// `None`: the fetch timeout and one lease.
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) fetch_timeout: Duration,
    pub(crate) max_payload: usize,
    pub(crate) store_timeout: Duration,
    /// Time-to-live of the failure marker after the first failure; zero for no marker.
    pub(crate) failure_ttl: Duration,
    pub(crate) classifier: Classifier,
    pub(crate) uncacheable_ttl: Duration,
    pub(crate) on_store_failure: StoreFailure,
    pub(crate) max_waiters: usize,
    /// Permits for fetches while the store is unavailable.
    pub(crate) max_fallback_fetches: NewestFirst,
    /// Permits for fetches that no request waits for any more.
    pub(crate) max_detached: NewestFirst,
    pub(crate) near: Option<Arc<NearCache>>,
    pub(crate) outage: Arc<OutageCache>,
    pub(crate) meter: Meter,
    #[cfg(feature = "http")]
    pub(crate) http: http::HttpOptions,
}

/// The reaction to an unavailable store. See
/// [`StampedeGuard::on_store_failure`](crate::StampedeGuard::on_store_failure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StoreFailure {
    /// Each process fetches on its own: one fetch per key at a time, and as many at once as the
    /// [`max_fallback_fetches`](crate::StampedeGuard::max_fallback_fetches) permits.
    #[default]
    FailOpen,
    /// Requests that need the store are rejected, with [`ErrorKind::Store`](crate::ErrorKind::Store) or a response 503.
    /// For origins that would not survive requests from every process.
    FailClosed,
}

/// The class of an error of a fetch: an answer, or a failure of the origin. See [`StampedeGuard::classify`](crate::StampedeGuard::classify).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// The origin works, and the error is an answer of the origin, for example "no such row". Requests of this process that wait get the
    /// error. There is no failure marker, and the count of earlier failures is forgotten: the next request calls the
    /// origin. In each other process one waiter calls it, one process after the other.
    ///
    /// No stale value replaces the error, and a stored value stays: requests that may have it stale get it, while it is
    /// refreshed or while the origin is down. Each such request begins a refresh, if none is running.
    /// [`invalidate`](crate::StampedeGuard::invalidate) drops the value.
    Answer,
    /// The origin does not work. All waiters get the error. A [failure marker](crate::StampedeGuard::failure_ttl) blocks
    /// the key, and the stale value is served if the policy permits that on errors.
    #[default]
    OriginDown,
}

/// A function that classifies the errors of fetches.
#[derive(Clone)]
pub(crate) struct Classifier(pub(crate) Arc<Classify>);

type Classify = dyn Fn(&(dyn Error + 'static)) -> FailureClass + Send + Sync;

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classifier")
    }
}

impl Config {
    pub(crate) fn wait_timeout(&self) -> Duration {
        self.wait_timeout.unwrap_or(self.fetch_timeout.saturating_add(self.lease_ttl))
    }

    /// Returns the outage cache if it is used: without the store, a guard that fails closed serves nothing.
    pub(crate) fn outage_cache(&self) -> Option<&OutageCache> {
        (self.on_store_failure == StoreFailure::FailOpen).then_some(&*self.outage)
    }
}

impl Default for Config {
    fn default() -> Self {
        let namespace: Arc<str> = "sg".into();
        Self {
            meter: Meter::new(&namespace),
            namespace,
            schema_version: 0,
            #[cfg(feature = "_typed")]
            codec: crate::codec::Codec::default(),
            #[cfg(feature = "_typed")]
            fingerprint: true,
            policy: Policy::default(),
            bypass: false,
            lease_ttl: Duration::from_secs(3),
            wait_timeout: None,
            fetch_timeout: Duration::from_secs(60),
            max_payload: 1 << 20,
            store_timeout: Duration::from_millis(250),
            failure_ttl: Duration::from_secs(1),
            classifier: Classifier(Arc::new(|_| FailureClass::OriginDown)),
            uncacheable_ttl: Duration::from_secs(60),
            on_store_failure: StoreFailure::default(),
            max_waiters: 10_000,
            max_fallback_fetches: NewestFirst::new(64),
            max_detached: NewestFirst::new(64),
            near: None,
            outage: Arc::new(OutageCache::new(OutageCacheConfig::default())),
            #[cfg(feature = "http")]
            http: http::HttpOptions::default(),
        }
    }
}
