//! tower-http-cache over its Redis backend.

use super::{
    TTL,
    serve::{self, Upstream},
};
use crate::{
    Result,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use bytes::Bytes;
use http_body_util::Full;
use redis::Client;
use tower::Layer;
use tower_http_cache::prelude::{CacheLayer, RedisBackend};

pub(crate) const ENTRY: Entry = Entry {
    name: "tower-http-cache",
    how: "`CacheLayer` over `RedisBackend`, a ConnectionManager; 600 s, otherwise defaults",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move {
            let backend = RedisBackend::new(Client::open(url)?.get_connection_manager().await?);
            let layer = CacheLayer::builder(backend).ttl(TTL).build();
            Ok(Box::new(TowerHttpCache { layer, upstream: Upstream(origin) }) as _)
        })
    },
};

struct TowerHttpCache {
    layer: CacheLayer<RedisBackend>,
    upstream: Upstream,
}

impl Subject for TowerHttpCache {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        serve::answer(self.layer.layer(self.upstream.clone()), serve::request::<Full<Bytes>>(key))
    }
}
