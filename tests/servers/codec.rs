//! The event about a type whose values do not survive their codec.

use crate::kit::Events;
use serde::{Deserialize, Serialize};
use stampede_guard::StampedeGuard;

#[derive(Serialize, Deserialize)]
struct Skips {
    #[serde(skip_serializing_if = "Option::is_none")]
    nick: Option<u8>,
}

/// Seen to fail with the `error` in the line although keys are not shown.
#[tokio::test]
async fn type_that_its_codec_cannot_store_is_reported_once() {
    let (guard, events) = (StampedeGuard::in_memory().uncacheable_ttl(std::time::Duration::ZERO), Events::listen());
    let values = guard.cache("value");
    for key in ["a", "b", "b"] {
        let fetch = values.entry(key).fetch_scoped(async || Ok::<_, std::io::Error>(Skips { nick: None }));
        assert!(fetch.await.expect("the value").nick.is_none());
    }
    assert_eq!((guard.stats().codec_failures, events.about("do not survive the codec")), (3, 1));
    for part in ["ERROR", "Skips", "Bincode", "use `Cache::codec(Codec::Json)`"] {
        assert_eq!(events.about(part), 1, "{part}: {}", events.all());
    }
    assert_eq!(events.about("error="), 0, "{}", events.all());
    let shown = StampedeGuard::in_memory().log_keys(true).cache("value");
    let fetch = shown.entry("a").fetch_scoped(async || Ok::<_, std::io::Error>(Skips { nick: None }));
    assert!(fetch.await.expect("the value").nick.is_none());
    assert_eq!(events.about("error="), 1, "{}", events.all());
}
