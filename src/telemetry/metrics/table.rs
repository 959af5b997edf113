//! The table of all metrics. docs/operations.md has the same, which a test below compares.

use super::family::{Family, Metric, combinations};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{
    cache_status::CacheStatus,
    telemetry::labels::{FetchFailure, FrontEnd, StoreOperation},
};
use metrics::{Counter, Gauge, Histogram, Label, Unit};
use std::sync::Arc;

/// Defines the metrics: for each one its field, its type, its name, its unit, its own labels, and its meaning. The
/// first group has the labels `namespace` and `name` as well, and the second group counts for the whole process.
macro_rules! metrics {
    (
        named {
            $($(#[$if:meta])? $field:ident: $type:ident $name:literal $unit:ident [$($label:literal: $values:expr),*] $help:literal;)+
        }
        process {
            $($of_process:ident: $type_of_process:ident $name_of_process:literal $unit_of_process:ident $help_of_process:literal;)+
        }
    ) => {
        /// The metrics of the clones with one namespace and one name.
        pub(super) struct NamedMetrics {
            pub(super) names: [Label; 2],
            $($(#[$if])? pub(super) $field: Family<$type, { combinations(&[$(($label, $values)),*]) }>,)+
        }

        impl NamedMetrics {
            pub(super) fn new(namespace: Arc<str>, name: Arc<str>) -> Self {
                Self {
                    names: [Label::new("namespace", namespace), Label::new("name", name)],
                    $($(#[$if])? $field: Family::new(&Metric {
                        name: $name,
                        unit: Unit::$unit,
                        is_named: true,
                        labels: &[$(($label, $values)),*],
                        help: $help,
                    }),)+
                }
            }
        }

        $(pub(super) fn $of_process() -> Family<$type_of_process, 1> {
            Family::new(&Metric {
                name: $name_of_process,
                unit: Unit::$unit_of_process,
                is_named: false,
                labels: &[],
                help: $help_of_process,
            })
        })+

        /// The rows of the table in docs/operations.md.
        #[cfg(test)]
        fn rows() -> Vec<String> {
            let named = [$($(#[$if])? ($name, stringify!($type), &[$($label),*][..], $help),)+];
            let of_process = [$(($name_of_process, stringify!($type_of_process), $help_of_process),)+];
            let named = named.iter().map(|(name, kind, labels, help)| {
                let labels: Vec<_> = ["namespace", "name"].iter().chain(*labels).map(|label| format!("`{label}`")).collect();
                format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
            });
            let of_process = of_process.iter().map(|(name, kind, help)| format!("| `{name}` | {kind} | none | {help} |"));
            named.chain(of_process).collect()
        }
    };
}

metrics! {
    named {
        requests: Counter "stampede_guard_requests_total" Count ["front_end": FrontEnd::NAMES, "status": CacheStatus::NAMES]
            "Requests with a key that were answered, by front end (`http`, `fetch`, `keyed`) and by status (`hit`, `stale`, `miss`, `coalesced`, `bypass`, `fail_open`, `rejected`).";
        saved_calls: Counter "stampede_guard_saved_calls_total" Count []
            "Requests that were answered without a call of the origin of their own: the ones with status `hit`, `stale` and `coalesced`, except a request that has fetched and got a stale answer or that of another leader, and one whose fetch refreshes the entry in the background.";
        fetch_seconds: Histogram "stampede_guard_fetch_seconds" Seconds []
            "Time of a call of the origin until its response head or its value, whatever its outcome.";
        wait_seconds: Histogram "stampede_guard_wait_seconds" Seconds []
            "Time for which a request waited for the fetch of another one, whatever the outcome. Waiting for a lookup only does not count.";
        store_seconds: Histogram "stampede_guard_store_seconds" Seconds ["operation": StoreOperation::NAMES]
            "Time of a store operation, failed ones included.";
        in_flight: Gauge "stampede_guard_in_flight" Count []
            "Calls of the origin in progress, until their response head or their value.";
        waiters: Gauge "stampede_guard_waiters" Count []
            "Requests that wait for the fetch of another one.";
        leases_lost: Counter "stampede_guard_leases_lost_total" Count []
            "Leases that were lost while their fetch was running.";
        failures: Counter "stampede_guard_failures_total" Count ["kind": FetchFailure::NAMES]
            "Failed fetches, each once however many requests waited for it: `origin` (an error), `server_error` (a response), `timed_out`, `panicked`, `codec` (the request succeeds, and its value is not stored).";
        store_errors: Counter "stampede_guard_store_errors_total" Count ["operation": StoreOperation::NAMES]
            "Store operations that failed or timed out.";
        #[cfg(feature = "http")]
        uncached: Counter "stampede_guard_uncached_total" Count ["reason": Uncached::TOKENS]
            "Responses of the HTTP layer that were neither answered from the cache nor stored, by the reason in `Cache-Status`.";
    }
    process {
        breaker_open: Gauge "stampede_guard_breaker_open" Count
            "Open circuit breakers of the process.";
        near_cache_bytes: Gauge "stampede_guard_near_cache_bytes" Bytes
            "Bytes in the near caches of the process, as of the last read from the store or invalidation of each cache.";
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
        let rows = rows();
        assert_eq!(written, rows, "docs/operations.md should have:\n{}", rows.join("\n"));
    }
}
