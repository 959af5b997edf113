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
    how: "`fetch` of a `String` over a `redis::Client`; fresh for 600 s, otherwise defaults",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(
            async move { Ok(Box::new(FetchContext { guard: guard(Client::open(url)?), origin, shared: None }) as _) },
        )
    },
};

pub(crate) const NEAR: Entry = Entry {
    name: "stampede-guard near cache",
    how: "`fetch_arc` of a `String` over a `redis::Client` with `near_cache(NearCacheConfig::max_bytes(64 << 20))`; fresh for \
        600 s, otherwise defaults. Its hits come from its memory",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move { Ok(Box::new(FetchContext::shared(near(Client::open(url)?), origin)) as _) })
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
    how: "`fetch_arc` over `StampedeGuard::in_memory()`; fresh for 600 s, otherwise defaults",
    kind: Kind::Local,
    make: |Setting { origin, .. }| {
        Box::pin(async move {
            let guard = StampedeGuard::in_memory().policy(Policy::fresh_for(TTL));
            Ok(Box::new(FetchContext::shared(guard, origin)) as _)
        })
    },
};

pub(crate) fn guard(client: Client) -> StampedeGuard {
    StampedeGuard::new(client).policy(Policy::fresh_for(TTL))
}

pub(crate) fn near(client: Client) -> StampedeGuard {
    guard(client).near_cache(NearCacheConfig::max_bytes(64 << 20))
}

struct FetchContext {
    guard: StampedeGuard,
    origin: Origin,
    /// The view whose hits share the decoded value.
    shared: Option<Cache<String>>,
}

impl FetchContext {
    fn shared(guard: StampedeGuard, origin: Origin) -> Self {
        let shared = Some(guard.cache("value"));
        Self { guard, origin, shared }
    }
}

impl Subject for FetchContext {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (guard, shared) = (self.guard.clone(), self.shared.clone());
        let (origin, key) = (self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let call = {
                let key = key.clone();
                async move || origin.value(&key).await
            };
            let length = match shared {
                Some(values) => values.entry(key).fetch_arc(call).await.map(|value| value.len()),
                None => guard.fetch(key, call).await.map(|value: String| value.len()),
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
