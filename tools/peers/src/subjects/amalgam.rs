//! amalgam-cache with all its features for Redis.

use super::TTL;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use amalgam::{
    Cache, EntryOptions,
    provider::{PostcardSerializer, RedisBackplane, RedisDistributedCache, RedisDistributedLocker},
};
use std::sync::Arc;

pub(crate) const ENTRY: Entry = Entry {
    name: "amalgam-cache",
    how: "memory in front of Redis, backplane, distributed locker, postcard; 600 s, otherwise defaults. Its hits \
        come from its memory",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move {
            let cache = Cache::builder()
                .distributed(Arc::new(RedisDistributedCache::connect(url.clone()).await?))
                .serializer(Arc::new(PostcardSerializer))
                .backplane(Arc::new(RedisBackplane::connect(url.clone()).await?))
                .distributed_locker(Arc::new(RedisDistributedLocker::connect(url).await?))
                .default_options(EntryOptions::new(TTL))
                .try_build()?;
            Ok(Box::new(Amalgam { cache, origin }) as _)
        })
    },
};

struct Amalgam {
    cache: Cache<String>,
    origin: Origin,
}

impl Subject for Amalgam {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (cache, origin, key) = (self.cache.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let asked = key.clone();
            let fetch = move |_| async move { origin.value(&asked).await.map_err(std::io::Error::other) };
            let value = cache.get_or_set(key, fetch).await;
            value.map(|value| value.len()).map_err(|error| error.to_string())
        })
    }
}
