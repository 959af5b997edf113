//! foyer's in-memory cache.

use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use foyer::{Cache, CacheBuilder};
use std::sync::Arc;

pub(crate) const ENTRY: Entry = Entry {
    name: "foyer",
    how: "`Cache::get_or_fetch`, in memory, 100,000 entries, which it keeps without a TTL",
    kind: Kind::Local,
    make: |Setting { origin, .. }| {
        Box::pin(async move { Ok(Box::new(Foyer { cache: CacheBuilder::new(100_000).build(), origin }) as _) })
    },
};

struct Foyer {
    cache: Cache<String, Arc<String>>,
    origin: Origin,
}

impl Subject for Foyer {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (cache, origin, key) = (self.cache.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let asked = key.clone();
            let fetch = move || async move { origin.value(&asked).await.map(Arc::new).map_err(std::io::Error::other) };
            let entry = cache.get_or_fetch(&key, fetch).await.map_err(|error| error.to_string())?;
            Ok(entry.value().len())
        })
    }
}
