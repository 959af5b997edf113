//! Counters, gauges and histograms through the `metrics` facade.

use super::{
    family::{Family, combinations},
    labels::{FetchFailure, FrontEnd, StoreOperation},
    table::table,
};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{cache_status::CacheStatus, clock::Timestamp, sync::mutex::Mutex};
use metrics::{Counter, Gauge, Histogram, Label, Unit};
use std::sync::Arc;

macro_rules! metrics {
    (
        events { $($events:tt)+ }
        metrics {
            $($(#[$if:meta])? $field:ident: $type:ident $name:literal $unit:ident [$($label:literal: $values:expr),*] $help:literal;)+
        }
        process { $($of_process:ident: Gauge $name_of_process:literal $unit_of_process:ident $help_of_process:literal;)+ }
    ) => {
        /// The metrics of the clones with one namespace and one name.
        pub(super) struct NamedMetrics {
            $($(#[$if])? pub(super) $field: Family<$type, { combinations(&[$(($label, $values)),*]) }>,)+
        }

        impl NamedMetrics {
            pub(super) fn new(namespace: Arc<str>, name: Arc<str>) -> Self {
                let names = [Label::new("namespace", namespace), Label::new("name", name)];
                Self {
                    $($(#[$if])?
                    $field: Family::new(&names, $name, Unit::$unit, &[$(($label, $values)),*], $help),)+
                }
            }
        }

        $(pub(super) fn $of_process() -> Family<Gauge, 1> {
            Family::new(&[], $name_of_process, Unit::$unit_of_process, &[], $help_of_process)
        })+

        /// Name, type, labels and meaning of each metric.
        #[cfg(test)]
        const METRICS: &[(&str, &str, &[&str], &str)] = &[
            $($(#[$if])? ($name, stringify!($type), &["namespace", "name", $($label),*], $help),)+
            $(($name_of_process, "Gauge", &[], $help_of_process),)+
        ];
    };
}

table!(metrics);

impl NamedMetrics {
    /// Measures a call of the origin, until the returned value is dropped.
    pub(super) fn fetching(&self) -> Timed {
        let was_resolved = self.fetch_seconds.is_resolved();
        let timed = Timed::new(&self.in_flight, &self.fetch_seconds);
        if !was_resolved && self.fetch_seconds.is_resolved() {
            self.register_counters();
        }
        timed
    }

    /// Registers the counters of single events before the first one. A rate compares two values of a counter, so that it
    /// misses the first event of a counter that begins with it.
    #[cold]
    fn register_counters(&self) {
        self.saved_calls.resolve_all();
        self.leases_lost.resolve_all();
        self.failures.resolve_all();
        self.store_errors.resolve_all();
    }

    /// Measures the wait for the fetch of another request, until the returned value is dropped.
    pub(super) fn waiting(&self) -> Timed {
        Timed::new(&self.waiters, &self.wait_seconds)
    }
}

/// Work in progress. On drop its gauge falls and its time is recorded, also if its future is dropped.
pub(crate) struct Timed {
    _part: Part,
    seconds: Histogram,
    began: Timestamp,
}

impl Timed {
    fn new(gauge: &Family<Gauge, 1>, seconds: &Family<Histogram, 1>) -> Self {
        Self { _part: Part::of(gauge.handle(), 1), seconds: seconds.handle(), began: Timestamp::now() }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.seconds.record(Timestamp::now().since(self.began).as_secs_f64());
    }
}

/// A part of a gauge, until it is dropped. The gauge falls through the handle that raised it, so that a recorder that is
/// installed meanwhile sees neither.
pub(crate) struct Part(Gauge, u64);

impl Part {
    fn of(gauge: Gauge, part: u64) -> Self {
        gauge.increment(part as f64);
        Self(gauge, part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.decrement(self.1 as f64);
    }
}

/// An open circuit breaker, until it is dropped.
pub(crate) type OpenBreaker = Part;

/// Counts an open circuit breaker.
pub(crate) fn open_breaker() -> OpenBreaker {
    Part::of(breaker_open().handle(), 1)
}

/// The part of one near cache in the gauge of all near caches.
pub(crate) struct NearCacheBytes {
    gauge: Family<Gauge, 1>,
    part: Mutex<Part>,
}

impl NearCacheBytes {
    /// Sets the part to what the function returns. The function is called under the lock, so that of two threads the
    /// later one has the later value.
    pub(crate) fn set(&self, bytes: impl Fn() -> u64) {
        let gauge = self.gauge.handle();
        let (after, before) = {
            let mut part = self.part.lock();
            let after = bytes();
            (after, std::mem::replace(&mut *part, Part(gauge.clone(), after)))
        };
        gauge.increment(after as f64);
        drop(before);
    }
}

impl Default for NearCacheBytes {
    fn default() -> Self {
        Self { gauge: near_cache_bytes(), part: Mutex::new(Part(Gauge::noop(), 0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when a row was missing in the document, and when it had one more.
    #[test]
    fn operations_document_has_the_table_of_metrics() {
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
        let document = document.expect("the document is in the repository");
        let written: Vec<_> = document.lines().filter(|line| line.starts_with("| `stampede_guard_")).collect();
        let row = |(name, kind, labels, help): &(_, _, &[_], _)| {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
            format!("| `{name}` | {kind} | {labels} | {help} |")
        };
        let rows: Vec<_> = METRICS.iter().map(row).collect();
        assert_eq!(written, rows, "docs/operations.md should have:\n{}", rows.join("\n"));
    }
}
