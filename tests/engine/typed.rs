//! Typed values: a value that encodes must decode, and one type is never read as another.

use crate::{Down, never, support::Origin};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stampede_guard::{Codec, FetchOutcome, MemoryStore, Policy, StampedeGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Skips {
    #[serde(skip_serializing_if = "Option::is_none")]
    nick: Option<u8>,
    id: u64,
}

/// Seen to fail (an error in place of each value) when such a value was a failed fetch.
#[tokio::test]
async fn value_that_does_not_survive_its_codec_is_handed_through() {
    let (guard, origin) = (StampedeGuard::in_memory().fingerprint(false), Origin::new());
    for _ in 0..2 {
        let (counted, counted_too) = (origin.clone(), origin.clone());
        let untagged = guard.fetch("a", async move || {
            counted.call().await;
            Ok::<_, Down>(Untagged::Number(1))
        });
        assert_eq!(untagged.await.expect("the value of the origin"), Untagged::Number(1));
        let skips = guard.fetch("b", async move || {
            counted_too.call().await;
            Ok::<_, Down>(Skips { nick: None, id: 300 })
        });
        assert_eq!(skips.await.expect("the value of the origin"), Skips { nick: None, id: 300 });
        guard.drain().await;
    }
    let stats = guard.stats();
    assert_eq!((origin.calls(), stats.codec_failures, stats.hits, stats.rejected), (4, 4, 0, 0));
    let good = async || Ok::<_, Down>(Skips { nick: Some(1), id: 300 });
    guard.fetch("b", good).await.expect("replaces the marker");
    guard.drain().await;
    assert_eq!(guard.fetch("b", never::<Skips>).await.expect("a hit").nick, Some(1));
}

/// They cannot share the value, and do not wait for each other.
#[tokio::test]
async fn waiters_call_for_what_its_codec_cannot_store() {
    let (guard, origin) = (StampedeGuard::in_memory().fingerprint(false), Origin::gated());
    let callers = (0..20).map(|_| {
        let origin = origin.clone();
        guard.fetch("k", async move || {
            origin.call().await;
            Ok::<_, Down>(Untagged::Number(1))
        })
    });
    let release = async {
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(20).await; // the other 19 run at once
        origin.open();
    };
    let (values, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    assert!(values.iter().all(|value| matches!(value, Ok(Untagged::Number(1)))));
}

/// Both types have the same name in Rust, as in two deploys of one program. Seen to fail (`b` is read as `a`) when the
/// name took the place of the structure.
#[tokio::test]
async fn fields_swapped_between_two_deploys_are_a_miss() {
    let (store, guard) =
        (Arc::new(MemoryStore::default()), |store: &Arc<MemoryStore>| StampedeGuard::new(store.clone()));
    {
        #[derive(Serialize, Deserialize)]
        struct Account {
            a: u32,
            b: u32,
        }
        let old = guard(&store);
        old.fetch("k", async || Ok::<_, Down>(Account { a: 1, b: 2 })).await.expect("a value");
        old.drain().await;
        let hit = old.fetch("k", never::<Account>).await.expect("a hit");
        assert_eq!((hit.a, hit.b), (1, 2));
    }
    #[derive(Serialize, Deserialize)]
    struct Account {
        b: u32,
        a: u32,
    }
    let new = guard(&store);
    let account = new.fetch("k", async || Ok::<_, Down>(Account { a: 1, b: 2 })).await.expect("a value");
    assert_eq!((account.a, account.b, new.stats().misses), (1, 2, 1));
}

/// Seen to fail with the structure: the type meets the value 1.
#[tokio::test]
async fn type_without_fingerprint_meets_no_invented_value() {
    static INVENTED: AtomicBool = AtomicBool::new(false);
    #[derive(Serialize)]
    struct Year(u16);
    impl<'de> Deserialize<'de> for Year {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let year = u16::deserialize(deserializer)?;
            INVENTED.fetch_or(year != 2026, SeqCst);
            Ok(Self(year))
        }
    }
    let with_fingerprint = StampedeGuard::in_memory();
    let without = with_fingerprint.clone().fingerprint(false);
    for _ in 0..2 {
        let year = without.fetch("k", async || Ok::<_, Down>(Year(2026))).await.expect("an answer");
        assert_eq!((year.0, INVENTED.load(SeqCst)), (2026, false));
    }
    let year = without.schema_version(1).fetch("k", async || Ok::<_, Down>(Year(2026))).await.expect("an answer");
    assert_eq!((year.0, with_fingerprint.stats().misses, with_fingerprint.stats().hits), (2026, 2, 1));
    with_fingerprint.fetch("k", async || Ok::<_, Down>(Year(2026))).await.expect("an answer");
    assert!(INVENTED.load(SeqCst), "the structure is learnt from invented values");
}

/// Seen to fail (each type is a miss after the other one) when a decoded value was of use to one type only.
#[tokio::test]
async fn two_types_of_one_structure_share_an_entry() {
    mod other {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub(super) struct Row {
            pub(super) id: u64,
        }
    }
    #[derive(Serialize, Deserialize)]
    struct Row {
        id: u64,
    }
    let guard = StampedeGuard::in_memory();
    let (rows, others) = (guard.cache::<Row>("row"), guard.cache::<other::Row>("row"));
    rows.entry("k").fetch_arc(async || Ok::<_, Down>(Row { id: 7 })).await.expect("a value");
    for _ in 0..2 {
        assert_eq!(others.entry("k").fetch_arc(never).await.expect("a hit").id, 7);
        assert_eq!(rows.entry("k").fetch_arc(never).await.expect("a hit").id, 7);
    }
}

#[cfg(feature = "json")]
mod any {
    use super::{Down, StampedeGuard, Untagged, never};
    use serde::{Deserialize, Serialize, de::DeserializeOwned};
    use std::fmt::Debug;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Flat {
        id: u64,
        #[serde(flatten)]
        rest: Rest,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Rest {
        ratio: Option<f64>,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "t")]
    enum Tagged {
        Unit,
        Number { of: f64 },
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Late {
        Unit,
        Deep(Vec<Option<(u8, Tagged)>>),
    }

    /// Fetches each value, and has a hit of it with the codec of the guard.
    async fn has_hits<V>(values: impl IntoIterator<Item = V>)
    where
        V: Serialize + DeserializeOwned + Clone + PartialEq + Debug + Send + Sync + 'static,
    {
        for (n, value) in values.into_iter().enumerate() {
            let guard = StampedeGuard::in_memory();
            let (cache, fetched) = (guard.cache::<V>("k"), value.clone());
            cache.fetch(n, async || Ok::<_, Down>(fetched)).await.expect("a value");
            guard.drain().await;
            assert_eq!(cache.fetch(n, never).await.expect("a hit"), value);
            assert_eq!(guard.fetch(format!("k:{n}"), never::<V>).await.expect("a hit"), value);
            let json = guard.codec(stampede_guard::Codec::Json).cache::<V>("k");
            assert_eq!(json.get(n).await.expect("an answer"), Some(value), "the same encoding");
        }
    }

    /// Seen to fail (no hit) when the walk did not tell of values of any kind, and the last value (another number) when
    /// JSON read floats with its default precision.
    #[tokio::test]
    async fn type_that_bincode_cannot_read_is_stored_as_json() {
        has_hits([Untagged::Number(1)]).await;
        has_hits([Tagged::Unit, Tagged::Number { of: 0.5 }]).await;
        has_hits([Late::Unit, Late::Deep(vec![None, Some((1, Tagged::Unit))])]).await;
        has_hits([serde_json::json!({ "a": [1, null, "b"] })]).await;
        let flat = |ratio| Flat { id: 1, rest: Rest { ratio: Some(ratio) } };
        has_hits([1.0, 0.1, f64::MIN_POSITIVE, 1.071_566_039_146_582_6e-75].map(flat)).await;
    }

    /// JSON writes `null` for NaN, infinity, `Some(None)` and `Some(())`.
    ///
    /// Seen to fail (a hit of `None` in place of `Some(NaN)`) when only the other codecs looked for what they lose.
    #[tokio::test]
    async fn value_that_json_would_read_as_another_is_not_stored() {
        let guard = StampedeGuard::in_memory().codec(stampede_guard::Codec::Json);
        let (ratios, changes) = (guard.cache::<Flat>("ratio"), guard.cache::<Vec<Option<Option<()>>>>("change"));
        let ratio = |id, ratio| Flat { id, rest: Rest { ratio } };
        for (key, stored) in [(1, Some(0.5)), (2, None), (3, Some(f64::NAN)), (4, Some(f64::INFINITY))] {
            let fetch = || ratios.fetch(key, async move || Ok::<_, Down>(ratio(key, stored)));
            fetch().await.expect("a value");
            guard.drain().await;
            let again = fetch().await.expect("a value");
            assert_eq!(format!("{again:?}"), format!("{:?}", ratio(key, stored)));
        }
        for (key, stored) in [(1, vec![None]), (2, vec![Some(None)]), (3, vec![None, Some(Some(()))])] {
            assert_eq!(changes.put(key, stored.clone()).await.is_ok(), key == 1);
            let fetched = stored.clone();
            assert_eq!(changes.fetch(key, async || Ok::<_, Down>(fetched)).await.expect("a value"), stored);
        }
        assert_eq!((guard.stats().hits, guard.stats().codec_failures), (3, 8));
    }

    /// Seen to fail (refused): `{"Ok":null}` was taken for `null` within `Some`.
    #[tokio::test]
    async fn variant_of_nothing_within_some_is_stored_as_json() {
        let guard = StampedeGuard::in_memory().codec(stampede_guard::Codec::Json);
        let results = guard.cache::<Option<Result<(), Option<u8>>>>("result");
        for result in [Ok(()), Err(None), Err(Some(1))] {
            results.put(1, Some(result)).await.expect("stored");
            assert_eq!(results.get(1).await.expect("an answer"), Some(Some(result)));
        }
    }
}

/// Bytes and text are stored as they are. Seen to fail with serde's encoding: it has the length before the bytes.
#[tokio::test]
async fn bytes_and_text_have_one_encoding_in_all_codecs() {
    let guard = StampedeGuard::in_memory();
    let bytes = async || Ok::<_, Down>(b"\x80 text".to_vec());
    guard.fetch("bytes", bytes).await.expect("a value");
    guard.fetch("text", async || Ok::<_, Down>("text".to_owned())).await.expect("a value");
    guard.drain().await;
    let mut guards = vec![guard.clone(), guard.clone().fingerprint(false)];
    #[cfg(feature = "postcard")]
    guards.push(guard.clone().codec(Codec::Postcard));
    #[cfg(feature = "json")]
    guards.push(guard.clone().codec(Codec::Json));
    for guard in guards {
        assert_eq!(guard.fetch("bytes", never::<Vec<u8>>).await.expect("a hit"), b"\x80 text");
        assert_eq!(guard.fetch("bytes", never::<bytes::Bytes>).await.expect("a hit"), &b"\x80 text"[..]);
        assert_eq!(guard.fetch("text", never::<String>).await.expect("a hit"), "text");
    }
    let text = guard.fetch("bytes", async || Ok::<_, Down>("another type".to_owned()));
    assert_eq!(text.await.expect("a miss"), "another type");
}

/// Seen to fail (128 values decode) when each value was tried.
#[tokio::test]
async fn first_value_of_a_type_and_one_in_64_are_tried() {
    static DECODED: AtomicU32 = AtomicU32::new(0);
    #[derive(Serialize)]
    struct Odd(u32);
    impl<'de> Deserialize<'de> for Odd {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let number = u32::deserialize(deserializer)?;
            DECODED.fetch_add(1, SeqCst);
            if number % 2 == 1 { Ok(Self(number)) } else { Err(serde::de::Error::custom("an even number")) }
        }
    }
    let guard = StampedeGuard::in_memory().fingerprint(false);
    let odd = guard.cache::<Odd>("odd");
    let fetch = async |id: u32, number: u32| {
        odd.fetch(id, async move || Ok::<_, Down>(Odd(number))).await.expect("a value");
    };
    for id in 0..3 {
        fetch(id, 2).await;
    }
    assert_eq!((DECODED.swap(0, SeqCst), guard.stats().codec_failures), (3, 3), "each until one decodes");
    for id in 3..131 {
        fetch(id, 1).await;
    }
    assert_eq!((DECODED.swap(0, SeqCst), guard.stats().codec_failures), (2, 3));
}

#[cfg(feature = "json")]
#[tokio::test]
async fn json_codec_decodes_types_that_bincode_cannot() {
    let guard = StampedeGuard::in_memory().codec(Codec::Json);
    for _ in 0..2 {
        let untagged = guard.fetch("a", async || Ok::<_, Down>(Untagged::Number(1))).await;
        assert_eq!(untagged.expect("an answer"), Untagged::Number(1));
    }
    assert_eq!(guard.stats().hits, 1);
}

#[cfg(feature = "postcard")]
#[tokio::test]
async fn another_codec_is_a_miss() {
    let guard = StampedeGuard::in_memory();
    guard.fetch("k", async || Ok::<_, Down>(1_u64)).await.expect("an answer");
    let other = guard.codec(Codec::Postcard);
    assert_eq!(other.fetch("k", async || Ok::<_, Down>(2_u64)).await.expect("an answer"), 2);
}

#[tokio::test]
async fn another_type_under_the_same_key_is_a_miss() {
    let guard = StampedeGuard::in_memory();
    guard.fetch("k", async || Ok::<_, Down>((300_u64, "eve".to_owned()))).await.expect("an answer");
    let other = guard.fetch("k", async || Ok::<_, Down>((1_i32, b"bob".to_vec()))).await.expect("an answer");
    assert_eq!(other, (1, b"bob".to_vec()));
}

#[tokio::test]
async fn two_types_under_one_key_at_once_both_get_an_answer() {
    let guard = StampedeGuard::in_memory();
    let slow = async || {
        tokio::task::yield_now().await;
        Ok::<_, Down>(1_u64)
    };
    let (a, b) = tokio::join!(guard.fetch("k", slow), guard.fetch("k", async || Ok::<_, Down>("text".to_owned())));
    assert_eq!((a.expect("an answer"), b.expect("an answer")), (1, "text".to_owned()));
}

#[tokio::test]
async fn another_schema_version_is_a_miss() {
    let guard = StampedeGuard::in_memory();
    guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    assert_eq!(guard.clone().schema_version(1).fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
    let unused = never::<i32>;
    assert_eq!(guard.fetch("k", unused).await.expect("a hit"), 1);
}

#[tokio::test]
async fn hits_share_the_decoded_value() {
    let lists = StampedeGuard::in_memory().cache("list");
    let fetch = || lists.entry("k").fetch_arc(async || Ok::<_, Down>(vec![1, 2, 3]));
    let (a, b) = tokio::join!(fetch(), fetch());
    let (a, b, c) = (a.expect("an answer"), b.expect("an answer"), fetch().await.expect("a hit"));
    assert!(Arc::ptr_eq(&a, &b) && Arc::ptr_eq(&a, &c));
    let owned = lists.fetch("k", never::<Vec<i32>>).await.expect("a hit");
    assert_eq!(owned, *a);
}

#[tokio::test]
async fn a_key_of_any_bytes_is_fetched() {
    let guard = StampedeGuard::in_memory();
    for key in [vec![0], vec![0xff; 1 << 16], b"}{".to_vec()] {
        let length = key.len();
        assert_eq!(guard.fetch(key, async move || Ok::<_, Down>(length)).await.expect("an answer"), length);
    }
    assert_eq!(guard.stats().misses, 3);
}

/// Seen to fail for `false` when the bytes alone decide.
#[tokio::test(start_paused = true)]
async fn absent_for_is_the_lifetime_of_none() {
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Row(Option<Untagged>);

    async fn lifetime<V>(value: FetchOutcome<V>, codec: Codec, fingerprint: bool) -> u64
    where
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let second = Duration::from_secs(1);
        let policy = Policy::fresh_for(60 * second).absent_for(5 * second).jitter(0.0);
        let guard = StampedeGuard::in_memory().policy(policy).fingerprint(fingerprint);
        let values = guard.cache::<V>("value").codec(codec);
        let fetched = values.entry("k").answer(async |_| Ok::<_, Down>(value)).await.expect("an answer");
        guard.drain().await;
        tokio::time::sleep(fetched.fresh_for() - second).await;
        let hit = values.entry("k").answer(async |_| Err::<FetchOutcome<V>, _>(Down)).await.expect("a hit");
        assert_eq!(hit.fresh_for(), second);
        tokio::time::sleep(second).await;
        assert!(values.get("k").await.expect("the store answers").is_none());
        fetched.fresh_for().as_secs()
    }

    for codec in [Codec::Bincode, Codec::Postcard, Codec::Json] {
        assert_eq!(lifetime(FetchOutcome::new(None::<u8>), codec, true).await, 5, "{codec:?}");
        assert_eq!(lifetime(FetchOutcome::new(Row(None)), codec, true).await, 5, "{codec:?}");
        let stated = FetchOutcome::new(None::<u8>).fresh_for(Duration::from_secs(9));
        assert_eq!(lifetime(stated, codec, true).await, 9, "{codec:?}");
        assert_eq!(lifetime(FetchOutcome::new(Some(0_u8)), codec, true).await, 60, "{codec:?}");
        assert_eq!(lifetime(FetchOutcome::new(false), codec, true).await, 60, "{codec:?}");
        assert_eq!(lifetime(FetchOutcome::new(()), codec, true).await, 60, "{codec:?}");
        assert_eq!(
            lifetime(FetchOutcome::new(None::<u8>), codec, false).await,
            60,
            "{codec:?}: not seen without the fingerprint"
        );
    }
}
