//! hitbox-tower over hitbox-redis.

use super::{
    TTL,
    serve::{self, Upstream},
};
use crate::{
    Result,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use bytes::Bytes;
use hitbox::{Config, concurrency::BroadcastConcurrencyManager, policy::PolicyConfig};
use hitbox_http::{
    extractors::{Method, path::PathExtractor},
    predicates::{NeutralRequestPredicate, response::StatusCode},
};
use hitbox_redis::{ConnectionMode, RedisBackend};
use hitbox_tower::Cache;
use http_body_util::Full;
use tower::Layer;

pub(crate) const ENTRY: Entry = Entry {
    name: "hitbox",
    how: "hitbox-tower, hitbox-redis; `BroadcastConcurrencyManager` with `concurrency(1)`, both off by default; \
        method and path as key, only responses 200, 600 s",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move {
            let config = Config::builder()
                .request_predicate(NeutralRequestPredicate::new())
                .response_predicate(StatusCode::new(http::StatusCode::OK))
                .extractor(Method::new().path("/{key}"))
                .policy(PolicyConfig::builder().ttl(TTL).concurrency(1.try_into()?).build())
                .build();
            let layer = Cache::builder()
                .backend(RedisBackend::builder().connection(ConnectionMode::single(url)).build()?)
                .config(config)
                .concurrency_manager(BroadcastConcurrencyManager::new())
                .build();
            let service = layer.layer(Upstream(origin));
            Ok(Box::new(Hitbox(move |key: &str| serve::answer(service.clone(), serve::request::<Full<Bytes>>(key))))
                as _)
        })
    },
};

/// A closure that hides the type of the service, which is four lines long.
struct Hitbox<F>(F);

impl<F: Fn(&str) -> Boxed<Result<usize, String>> + Send + Sync> Subject for Hitbox<F> {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        (self.0)(key)
    }
}
