//! The lease of a key under a lock: the script, with its typed function.

use stampede_guard::{
    RedisStore,
    lock::recipe::Script,
    store::{CacheKey, LeaseReply, LeaseRequest, StoreError},
};
use std::sync::LazyLock;

/// The state of the lock for this request.
pub(super) enum Arbiter {
    /// This request has acquired the lock. It replaces a lease that is still there: under a lock the lease is only a
    /// fence.
    LockAcquired,
    /// Another process holds the lock, so nothing is granted. If there is no lease, the reply names no holder and no
    /// wake-up will come.
    LockBusy,
}

pub(super) async fn get_or_lease(
    redis: &RedisStore,
    arbiter: Arbiter,
    key: &CacheKey,
    request: LeaseRequest,
) -> Result<LeaseReply, StoreError> {
    let arbiter = match arbiter {
        Arbiter::LockAcquired => "take",
        Arbiter::LockBusy => "look",
    };
    redis.get_or_lease_by_script(&SCRIPT, &[arbiter], key, request).await
}

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));
pub(super) const TEXT: &str = include_str!("lead.lua");
