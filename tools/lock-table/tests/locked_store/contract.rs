//! The contract of `Store`, checked under a lock of each kind.

use crate::{others, store_suite, suite::LONG, support::RedisServer};
use lock_table::{ExistsSetex, LabRecipe, LockedStore, Redlock, SetMembership};
use stampede_guard::lock::{FencedLock, SetPx};

store_suite!(under_set_px, locked(SetPx));
store_suite!(under_fenced_lock, locked(FencedLock));
store_suite!(under_set_membership, locked(SetMembership::with_expiry()));
store_suite!(under_exists_setex, locked(ExistsSetex));
store_suite!(under_redlock, locked(Redlock::with(others().each_ref().map(RedisServer::client)).server_timeout(LONG)));

/// Returns a store over the recipe. The herds cover all recipes; two kinds are left out here.
///
/// If a recipe cannot extend its lock, a lease lives as long as the lock, but the suite relies on the requested lease
/// TTL. A recipe that releases by `WATCH` connects first, which on a busy machine outlasts the shortest failure marker.
fn locked(recipe: impl LabRecipe) -> LockedStore {
    LockedStore::new(RedisServer::shared().client(), recipe).expect("the recipe is accepted")
}
