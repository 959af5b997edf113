//! Statistics by name.

use stampede_guard::{StampedeGuard, Stats};
use std::{collections::BTreeMap, convert::Infallible};

async fn fetch(guard: &StampedeGuard, key: u64) {
    guard.fetch(key, async move || Ok::<_, Infallible>(key)).await.expect("an answer");
    guard.drain().await;
}

/// Seen to fail when all clones counted in one place.
#[tokio::test]
async fn stats_are_counted_under_the_name_of_each_clone() {
    let guard = StampedeGuard::in_memory();
    let reports = guard.clone().named("reports");
    let slow_reports = reports.clone().max_payload(1 << 10);
    let same_name = guard.clone().named("reports");
    fetch(&guard, 1).await;
    for (key, guard) in [(1, &reports), (2, &slow_reports), (3, &same_name)] {
        fetch(guard, key).await;
    }
    let by_name = guard.stats_by_name();
    let counted = |name: &str| (by_name[name].hits, by_name[name].misses);
    assert_eq!((counted("default"), counted("reports")), ((0, 1), (1, 2)));
    assert_eq!((guard.stats().hits, guard.stats().misses), (1, 3));
    assert_eq!(by_name.len(), 2);
}

#[tokio::test]
async fn counts_of_a_name_outlive_its_clones() {
    let guard = StampedeGuard::in_memory();
    fetch(&guard.clone().named("once"), 1).await;
    assert_eq!(guard.stats_by_name()["once"].misses, 1);
    assert_eq!(guard.stats().misses, 1);
}

#[tokio::test]
async fn an_empty_name_is_the_default() {
    let guard = StampedeGuard::in_memory();
    fetch(&guard.clone().named("a").named(""), 1).await;
    assert_eq!(guard.stats_by_name()["default"].misses, 1);
}

#[tokio::test]
async fn stats_are_serialized_with_all_their_fields() {
    let guard = StampedeGuard::in_memory().named("reports");
    fetch(&guard, 1).await;
    let json = serde_json::to_value(guard.stats_by_name()).expect("JSON");
    assert_eq!(json["reports"]["misses"], 1);
    assert_eq!(json["reports"]["uncached"], serde_json::json!({}), "only the reasons that have occurred");
    let fields = json["reports"].as_object().expect("a map").len();
    let shown = format!("{:#?}", Stats::default()).lines().filter(|line| line.starts_with("    ")).count();
    assert_eq!(fields, shown, "{json}");
    // A format that needs the number of fields first.
    let stats: BTreeMap<String, Stats> = guard.stats_by_name();
    let bytes = bincode::serde::encode_to_vec(&stats, bincode::config::standard()).expect("bincode");
    assert!(!bytes.is_empty());
}
