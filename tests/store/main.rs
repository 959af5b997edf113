//! What a store promises, checked on every store that comes with the crate.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod redis;
mod suite;

use stampede_guard::{
    MemoryStore, RedisStore,
    lock::{ExistsSetex, Fused, Recipe, Redlock, SetMembership, SetPx},
    store::LockedStore,
};
use std::sync::OnceLock;
use suite::LONG;
use support::RedisServer;

store_suite!(memory, MemoryStore::default());
store_suite!(over_redis, RedisStore::new(RedisServer::shared().client()));
store_suite!(under_set_px, locked(SetPx));
store_suite!(under_fused, locked(Fused));
store_suite!(under_set_membership, locked(SetMembership::with_expiry()));
store_suite!(under_exists_setex, locked(ExistsSetex));
store_suite!(under_redlock, locked(Redlock::with(others().each_ref().map(RedisServer::client)).server_timeout(LONG)));

/// Not of the recipes that cannot extend their locks: a lease under one of these lives as long as its lock, and not for the
/// span that was asked for, which the suite counts on. Nor of those that release by `WATCH`: they dial a connection first,
/// which on a busy machine takes longer than the suite's shortest tombstone. `tests/lock/guard` has all of them.
fn locked(recipe: impl Recipe) -> LockedStore {
    LockedStore::new(RedisServer::shared().client(), recipe).expect("a crash frees it")
}

fn others() -> &'static [RedisServer; 2] {
    static OTHERS: OnceLock<[RedisServer; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| RedisServer::start()))
}
