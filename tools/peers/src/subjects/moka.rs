//! moka's `try_get_with`.

use super::TTL;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use moka::future::Cache;
use std::sync::Arc;

pub(crate) const ENTRY: Entry = Entry {
    name: "moka",
    how: "`future::Cache::try_get_with`, 100,000 entries, time to live 600 s",
    kind: Kind::Local,
    make: |Setting { origin, .. }| {
        Box::pin(async move {
            let cache = Cache::builder().max_capacity(100_000).time_to_live(TTL).build();
            Ok(Box::new(Moka { cache, origin }) as _)
        })
    },
};

struct Moka {
    cache: Cache<String, Arc<String>>,
    origin: Origin,
}

impl Subject for Moka {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (cache, origin, key) = (self.cache.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let fetch = async { origin.value(&key).await.map(Arc::new).map_err(|error| error.to_string()) };
            let value = cache.try_get_with_by_ref(&key, fetch).await.map_err(|error| (*error).clone())?;
            Ok(value.len())
        })
    }
}
