//! Typed values: a value that encodes must decode, and one type is never read as another.

use crate::{Down, never};
use serde::{Deserialize, Serialize};
use stampede_guard::{ErrorKind, StampedeGuard};
use std::sync::Arc;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
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

#[tokio::test]
async fn value_that_does_not_decode_is_a_codec_error() {
    let guard = StampedeGuard::in_memory();
    let untagged = guard.fetch("a", async || Ok::<_, Down>(Untagged::Number(1))).await.expect_err("not with bincode");
    let skips = guard.fetch("b", async || Ok::<_, Down>(Skips { nick: None, id: 300 })).await.expect_err("nor this");
    for (error, name) in [(untagged, "Untagged"), (skips, "Skips")] {
        assert_eq!(error.kind(), ErrorKind::Codec);
        assert!(error.to_string().contains(name) && error.to_string().contains("Codec::Json"), "{error}");
    }
}

#[cfg(feature = "json")]
#[tokio::test]
async fn json_codec_decodes_types_that_bincode_cannot() {
    let guard = StampedeGuard::in_memory().codec(stampede_guard::Codec::Json);
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
    let other = guard.codec(stampede_guard::Codec::Postcard);
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
    let guard = StampedeGuard::in_memory();
    let fetch = || guard.fetch_arc("k", async || Ok::<_, Down>(vec![1, 2, 3]));
    let (a, b) = tokio::join!(fetch(), fetch());
    let (a, b, c) = (a.expect("an answer"), b.expect("an answer"), fetch().await.expect("a hit"));
    assert!(Arc::ptr_eq(&a, &b) && Arc::ptr_eq(&a, &c));
    let owned = guard.fetch("k", never::<Vec<i32>>).await.expect("a hit");
    assert_eq!(owned, *a);
}

#[tokio::test]
async fn a_key_of_any_bytes_is_fetched() {
    let guard = StampedeGuard::in_memory();
    for key in [vec![], vec![0], vec![0xff; 1 << 16], b"}{".to_vec()] {
        let length = key.len();
        assert_eq!(guard.fetch(key, async move || Ok::<_, Down>(length)).await.expect("an answer"), length);
    }
    assert_eq!(guard.stats().misses, 4);
}
