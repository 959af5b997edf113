//! Counters, gauges and histograms through the `metrics` facade.

use super::table::{FetchFailure, FrontEnd, StoreOperation, table};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{cache_status::CacheStatus, clock::Timestamp, sync::mutex::Mutex};
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// Bounds for the buckets of all histograms of this crate, in seconds: from 0.5 ms, a hit over Redis, to 60 s, the
/// default [`fetch_timeout`](crate::StampedeGuard::fetch_timeout).
///
/// Without buckets an exporter computes quantiles in each process, and no query can combine them.
///
/// ```
/// use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
///
/// let ours = Matcher::Prefix("stampede_guard_".to_owned());
/// let exporter = PrometheusBuilder::new().set_buckets_for_metric(ours, &stampede_guard::HISTOGRAM_BUCKETS)?;
/// # let _ = exporter;
/// # Ok::<(), metrics_exporter_prometheus::BuildError>(())
/// ```
pub const HISTOGRAM_BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

macro_rules! metrics {
    (
        events { $($events:tt)+ }
        $($(#[$of_group:meta])? $group:ident [$($shared:literal),*] {
            $($(#[$if:meta])? $field:ident: $type:ident $name:literal $unit:ident [$($label:literal: $values:expr),*] $help:literal;)+
        })+
    ) => {
        $(
            /// The metrics of one combination of the labels that they share.
            $(#[$of_group])?
            pub(crate) struct $group {
                $($(#[$if])? pub(super) $field: Box<[$type]>,)+
            }

            $(#[$of_group])?
            impl Group for $group {
                const LABELS: &[&str] = &[$($shared),*];

                fn register(recorder: &dyn Recorder, labels: &[Label]) -> Self {
                    Self {
                        $($(#[$if])?
                        $field: family(recorder, labels, ($name, Unit::$unit, $help), &[$(($label, $values)),*]),)+
                    }
                }
            }
        )+

        /// For each group the labels that its metrics share, and name, type, other labels and meaning of each metric.
        #[cfg(test)]
        const METRICS: &[(&[&str], &[(&str, &str, &[&str], &str)])] = &[
            $((&[$($shared),*], &[$($(#[$if])? ($name, stringify!($type), &[$($label),*], $help),)+]),)+
        ];
    };
}

table!(metrics);

/// A group of metrics that share labels.
pub(crate) trait Group: Sized {
    /// The names of the labels that all metrics of the group have.
    const LABELS: &[&str];

    /// Describes and registers all metrics of the group.
    fn register(recorder: &dyn Recorder, labels: &[Label]) -> Self;
}

/// A group of metrics with the values of its labels, registered as soon as there is a recorder.
pub(crate) struct Registered<G> {
    labels: Vec<Label>,
    group: OnceLock<G>,
}

impl<G: Group> Registered<G> {
    pub(crate) fn new(values: &[&Arc<str>]) -> Self {
        let labels = G::LABELS.iter().zip(values).map(|(label, value)| Label::new(*label, Arc::clone(value)));
        Self { labels: labels.collect(), group: OnceLock::new() }
    }

    /// Returns the metrics. `None` without a recorder.
    pub(super) fn get(&self) -> Option<&G> {
        self.group.get().or_else(|| self.register())
    }

    /// Registers the metrics, each with zero: a rate compares two values of a counter, and misses the first event of a
    /// counter that begins with it.
    ///
    /// A program without a recorder has the one of `metrics` that does nothing, and may install another recorder at
    /// any time. Handles of the former would do nothing for ever. It is known by its size: its type has no fields.
    #[cold]
    fn register(&self) -> Option<&G> {
        metrics::with_recorder(|recorder| {
            (size_of_val(recorder) > 0).then(|| {
                Process::register(recorder, &[]);
                self.group.get_or_init(|| G::register(recorder, &self.labels))
            })
        })
    }
}

impl<G> fmt::Debug for Registered<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registered")
    }
}

/// The metrics of the clones with one namespace and one name.
pub(super) type NamedMetrics = Registered<Named>;

/// The metrics of the locks with one namespace and one recipe.
#[cfg(feature = "lock")]
pub(crate) type LockMeter = Registered<Locks>;

/// Work in progress. On drop its gauge falls and its time is recorded, also if its future is dropped.
pub(crate) struct Timed {
    _part: Part,
    seconds: Histogram,
    began: Timestamp,
}

impl Timed {
    pub(super) fn new(measured: Option<(&Gauge, &Histogram)>) -> Self {
        let (gauge, seconds) = measured.map(|(gauge, seconds)| (gauge.clone(), seconds.clone())).unzip();
        let seconds = seconds.unwrap_or(Histogram::noop());
        Self { _part: Part::of(gauge, 1), seconds, began: Timestamp::now() }
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
    fn of(gauge: Option<Gauge>, part: u64) -> Self {
        let gauge = gauge.unwrap_or(Gauge::noop());
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
    Part::of(Registered::<Process>::new(&[]).get().map(|process| process.breaker_open[0].clone()), 1)
}

/// A pending invalidation, until it is dropped.
pub(crate) type PendingInvalidation = Part;

/// Counts a pending invalidation.
pub(crate) fn pending_invalidation() -> PendingInvalidation {
    Part::of(Registered::<Process>::new(&[]).get().map(|process| process.pending_invalidations[0].clone()), 1)
}

/// The part of one near cache in the gauge of all near caches.
pub(crate) struct NearCacheBytes {
    process: Registered<Process>,
    part: Mutex<Part>,
}

impl NearCacheBytes {
    /// Sets the part to what the function returns. The function is called under the lock, so that of two threads the
    /// later one has the later value.
    pub(crate) fn set(&self, bytes: impl Fn() -> u64) {
        let mut part = self.part.lock();
        *part = Part::of(self.process.get().map(|process| process.near_cache_bytes[0].clone()), bytes());
    }
}

impl Default for NearCacheBytes {
    fn default() -> Self {
        Self { process: Registered::new(&[]), part: Mutex::new(Part(Gauge::noop(), 0)) }
    }
}

/// A counter, gauge or histogram of the facade.
trait Instrument: Sized {
    /// Describes a metric, and registers it for this key. A metric is described for each key, because the recorder of
    /// OpenTelemetry forgets a description with the first key, and a metric with and without one is two metrics there.
    fn register(recorder: &dyn Recorder, described: Described, key: &Key) -> Self;
}

/// Name, unit and meaning of a metric.
type Described = (&'static str, Unit, &'static str);

macro_rules! instruments {
    ($($type:ident, $register:ident, $describe:ident;)+) => {
        $(impl Instrument for $type {
            fn register(recorder: &dyn Recorder, (name, unit, help): Described, key: &Key) -> Self {
                recorder.$describe(name.into(), Some(unit), help.into());
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

/// Registers a metric for each combination of the values of its own labels. The values of the last label vary first.
fn family<H: Instrument>(
    recorder: &dyn Recorder,
    shared: &[Label],
    described: Described,
    own: &[(&'static str, &'static [&'static str])],
) -> Box<[H]> {
    let combinations = own.iter().fold(vec![shared.to_vec()], |combinations, (label, values)| {
        let with_each = |labels: Vec<Label>| {
            values.iter().map(move |value| [&labels[..], &[Label::from_static_parts(label, value)]].concat())
        };
        combinations.into_iter().flat_map(with_each).collect()
    });
    let register = |labels| H::register(recorder, described, &Key::from_parts(described.0, labels));
    combinations.into_iter().map(register).collect()
}

const METADATA: Metadata<'_> = Metadata::new("stampede_guard", Level::INFO, Some(module_path!()));

#[cfg(test)]
mod tests {
    use super::*;

    fn is_of_lock(name: &str) -> bool {
        name.starts_with("stampede_guard_lock")
    }

    /// Seen to fail when a row was missing in the document, and when it had one more.
    #[test]
    fn documents_have_the_tables_of_metrics() {
        for (file, is_meant) in [("observing", (|name| !is_of_lock(name)) as fn(&str) -> bool), ("locks", is_of_lock)] {
            let document = std::fs::read_to_string(format!("{}/src/guide/{file}.md", env!("CARGO_MANIFEST_DIR")));
            let document = document.expect("the document is in the repository");
            let written: Vec<_> = document.lines().filter(|line| line.starts_with("| `stampede_guard_")).collect();
            let row = |shared: &[&str], (name, kind, own, help): &(&str, &str, &[&str], &str)| {
                let labels: Vec<_> = shared.iter().chain(*own).map(|label| format!("`{label}`")).collect();
                let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
                format!("| `{name}` | {kind} | {labels} | {help} |")
            };
            let rows = METRICS.iter().flat_map(|(shared, rows)| rows.iter().map(|of| (of.0, row(shared, of))));
            let rows: Vec<_> = rows.filter(|(name, _)| is_meant(name)).map(|(_, row)| row).collect();
            assert_eq!(written, rows, "src/guide/{file}.md should have:\n{}", rows.join("\n"));
        }
    }
}
