//! The contract of `Store`, checked on every store of the crate.
#![cfg(all(feature = "bincode", feature = "connection-manager", feature = "lock", feature = "unstable"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod ended_leases;
mod large;
mod large_hits;
mod puts;
mod redis;
mod staging;
mod suite;

use large::Large;
use stampede_guard::{IntoEndpoint, MemoryStore, RedisStore, Store};
use stampede_guard_support as support;
use support::RedisServer;

store_suite!(memory, MemoryStore::default());
store_suite!(over_redis, RedisStore::new(RedisServer::shared().client()));
store_suite!(over_redis_with_large_entries, Large(RedisStore::new(RedisServer::shared().client())));

/// Returns the store that the tests of large hits are about.
fn store_over(redis: impl IntoEndpoint) -> impl Store {
    RedisStore::new(redis)
}
