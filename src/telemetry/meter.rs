//! What one clone of the guard reports to.

use super::{
    counters::{Counters, NamedCounters},
    metrics::NamedMetrics,
};
use crate::hot_keys::{HotKey, HotKeys};
use std::{fmt, sync::Arc};

/// Counts and reports what happens to the requests of one clone of the guard, under its name.
#[derive(Clone)]
pub(crate) struct Meter {
    pub(super) name: Arc<str>,
    pub(super) counters: Arc<Counters>,
    pub(super) metrics: Arc<NamedMetrics>,
    /// Whether events and spans show keys, instead of their hashes only.
    pub(crate) log_keys: bool,
    pub(crate) hot_keys: Option<Arc<HotKeys>>,
}

impl Meter {
    /// Creates the meter of a new guard.
    pub(crate) fn new(namespace: &Arc<str>) -> Self {
        let name: Arc<str> = DEFAULT_NAME.into();
        let metrics = NamedMetrics::new(namespace.clone(), name.clone()).into();
        Self { name, counters: Arc::default(), metrics, log_keys: false, hot_keys: None }
    }

    /// Returns the hot keys of this clone, the busiest one first.
    pub(crate) fn hottest_keys(&self) -> Vec<HotKey> {
        self.hot_keys.as_deref().map(HotKeys::snapshot).unwrap_or_default()
    }

    /// Returns the counters of an engine whose first name is that of this meter.
    pub(crate) fn named_counters(&self) -> NamedCounters {
        NamedCounters::new(self.name.clone(), self.counters.clone())
    }

    /// Changes the name. An empty name is the default.
    pub(crate) fn rename(&mut self, name: &str, all: &NamedCounters, namespace: &Arc<str>) {
        self.name = if name.is_empty() { DEFAULT_NAME } else { name }.into();
        self.counters = all.of(&self.name);
        self.set_namespace(namespace);
    }

    pub(crate) fn set_namespace(&mut self, namespace: &Arc<str>) {
        self.metrics = NamedMetrics::new(namespace.clone(), self.name.clone()).into();
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("name", &self.name).field("log_keys", &self.log_keys).finish_non_exhaustive()
    }
}

const DEFAULT_NAME: &str = "default";
