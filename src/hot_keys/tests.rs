use super::*;
use crate::key::Key;
use proptest::prelude::*;
use std::{collections::BTreeMap, thread};

fn request(hot_keys: &HotKeys, key: &Key, is_saved: bool, waited: Duration) {
    hot_keys.record_answer(CacheKeyRef::new("n", 0, key), is_saved, waited);
}

/// Requests of several threads for few busy keys and many others.
fn streams() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let key = prop_oneof![4 => 0..4_u64, 2 => 4..20_u64, 3 => 20..100_000_u64];
    prop::collection::vec(prop::collection::vec(key, 0..400), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Against exact counts. Seen to fail if a new key does not take over the count of the key that it replaces, if
    /// `rise` moves a key to the wrong end of the keys with its count, and if the sum over stripes leaves out the
    /// stripes that lack a key.
    #[test]
    fn hot_keys_are_found_and_counted_within_their_bound(streams in streams(), keys in 1..40_usize) {
        let hot_keys = HotKeys::new(keys);
        thread::scope(|scope| {
            for stream in &streams {
                let requests = || stream.iter().for_each(|key| request(&hot_keys, &Key::new(*key), true, Duration::ZERO));
                scope.spawn(requests).join().expect("no panic");
            }
        });
        let mut exact = BTreeMap::<String, u64>::new();
        for key in streams.iter().flatten() {
            *exact.entry(key.to_string()).or_default() += 1;
        }
        let (total, found) = (exact.values().sum::<u64>(), hot_keys.snapshot());
        prop_assert!(found.len() == keys.min(exact.len()), "{} of {} keys", found.len(), exact.len());
        prop_assert!(found.is_sorted_by(|a, b| a.requests >= b.requests));
        for key in &found {
            let requests = exact[&key.key];
            prop_assert!((key.requests..=key.requests + key.max_uncounted).contains(&requests), "{requests}: {key:?}");
            prop_assert!(key.max_uncounted <= total / keys as u64, "of {total}: {key:?}");
            prop_assert_eq!(key.saved_calls, key.requests);
        }
        for (key, _) in exact.iter().filter(|(_, requests)| **requests > total / keys as u64) {
            prop_assert!(found.iter().any(|found| found.key == *key), "{key} is missing");
        }
    }
}

#[test]
fn figures_of_a_hot_key_add_up_over_threads() {
    let (hot_keys, key, ms) = (HotKeys::new(3), Key::from("k"), Duration::from_millis);
    let of_a_thread = || {
        for (is_saved, waited) in [(false, 30), (true, 0), (true, 40)] {
            request(&hot_keys, &key, is_saved, ms(waited));
        }
        for _ in 0..3 {
            request(&hot_keys, &key.clone().variant("v"), false, ms(1));
        }
        hot_keys.record_fetch(CacheKeyRef::new("n", 7, &key), ms(30));
    };
    (0..2).for_each(|_| thread::scope(|scope| scope.spawn(of_a_thread).join().expect("no panic")));
    request(&hot_keys, &Key::from("l"), true, ms(0));
    hot_keys.record_answer(CacheKeyRef::new("other", 0, &key), true, ms(0));
    let [busiest, other, l] = hot_keys.snapshot().try_into().expect("three keys");
    let expected = HotKey {
        namespace: "n".to_owned(),
        key: "k".to_owned(),
        requests: 12,
        saved_calls: 4,
        fetches: 2,
        longest_wait: ms(40),
        fetch_time: ms(60),
        max_uncounted: 0,
    };
    assert_eq!(busiest, expected);
    let named = |key: HotKey| (key.namespace, key.key, key.requests);
    assert_eq!(named(other), ("other".to_owned(), "k".to_owned(), 1));
    assert_eq!(named(l), ("n".to_owned(), "l".to_owned(), 1));
}

#[test]
fn hot_key_is_serialized_with_seconds() {
    let key = HotKey { key: "k".to_owned(), longest_wait: Duration::from_millis(250), ..HotKey::default() };
    let json = serde_json::to_value(&key).expect("text and numbers");
    assert_eq!((&json["key"], &json["longest_wait"]), (&"k".into(), &0.25.into()));
}

#[test]
fn hot_keys_do_not_show_keys_in_debug_output() {
    let hot_keys = HotKeys::new(5);
    request(&hot_keys, &Key::from("secret"), true, Duration::ZERO);
    assert_eq!(format!("{hot_keys:?}"), "HotKeys { keys: 5, .. }");
}
