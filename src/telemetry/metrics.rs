//! Counters, gauges and histograms through the `metrics` facade.

use super::table::{FetchFailure, FrontEnd, StoreOperation, table};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{cache_status::CacheStatus, clock::Timestamp, sync::mutex::Mutex};
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use std::{
    iter,
    sync::{Arc, OnceLock},
};

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
            $($(#[$if])? pub(super) $field: Family<$type>,)+
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

        $(fn $of_process() -> Family<Gauge> {
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
        // Only a fetch can lose its lease, so this is the first fetch.
        if !self.leases_lost.is_resolved() {
            self.register_counters();
        }
        Timed::new(&self.in_flight, &self.fetch_seconds)
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
    fn new(gauge: &Family<Gauge>, seconds: &Family<Histogram>) -> Self {
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

/// A pending invalidation, until it is dropped.
pub(crate) type PendingInvalidation = Part;

/// Counts a pending invalidation.
pub(crate) fn pending_invalidation() -> PendingInvalidation {
    Part::of(pending_invalidations().handle(), 1)
}

/// The part of one near cache in the gauge of all near caches.
pub(crate) struct NearCacheBytes {
    gauge: Family<Gauge>,
    part: Mutex<Part>,
}

impl NearCacheBytes {
    /// Sets the part to what the function returns. The function is called under the lock, so that of two threads the
    /// later one has the later value.
    pub(crate) fn set(&self, bytes: impl Fn() -> u64) {
        let mut part = self.part.lock();
        *part = Part::of(self.gauge.handle(), bytes());
    }
}

impl Default for NearCacheBytes {
    fn default() -> Self {
        Self { gauge: near_cache_bytes(), part: Mutex::new(Part(Gauge::noop(), 0)) }
    }
}

/// A counter, gauge or histogram of the facade.
pub(super) trait Instrument: Clone {
    /// Registers the instrument, and describes it by unit and meaning if they are given.
    fn register(recorder: &dyn Recorder, key: &Key, described: Option<(Unit, &'static str)>) -> Self;
}

macro_rules! instruments {
    ($($type:ident, $register:ident, $describe:ident;)+) => {
        $(impl Instrument for $type {
            fn register(recorder: &dyn Recorder, key: &Key, described: Option<(Unit, &'static str)>) -> Self {
                if let Some((unit, help)) = described {
                    recorder.$describe(key.name_shared(), Some(unit), help.into());
                }
                recorder.$register(key, &METADATA)
            }
        })+
    };
}

instruments! {
    Counter, register_counter, describe_counter;
    Gauge, register_gauge, describe_gauge;
    Histogram, register_histogram, describe_histogram;
}

/// One metric, with a handle for each combination of its labels. Each is resolved when it is first used.
pub(super) struct Family<H> {
    /// The labels that all members share.
    names: Vec<Label>,
    name: &'static str,
    unit: Unit,
    labels: Labels,
    help: &'static str,
    members: Box<[Member<H>]>,
}

/// The other labels of a metric, with all their values.
type Labels = &'static [(&'static str, &'static [&'static str])];

struct Member<H> {
    handle: OnceLock<H>,
    key: OnceLock<Key>,
}

impl<H: Instrument> Family<H> {
    fn new(names: &[Label], name: &'static str, unit: Unit, labels: Labels, help: &'static str) -> Self {
        let combinations = labels.iter().map(|(_, values)| values.len()).product();
        let member = || Member { handle: OnceLock::new(), key: OnceLock::new() };
        let members = iter::repeat_with(member).take(combinations).collect();
        Self { names: names.to_vec(), name, unit, labels, help, members }
    }

    /// Applies the function to the handle of the member at `index`.
    pub(super) fn with(&self, index: usize, apply: impl FnOnce(&H)) {
        match self.members[index].handle.get() {
            Some(handle) => apply(handle),
            None => apply(&self.resolve(index)),
        }
    }

    /// Returns the handle of the first member.
    fn handle(&self) -> H {
        self.members[0].handle.get().cloned().unwrap_or_else(|| self.resolve(0))
    }

    /// Reports whether the handle of the first member is kept.
    fn is_resolved(&self) -> bool {
        self.members[0].handle.get().is_some()
    }

    /// Resolves all handles, so that a recorder shows each member from now on.
    fn resolve_all(&self) {
        for index in 0..self.members.len() {
            self.resolve(index);
        }
    }

    /// Resolves the handle, and keeps it if there is a recorder.
    ///
    /// A program without a recorder has the one of `metrics` that does nothing. A handle of that recorder would do
    /// nothing for ever, so it is not kept, and a recorder may be installed at any time. That recorder has no size. If
    /// another recorder has no size either, its handles are resolved for each use.
    #[cold]
    fn resolve(&self, index: usize) -> H {
        let Member { handle, key } = &self.members[index];
        let key = key.get_or_init(|| self.key(index));
        metrics::with_recorder(|recorder| {
            let described = (size_of_val(recorder) > 0).then_some((self.unit, self.help));
            let resolved = H::register(recorder, key, described);
            if described.is_some() {
                let _ = handle.set(resolved.clone()); // another thread may have been faster, with the same handle
            }
            resolved
        })
    }

    /// Returns name and labels of the member at `index`. The values of the last label vary first.
    fn key(&self, index: usize) -> Key {
        let mut labels = self.names.clone();
        let mut rest = index;
        for (label, values) in self.labels.iter().rev() {
            labels.push(Label::from_static_parts(label, values[rest % values.len()]));
            rest /= values.len();
        }
        Key::from_parts(self.name, labels)
    }
}

const METADATA: Metadata<'_> = Metadata::new("stampede_guard", Level::INFO, Some(module_path!()));

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when a row was missing in the document, and when it had one more.
    #[test]
    fn operations_document_has_the_table_of_metrics() {
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide/observing.md"));
        let document = document.expect("the document is in the repository");
        let written: Vec<_> = document.lines().filter(|line| line.starts_with("| `stampede_guard_")).collect();
        let row = |(name, kind, labels, help): &(_, _, &[_], _)| {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
            format!("| `{name}` | {kind} | {labels} | {help} |")
        };
        let rows: Vec<_> = METRICS.iter().map(row).collect();
        assert_eq!(written, rows, "src/guide/observing.md should have:\n{}", rows.join("\n"));
    }
}
