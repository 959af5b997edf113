//! cached's Redis store.

use super::TTL;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use cached::{AsyncRedisCache, ConcurrentCachedAsync};
use std::sync::Arc;

pub(crate) const ENTRY: Entry = Entry {
    name: "cached",
    how: "`AsyncRedisCache::async_cache_try_get_or_set_with`, with `connection_manager(true)`; 600 s. It does not \
          protect against stampedes over Redis",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move {
            let cache = AsyncRedisCache::builder("peers")
                .ttl(TTL)
                .connection_string(&url)
                .connection_manager(true)
                .build()
                .await?;
            Ok(Box::new(Cached { cache: Arc::new(cache), origin }) as _)
        })
    },
};

struct Cached {
    cache: Arc<AsyncRedisCache<String, String>>,
    origin: Origin,
}

impl Subject for Cached {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (cache, origin, key) = (self.cache.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let fetch = || async { origin.value(&key).await.map_err(|error| error.to_string()) };
            match cache.async_cache_try_get_or_set_with(key.clone(), fetch).await {
                Ok(Ok(value)) => Ok(value.len()),
                Ok(Err(error)) => Err(error),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}
