//! This crate: `fetch` and the HTTP layer over Redis, and the embedded store.

use super::{
    TTL,
    serve::{self, Upstream},
};
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use stampede_guard::{Cache, NearCacheConfig, Policy, StampedeGuard, redis::Client};
use tower::Layer;

pub(crate) const FETCH: Entry = Entry {
    name: "stampede-guard fetch",
    how: "`fetch` of a view of `String`s over a `redis::Client`; fresh for 600 s, otherwise defaults",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move { Ok(Box::new(View::new(guard(Client::open(url)?), origin, Hits::Owned)) as _) })
    },
};

pub(crate) const NEAR: Entry = Entry {
    name: "stampede-guard near cache",
    how: "`fetch_arc` of a view of `String`s over a `redis::Client` with `near_cache(NearCacheConfig::max_bytes(64 << 20))`; fresh for \
        600 s, otherwise defaults. Its hits come from its memory",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move { Ok(Box::new(View::new(near(Client::open(url)?), origin, Hits::Shared)) as _) })
    },
};

pub(crate) const LAYER: Entry = Entry {
    name: "stampede-guard layer",
    how: "the layer around an HTTP service over a `redis::Client`; defaults, the response has max-age=600",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move { Ok(Box::new(Layered { guard: guard(Client::open(url)?), origin }) as _) })
    },
};

pub(crate) const EMBEDDED: Entry = Entry {
    name: "stampede-guard embedded",
    how: "`fetch_arc` of a view of `String`s over `StampedeGuard::in_memory()`; fresh for 600 s, otherwise defaults",
    kind: Kind::Local,
    make: |Setting { origin, .. }| {
        Box::pin(async move {
            let guard = StampedeGuard::in_memory().policy(Policy::fresh_for(TTL));
            Ok(Box::new(View::new(guard, origin, Hits::Shared)) as _)
        })
    },
};

pub(crate) fn guard(client: Client) -> StampedeGuard {
    StampedeGuard::new(client).policy(Policy::fresh_for(TTL))
}

pub(crate) fn near(client: Client) -> StampedeGuard {
    guard(client).near_cache(NearCacheConfig::max_bytes(64 << 20))
}

struct View {
    guard: StampedeGuard,
    values: Cache<String>,
    origin: Origin,
    hits: Hits,
}

/// Whether each hit decodes a value of its own, or hits share the decoded one.
#[derive(Clone, Copy)]
enum Hits {
    Owned,
    Shared,
}

impl View {
    fn new(guard: StampedeGuard, origin: Origin, hits: Hits) -> Self {
        Self { values: guard.cache("value"), guard, origin, hits }
    }
}

impl Subject for View {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (values, hits) = (self.values.clone(), self.hits);
        let (origin, key) = (self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let call = {
                let key = key.clone();
                async move || origin.value(&key).await
            };
            let length = match hits {
                Hits::Owned => values.fetch(key, call).await.map(|value| value.len()),
                Hits::Shared => values.entry(key).fetch_arc(call).await.map(|value| value.len()),
            };
            length.map_err(|error| error.to_string())
        })
    }

    fn settle(&self) -> Boxed<()> {
        settled(self.guard.clone())
    }
}

struct Layered {
    guard: StampedeGuard,
    origin: Origin,
}

impl Subject for Layered {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let service = self.guard.layer(Upstream(self.origin.clone()));
        serve::answer(service, serve::request::<serve::Body>(key))
    }

    fn settle(&self) -> Boxed<()> {
        settled(self.guard.clone())
    }
}

fn settled(guard: StampedeGuard) -> Boxed<()> {
    Box::pin(async move { while guard.drain().await > 0 {} })
}
