//! What a store promises, checked on every store that comes with the crate.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod redis;
mod suite;

use stampede_guard::{
    MemoryStore, RedisStore,
    lock::{Fused, Recipe, SetPx},
    store::LockedStore,
};
use support::RedisServer;

store_suite!(memory, MemoryStore::default());
store_suite!(over_redis, RedisStore::new(RedisServer::shared().client()));
store_suite!(under_set_px, locked(SetPx));
store_suite!(under_fused, locked(Fused));

fn locked(recipe: impl Recipe) -> LockedStore {
    LockedStore::new(RedisServer::shared().client(), recipe).expect("a crash frees it")
}
