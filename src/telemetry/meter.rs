//! What one clone of the guard reports to.

use super::{
    counters::{Counters, NamedCounters},
    metrics::Metrics,
};
use std::{fmt, sync::Arc};

/// Counts and reports what happens to the requests of one clone of the guard, under its name.
#[derive(Clone)]
pub(crate) struct Meter {
    name: Arc<str>,
    pub(super) counters: Arc<Counters>,
    pub(super) metrics: Metrics,
    /// Whether events and spans show keys, instead of their hashes only.
    pub(crate) log_keys: bool,
}

impl Meter {
    /// Creates the meter of a new guard.
    pub(crate) fn new(namespace: &Arc<str>) -> Self {
        let name: Arc<str> = DEFAULT_NAME.into();
        let metrics = Metrics::new(namespace.clone(), name.clone());
        Self { name, counters: Arc::default(), metrics, log_keys: false }
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
        self.metrics = Metrics::new(namespace.clone(), self.name.clone());
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("name", &self.name).field("log_keys", &self.log_keys).finish_non_exhaustive()
    }
}

const DEFAULT_NAME: &str = "default";
