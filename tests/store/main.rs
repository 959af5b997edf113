//! The contract of `Store`, checked on every store of the crate.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod large;
mod large_hits;
mod redis;
mod staging;
mod suite;

use large::Large;
use stampede_guard::{
    MemoryStore, RedisStore,
    lock::{ExistsSetex, FencedLock, LockedStore, Recipe, Redlock, SetMembership, SetPx},
};
use stampede_guard_support as support;
use std::sync::OnceLock;
use suite::LONG;
use support::RedisServer;

store_suite!(memory, MemoryStore::default());
store_suite!(over_redis, RedisStore::new(RedisServer::shared().client()));
store_suite!(over_redis_with_large_entries, Large(RedisStore::new(RedisServer::shared().client())));
store_suite!(under_set_px, locked(SetPx));
store_suite!(under_fenced_lock, locked(FencedLock));
store_suite!(under_set_membership, locked(SetMembership::with_expiry()));
store_suite!(under_exists_setex, locked(ExistsSetex));
store_suite!(under_redlock, locked(Redlock::with(others().each_ref().map(RedisServer::client)).server_timeout(LONG)));

/// Returns a store over the recipe. `tests/lock/guard` covers all recipes; two kinds are left out here.
///
/// If a recipe cannot extend its lock, a lease lives as long as the lock, but the suite relies on the requested lease
/// TTL. A recipe that releases by `WATCH` connects first, which on a busy machine outlasts the shortest failure marker.
fn locked(recipe: impl Recipe) -> LockedStore {
    LockedStore::new(RedisServer::shared().client(), recipe).expect("the recipe is accepted")
}

fn others() -> &'static [RedisServer; 2] {
    static OTHERS: OnceLock<[RedisServer; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| RedisServer::start()))
}
