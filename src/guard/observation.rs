//! What a guard shows of its work: its name in statistics, metrics, spans and events.

use super::StampedeGuard;
use crate::telemetry::Stats;
use std::{collections::BTreeMap, sync::Arc};

impl StampedeGuard {
    /// Names this clone, and clones made from it afterwards. The name is the key in
    /// [`stats_by_name`](Self::stats_by_name), and a label of metrics and spans. Default, also for an empty name:
    /// `default`.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    ///
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// let guard = StampedeGuard::in_memory();
    /// let reports = guard.clone().named("reports");
    /// let report: u32 = reports.fetch("report:7", async || Ok::<_, std::io::Error>(7)).await?;
    /// assert_eq!(guard.stats_by_name()["reports"].misses, 1);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    ///
    /// A name takes about 8 KiB, and stays until the last clone of the guard is dropped. It should come from the code,
    /// one for each kind of request, and never from a request. Set it once, when the application starts.
    #[must_use]
    pub fn named(self, name: impl AsRef<str>) -> Self {
        let engine = Arc::clone(&self.engine);
        self.set(|config| config.meter.rename(name.as_ref(), &engine.counters, &config.namespace))
    }

    /// Shows keys in the events and spans of this clone, instead of their hashes only, and the errors of codecs, which
    /// may quote values. Default: `false`.
    ///
    /// Over HTTP a key is the URL of the page with its query, where clients and handlers put what a log must not have:
    /// names, addresses, search terms, tokens of links that were sent by mail. Keys of typed values are what the
    /// application makes them. Turn it on for tests, or if no key contains personal data or secrets.
    #[must_use]
    pub fn log_keys(self, show: bool) -> Self {
        self.set(|config| config.meter.log_keys = show)
    }

    /// Returns the statistics of this guard and its clones, whatever their [names](Self::named), and the
    /// [hot keys](Self::track_hot_keys) of this clone.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.engine.counters.total(self.engine.store.corrupt_entries());
        stats.hot_keys = self.config.meter.hottest_keys();
        stats
    }

    /// Returns the statistics of this guard and its clones by [name](Self::named). `default` has the clones without a
    /// name.
    #[must_use]
    pub fn stats_by_name(&self) -> BTreeMap<String, Stats> {
        self.engine.counters.by_name(self.engine.store.corrupt_entries())
    }
}
