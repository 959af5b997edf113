//! amalgam-cache with all its features for Redis, once for availability and once with its strict leases.

use super::TTL;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use amalgam::{
    Cache, CacheBuilder, EntryOptions, Timeout,
    provider::{PostcardSerializer, RedisBackplane, RedisDistributedCache, RedisDistributedLocker, RedisIoOptions},
};
use std::{sync::Arc, time::Duration};

pub(crate) const ENTRY: Entry = Entry {
    name: "amalgam-cache",
    how: "`get_or_set` of an `Arc<String>`; memory in front of Redis, backplane, distributed locker, postcard, \
        `disable_tagging`, auto-recovery (on by default); 600 s with fail-safe, `with_distributed_timeouts` of 100 ms and \
        250 ms, `RedisIoOptions` of 1 s for the locker (2 s by default; with 250 ms a killed Redis fails requests), distributed operations in the background, \
        circuit breakers of 2 s, otherwise defaults: cooperative leases. Its hits come from its memory",
    kind: Kind::Shared,
    make: |setting| Box::pin(make(setting, Cache::builder())),
};

pub(crate) const STRICT: Entry = Entry {
    name: "amalgam-cache, strict",
    how: "the same with `strict()`: fenced leases, memory dropped when a message may be lost",
    kind: Kind::Shared,
    make: |setting| Box::pin(make(setting, Cache::builder().strict())),
};

type Values = Cache<Arc<String>>;

async fn make(Setting { url, origin }: Setting, builder: CacheBuilder<Arc<String>>) -> Result<Box<dyn Subject>> {
    let locker = RedisDistributedLocker::connect_with_options(url.clone(), RedisIoOptions::new(LOCKER, LOCKER)?);
    let cache = builder
        .distributed(Arc::new(RedisDistributedCache::connect(url.clone()).await?))
        .serializer(Arc::new(PostcardSerializer))
        .backplane(Arc::new(RedisBackplane::connect(url).await?))
        .distributed_locker(Arc::new(locker.await?))
        .distributed_circuit_breaker(BREAKER)
        .backplane_circuit_breaker(BREAKER)
        .disable_tagging(true)
        .default_options(
            EntryOptions::new(TTL)
                .with_fail_safe(true, None, None)
                .with_distributed_timeouts(Timeout::After(SOFT), Timeout::After(HARD))
                .with_allow_background_distributed_operations(true),
        )
        .try_build()?;
    Ok(Box::new(Amalgam { cache, origin }))
}

/// Returns a cache of one process whose key has this value.
pub(crate) async fn in_memory(key: &str, value: String) -> Result<Values> {
    let cache = Cache::builder().disable_tagging(true).default_options(EntryOptions::new(TTL)).try_build()?;
    cache.set(key, Arc::new(value)).await?;
    Ok(cache)
}

struct Amalgam {
    cache: Values,
    origin: Origin,
}

impl Subject for Amalgam {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (cache, origin, key) = (self.cache.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let asked = key.clone();
            let fetch = move |_| async move { origin.value(&asked).await.map(Arc::new).map_err(std::io::Error::other) };
            let value = cache.get_or_set(key, fetch).await;
            value.map(|value| value.len()).map_err(|error| error.to_string())
        })
    }
}

const SOFT: Duration = Duration::from_millis(100);
/// As long as the `store_timeout` of this crate.
const HARD: Duration = Duration::from_millis(250);
/// With 250 ms, requests fail while a killed server refuses connections: two retries take longer.
const LOCKER: Duration = Duration::from_secs(1);
const BREAKER: Duration = Duration::from_secs(2);
