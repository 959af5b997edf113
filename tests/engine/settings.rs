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

/// A file with every field, and each field out of range.
#[cfg(feature = "serde")]
#[test]
fn settings_of_a_file_are_those_of_the_setters() {
    use stampede_guard::{Settings, StoreFailure};
    let file = r#"{
        "namespace": "shop", "schema_version": 2, "lease_ttl": "5s", "wait_timeout": "1m", "fetch_timeout": "1h 30m",
        "store_timeout": "50ms", "uncacheable_ttl": "0s", "failure_ttl": "99s", "max_waiters": 5,
        "max_fallback_fetches": 6, "max_detached": 0, "max_payload": 512000000, "on_store_failure": "fail_closed",
        "near_cache": {"max_bytes": 1000}, "outage_cache": {"max_bytes": 0, "ttl": "2s"}, "bypass": false,
        "log_keys": true, "track_hot_keys": 0,
        "policy": {"fresh_for": "5m", "stale_while_revalidate": "30s", "stale_if_error": "1day", "jitter": 0.5,
            "soft_timeout": "50ms", "absent_for": "10s", "early_refresh": 1}
    }"#;
    let seconds = Duration::from_secs;
    let policy = Policy::fresh_for(seconds(300))
        .stale_while_revalidate(seconds(30))
        .stale_if_error(seconds(86_400))
        .jitter(0.5)
        .soft_timeout(Duration::from_millis(50))
        .absent_for(seconds(10))
        .early_refresh(1.0);
    let expected = StampedeGuard::in_memory()
        .namespace("shop")
        .schema_version(2)
        .lease_ttl(seconds(5))
        .wait_timeout(seconds(60))
        .fetch_timeout(seconds(5400))
        .store_timeout(Duration::from_millis(50))
        .uncacheable_ttl(Duration::ZERO)
        .failure_ttl(seconds(99))
        .max_waiters(5)
        .max_fallback_fetches(6)
        .max_detached(0)
        .max_payload(512_000_000)
        .on_store_failure(StoreFailure::FailClosed)
        .near_cache(NearCacheConfig::max_bytes(1000))
        .outage_cache(OutageCacheConfig::max_bytes(0).ttl(seconds(2)))
        .log_keys(true)
        .policy(policy);
    let guard = StampedeGuard::in_memory().settings(serde_json::from_str(file).expect("settings"));
    assert_eq!(format!("{guard:?}"), format!("{expected:?}"));
    assert_eq!(serde_json::from_str::<Policy>("{}").expect("a policy"), Policy::default());

    for (wrong, named) in [
        (r#"{"fetch_timout": "1s"}"#, "unknown field `fetch_timout`"),
        (r#"{"policy": {"fresh": "1s"}}"#, "unknown field `fresh`"),
        (r#"{"near_cache": {"max_bytes": 1, "ttl": "1s"}}"#, "unknown field `ttl`"),
        (r#"{"near_cache": {"max_bytes": 1, "max_age": "0s"}}"#, "\"0s\" is not from 1ms"),
        (r#"{"outage_cache": {"size": 1}}"#, "unknown field `size`"),
        (r#"{"lease_ttl": "9ms"}"#, "\"9ms\" is not from 10ms"),
        (r#"{"failure_ttl": "100s"}"#, "\"100s\" is not from 0ns to 99s"),
        (r#"{"fetch_timeout": "0s"}"#, "\"0s\" is not from 1ms"),
        (r#"{"wait_timeout": "soon"}"#, "\"soon\": expected number"),
        (r#"{"wait_timeout": 5}"#, "expected a string"),
        (r#"{"max_waiters": 0}"#, "0 is not from 1"),
        (r#"{"max_payload": 512000001}"#, "512000001 is not from 0 to 512000000"),
        (r#"{"on_store_failure": "closed"}"#, "unknown variant `closed`"),
        (r#"{"policy": {"jitter": 1.5}}"#, "1.5 is not from 0 to 1"),
        (r#"{"policy": {"early_refresh": -1}}"#, "-1 is not from 0"),
    ] {
        let error = serde_json::from_str::<Settings>(wrong).expect_err(wrong).to_string();
        assert!(error.contains(named), "{wrong}: {error}");
    }
}
