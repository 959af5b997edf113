//! The table of all counters, events and metrics. The guide has the same log lines (log_lines.md) and metrics
//! (observing.md), which tests compare.

/// Hands the table to a macro that defines something by it.
///
/// A row of `events` is a field of [`Stats`](crate::Stats) with its documentation, and the status of the answers that it
/// counts; or an event in braces; or a field and the event that it counts. An event is a function with its arguments,
/// the member of a metric to which it adds one, and the level, text and fields of its line. A level with a condition
/// applies if the condition holds, otherwise `DEBUG`.
///
/// After the events come groups of metrics, each with the labels that its metrics share. A row is a field, its type, its
/// name, its unit, its own labels, and its meaning.
macro_rules! table {
    ($define:ident) => {
        $define! {
            events {
                /// Answers with [`CacheStatus::Hit`](crate::CacheStatus::Hit).
                hits = Hit;
                /// Hits that were served from a copy of the [near cache](crate::NearCacheConfig).
                near_hits { near_hit(meter) };
                /// Answers from the [outage cache](crate::OutageCacheConfig), because the store was unavailable or refused writes.
                outage_cache_hits { outage_cache_hit(meter) };
                /// Answers with [`CacheStatus::Stale`](crate::CacheStatus::Stale).
                stale_hits = Stale;
                /// Answers with [`CacheStatus::Miss`](crate::CacheStatus::Miss).
                misses = Miss;
                /// Answers with [`CacheStatus::Coalesced`](crate::CacheStatus::Coalesced): calls of the origin that were saved.
                /// A fetch is shared until its value is stored, which is after its callers have their answer. So the second of
                /// two calls in a row may be one of these, and no hit. A test that expects a hit calls
                /// [`drain`](crate::StampedeGuard::drain) between them.
                coalesced = Coalesced;
                /// Answers with [`CacheStatus::Bypass`](crate::CacheStatus::Bypass).
                bypassed = Bypass;
                /// Answers with [`CacheStatus::FailOpen`](crate::CacheStatus::FailOpen): from a fetch for this process only, for example without the store.
                failed_open = FailOpen;
                /// Answers with [`CacheStatus::Rejected`](crate::CacheStatus::Rejected). They include waiters that
                /// got the error of a failed fetch. Over HTTP a request that shares a response with an error status is
                /// [`coalesced`](crate::Stats::coalesced). Overload alone is [`overloaded`](crate::Stats::overloaded).
                rejected = Rejected;
                { log_answer(meter, key, front_end: FrontEnd, status: CacheStatus, took: &dyn Fn() -> Duration) DEBUG "answered"
                    [front_end = front_end.as_str(), status = status.as_str(), took = ?took()] };
                { stored(meter, key, kind: Kind) DEBUG "stored" [?kind] };
                /// Fills that came too late and were refused by the store.
                fenced { fenced(meter, key, kind: Kind) DEBUG "a late fill was refused" [?kind] };
                /// Leases that were lost while their fetch was running.
                lease_losses { lease_lost(meter, key) + leases_lost[0], INFO "the lease was lost while its fetch was running" };
                /// Requests that reached their wait timeout, whatever answer they got then.
                wait_timeouts { wait_timed_out(meter, key) WARN[meter.counters.reported_wait_timeouts.is_due()]
                    "the wait timeout passed before the leader had finished" };
                { log_failure(meter, key, kind: FetchFailure) + failures[kind as usize], DEBUG "the fetch failed"
                    [kind = kind.as_str()] };
                { slow_fetch(meter, key, running_for: Duration) WARN[meter.counters.reported_slow_fetches.is_due()]
                    "the fetch is slow, and still runs" [name = %meter.name, ?running_for] };
                { too_large_to_store(meter: &Meter, what: &str) WARN[meter.counters.reported_sizes.is_due()]
                    "larger than `max_payload`, and not stored" [name = %meter.name, what] };
                /// Store operations that failed or timed out.
                // At level `DEBUG`, because while the store is down each request has one. The connection and the circuit
                // breaker report the cause once.
                store_errors { store_operation_failed(meter, key, operation: StoreOperation, error: &StoreError)
                    + store_errors[operation as usize], DEBUG "the store operation failed"
                    [operation = operation.as_str(), error = error.with_cause()] };
                { store_refuses(meter, key, operation: StoreOperation, error: &StoreError) WARN
                    "the store refuses operations; reported at most once a minute"
                    [operation = operation.as_str(), error = error.with_cause()] };
                { corrupt_entry(key: &CacheKey, error: crate::store::envelope::EnvelopeError) WARN
                    "the stored entry is corrupt and counts as absent"
                    [key = ?LoggedKey(key.into(), false), %error] };
                { other_layout(key: &CacheKey) INFO
                    "entries of two layouts meet, for example of two versions of a type; each layout gets a name of its own"
                    [key = ?LoggedKey(key.into(), false), layout = format_args!("{:016x}", key.layout())] };
                { #[cfg(feature = "_typed")] no_fingerprint(kind: &str) DEBUG
                    "the structure of this type is not known; raise `schema_version` when it changes" [r#type = kind] };
                { invalidations_pending(meter, key, invalidations: usize, error: &StoreError) WARN
                    "invalidations were not acknowledged; they are sent again until they are; reported at most once a minute"
                    [invalidations, error = error.with_cause()] };
                { invalidations_acknowledged(meter, key) WARN "all invalidations that had failed are acknowledged" };
                { replaying_invalidations(meter, key, invalidations: usize) INFO
                    "the store may have lost recent invalidations; they are sent again" [invalidations] };
                /// Times that a circuit breaker opened because the store was unavailable.
                breaker_opened { breaker_opened(meter, key, error: &StoreError) WARN
                    "circuit breaker opened: the store is unavailable; requests probe it in the background"
                    [server.address = meter.server.as_deref(), error = error.with_cause()] };
                { breaker_closed(meter, key, open_for: Duration) WARN "circuit breaker closed: the store answers again"
                    [server.address = meter.server.as_deref(), ?open_for] };
                /// Requests rejected with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
                // A wait timeout has a line of its own.
                overloaded { overloaded(meter, key, error: &Error) + overloaded[0],
                    WARN[!error.is_wait_timeout() && meter.counters.reported_rejections.is_due()]
                    "the request was rejected" [%error] };
                /// Fetches that would have waited for themselves through other fetches. Each request got a fetch of its own.
                deadlocks_avoided { deadlock_avoided(meter, key) WARN
                    "a fetch would have waited for itself through other fetches" };
                { nested_wait(meter, key, fetch: &CacheKey) WARN
                    "a request within a fetch has waited for half of the time of that fetch: perhaps two fetches need each other"
                    [within = ?LoggedKey(fetch.into(), meter.log_keys)] };
                /// Entries that a [`MemoryStore`](crate::MemoryStore) or the [near cache](crate::NearCacheConfig) could not keep,
                /// because they are too large for it.
                too_large { too_large(meter, key) DEBUG "the entry is too large to be kept in this process" };
                /// Fetches that were dropped before their response, because no request waited for them any more and
                /// [`max_detached`](crate::StampedeGuard::max_detached) other such fetches were running.
                fetches_dropped { fetch_dropped(meter, key) WARN[meter.counters.reported_drops.is_due()]
                    "the fetch was dropped: its clients have left, and all `max_detached` permits are in use" };
                /// Values that were not stored because they do not encode and decode again with their [`Codec`](crate::Codec). An
                /// event names each such type once.
                codec_failures { #[cfg(feature = "_typed")] uncodable_value(meter) + failures[FetchFailure::Codec as usize] };
                // The message of a codec may quote the value.
                { #[cfg(feature = "_typed")] uncodable_type(meter, key, kind: &str, codec: &str, error: &BoxError, hint: &str) ERROR
                    "values of this type are not cached: they do not survive the codec"
                    [r#type = kind, codec, error = meter.log_keys.then(|| tracing::field::display(error)), hint] };
                { #[cfg(feature = "http")] uncacheable_route(route: &str, reason: Uncached, hint: Option<&str>) WARN
                    "no response of this route was stored or shared so far; the layer only delays it"
                    [route, %reason, hint] };
                { #[cfg(feature = "http")] many_values(route: &str, field: &str) WARN
                    "a request field with many values keeps the responses of this route apart"
                    [route, field, hint = "name it in `HttpOptions::harmless_fields`, or in `HttpOptions::selecting_fields`"] };
                { #[cfg(feature = "http")] contradiction(field: &str) DEBUG
                    "a forwarded field contradicts the request, and selects its response" [field] };
                // `address` is `None` if only the client knows it.
                { unreachable(address: Option<&str>, error: &dyn Display, hint: &str) WARN
                    "cannot connect to redis; the connection is tried again"
                    [address, %error, hint] };
                // An operator has to correct the setting. Until then the origin answers.
                { misconfigured(address: Option<&str>, error: &dyn Display, hint: &str) ERROR
                    "redis refuses to serve this client" [address, %error, hint] };
                { #[cfg(feature = "lock")] lock_contended(meter: &LockMeter, name: &str) + meter.contended,
                    DEBUG "the lock is held" [lock = name] };
                { #[cfg(feature = "lock")] lock_acquired(meter: &LockMeter, name: &str, token: Token) + meter.acquired,
                    DEBUG "lock acquired" [lock = name, ?token] };
                { #[cfg(feature = "lock")] lock_lost(meter: &LockMeter, name: &str, cause: &str) + meter.lost,
                    WARN "the lock was lost before it was released" [lock = name, cause] };
                { #[cfg(feature = "lock")] lock_released(name: &str, held_for: Duration)
                    DEBUG "lock released" [lock = name, ?held_for] };
                { #[cfg(feature = "lock")] heartbeat_ended(name: &str, max_hold: Duration)
                    WARN "the lock is no longer extended, because `max_hold` has passed; it ends with its ttl"
                    [lock = name, ?max_hold] };
            }
            Named ["namespace", "name"] {
                requests: Counter "stampede_guard_requests_total" Count ["front_end": FrontEnd::NAMES, "status": CacheStatus::NAMES]
                    "Requests with a key that were answered, by front end (`http`, `fetch`, `keyed`) and by status (`hit`, `stale`, `miss`, `coalesced`, `bypass`, `fail_open`, `rejected`).";
                saved_calls: Counter "stampede_guard_saved_calls_total" Count []
                    "Requests that were answered without a call of the origin of their own: the ones with status `hit`, `stale` and `coalesced`, except a request that has fetched and got a stale answer or that of another leader, and one that begins a refresh in the background.";
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
                overloaded: Counter "stampede_guard_overloaded_total" Count []
                    "Requests rejected because of `wait_timeout`, `max_waiters`, a deadline, `max_fallback_fetches`, or 64 leaders without a usable result.";
                failures: Counter "stampede_guard_failures_total" Count ["kind": FetchFailure::NAMES]
                    "Failed fetches, each once however many requests waited for it: `origin` (an error), `server_error` (a response), `timed_out`, `panicked`, `codec` (the request succeeds, and its value is not stored).";
                store_errors: Counter "stampede_guard_store_errors_total" Count ["operation": StoreOperation::NAMES]
                    "Store operations that failed or timed out.";
                #[cfg(feature = "http")]
                uncached: Counter "stampede_guard_uncached_total" Count ["reason": Uncached::TOKENS]
                    "Responses of the HTTP layer that were neither answered from the cache nor stored, by the reason in `Cache-Status`.";
            }
            #[cfg(feature = "lock")]
            Locks ["namespace", "recipe"] {
                acquired: Counter "stampede_guard_lock_acquired_total" Count []
                    "Locks that were acquired.";
                contended: Counter "stampede_guard_lock_contended_total" Count []
                    "Calls of `acquire` and `try_acquire` whose first attempt has found the lock held.";
                lost: Counter "stampede_guard_lock_lost_total" Count []
                    "Locks that were lost before they were released: their time was over, or the server no longer had them.";
                wait_seconds: Histogram "stampede_guard_lock_wait_seconds" Seconds []
                    "Time of a call of `acquire` or `try_acquire`, whatever its outcome.";
                hold_seconds: Histogram "stampede_guard_lock_hold_seconds" Seconds []
                    "Time from the acquisition of a lock until its guard was released or dropped.";
                waiters: Gauge "stampede_guard_lock_waiters" Count []
                    "Calls of `acquire` and `try_acquire` in progress.";
                held: Gauge "stampede_guard_lock_held" Count []
                    "Locks whose guards exist.";
            }
            Process [] {
                breaker_open: Gauge "stampede_guard_breaker_open" Count []
                    "Open circuit breakers of the process.";
                pending_invalidations: Gauge "stampede_guard_pending_invalidations" Count []
                    "Invalidations of the process that the store has not acknowledged yet.";
                near_cache_bytes: Gauge "stampede_guard_near_cache_bytes" Bytes []
                    "Bytes in the near caches of the process, as of the last read from the store of each cache.";
            }
        }
    };
}
pub(super) use table;

/// Defines an enum with the name of each variant, as metrics and spans show it.
macro_rules! label_values {
    ($(#[$doc:meta])* $enum:ident { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $enum {
            $($(#[$of_variant])* $variant,)+
        }

        #[cfg_attr(
            not(all(feature = "metrics", feature = "tracing")),
            allow(dead_code, reason = "what only metrics or only spans and events show")
        )]
        impl $enum {
            pub(crate) const NAMES: &'static [&'static str] = &[$($name,)+];

            pub(crate) const fn as_str(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }
    };
}

label_values! {
    /// The front end of a request.
    FrontEnd {
        Http = "http",
        Fetch = "fetch",
        Keyed = "keyed",
    }
}

label_values! {
    /// An operation of the store.
    StoreOperation {
        Get = "get",
        GetOrLease = "get_or_lease",
        Fill = "fill",
        Extend = "extend",
        Release = "release",
        Invalidate = "invalidate",
        /// The read by which an open circuit breaker finds out whether the store answers again.
        Probe = "probe",
    }
}

label_values! {
    /// The kind of a failed fetch.
    FetchFailure {
        /// The fetch returned an error.
        Origin = "origin",
        /// The response is a server error.
        ServerError = "server_error",
        /// The fetch was aborted at its timeout.
        TimedOut = "timed_out",
        Panicked = "panicked",
        /// The value does not survive its codec.
        Codec = "codec",
    }
}
