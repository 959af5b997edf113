//! Settings: invalid values panic, and all others are used as given.

use crate::{Down, never};
use stampede_guard::{NearCacheConfig, OutageCacheConfig, Policy, StampedeGuard};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

#[test]
fn invalid_settings_panic_and_name_the_setting() {
    let guard = StampedeGuard::in_memory;
    let panics: &[(&str, &dyn Fn())] = &[
        ("lease_ttl must be at least 10 ms", &|| drop(guard().lease_ttl(Duration::from_millis(9)))),
        ("max_waiters must be greater than zero", &|| drop(guard().max_waiters(0))),
        ("fetch_timeout must be greater than zero", &|| drop(guard().fetch_timeout(Duration::ZERO))),
        ("store_timeout must be greater than zero", &|| drop(guard().store_timeout(Duration::ZERO))),
        ("max_payload must be at most 512000000 bytes", &|| drop(guard().max_payload(usize::MAX))),
        ("failure_ttl must be at most 99s", &|| drop(guard().failure_ttl(Duration::from_secs(100)))),
        ("max_fallback_fetches must be greater than zero", &|| drop(guard().max_fallback_fetches(0))),
        ("max_age must be greater than zero", &|| _ = NearCacheConfig::max_bytes(1).max_age(Duration::ZERO)),
        ("jitter must be from 0 to 1", &|| _ = Policy::default().jitter(1.1)),
        ("jitter must be from 0 to 1", &|| _ = Policy::default().jitter(f64::NAN)),
        ("early_refresh must be finite and not negative", &|| _ = Policy::default().early_refresh(-1.0)),
        ("early_refresh must be finite and not negative", &|| _ = Policy::default().early_refresh(f64::INFINITY)),
        #[cfg(feature = "http")]
        ("heuristic_freshness must be from 0 to 1", &|| {
            drop(stampede_guard::http::HttpOptions::default().heuristic_freshness(-0.1));
        }),
    ];
    for (message, set) in panics {
        let panic = catch_unwind(AssertUnwindSafe(set)).expect_err(message);
        let formatted = panic.downcast_ref::<String>().map(String::as_str);
        let text = formatted.or_else(|| panic.downcast_ref::<&str>().copied()).expect("a message");
        assert!(text.starts_with(message), "{text}");
    }
}

#[tokio::test]
async fn settings_of_any_length_are_used_as_given() {
    let long = Duration::MAX;
    let policy = Policy::fresh_for(long).stale_while_revalidate(long).stale_if_error(long).jitter(1.0);
    let guard = StampedeGuard::in_memory()
        .lease_ttl(long)
        .wait_timeout(long)
        .fetch_timeout(long)
        .store_timeout(long)
        .uncacheable_ttl(long)
        .max_waiters(usize::MAX)
        .max_detached(usize::MAX)
        .near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(long))
        .outage_cache(OutageCacheConfig::max_bytes(u64::MAX).ttl(long))
        .policy(policy.early_refresh(f64::MAX));
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    assert_eq!(guard.fetch("k", never::<i32>).await.expect("a hit"), 1);
    guard.drain().await;
}

#[test]
fn debug_shows_the_settings() {
    let guard = StampedeGuard::in_memory().namespace("a b/c{}").lease_ttl(Duration::from_millis(10));
    let shown = format!("{guard:?}");
    for setting in ["namespace: \"a_b_c__\"", "lease_ttl: 10ms", "fetch_timeout: 60s", "ttl: 1s"] {
        assert!(shown.contains(setting), "{setting} is not in {shown}");
    }
}
