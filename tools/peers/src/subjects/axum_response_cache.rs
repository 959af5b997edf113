//! axum-response-cache around an axum router.

use super::{
    TTL,
    serve::{self, respond},
};
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::Response,
    routing::get,
};
use axum_response_cache::CacheLayer;

pub(crate) const ENTRY: Entry = Entry {
    name: "axum-response-cache",
    how: "`CacheLayer::with_lifespan` of 600 s on an axum route, in memory. It does not protect against stampedes of cold keys",
    kind: Kind::Local,
    make: |Setting { origin, .. }| {
        Box::pin(async move {
            let router =
                Router::new().route("/{key}", get(page)).layer(CacheLayer::with_lifespan(TTL)).with_state(origin);
            Ok(Box::new(AxumResponseCache { router }) as _)
        })
    },
};

async fn page(State(origin): State<Origin>, Path(key): Path<String>) -> Response<Body> {
    respond(origin.value(&key).await)
}

struct AxumResponseCache {
    router: Router,
}

impl Subject for AxumResponseCache {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        serve::answer(self.router.clone(), serve::request::<Body>(key))
    }
}
