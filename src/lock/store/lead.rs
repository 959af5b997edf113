//! The lease of a key under a lock: the script, with its typed function.

use crate::{
    key::CacheKey,
    redis::{connection::script::Script, store::RedisStore},
    store::{
        error::StoreError,
        lease::{LeaseReply, LeaseRequest},
    },
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
    redis.get_or_lease_by(&SCRIPT, &[arbiter], key, request).await
}

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(LEAD));
pub(crate) const LEAD: &str = include_str!("lead.lua");
