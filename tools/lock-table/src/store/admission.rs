//! The state shared by the operations of a [`LockedStore`](super::LockedStore), some of which outlive the store.

use super::{
    held_locks::{HeldLockEntry, HeldLocks},
    lead::{Arbiter, get_or_lease},
};
use crate::guarantees::LabRecipe;
use bytes::Bytes;
use stampede_guard::{
    Key, RedisStore,
    lock::{
        LeaseStatus,
        recipe::{Acquisition, DetachOnDrop, HeldState, LockClient, MessageHandler, detach},
    },
    store::{
        BoxFuture, CacheKey, FailureMarker, Inbox, Lease, LeaseReply, LeaseRequest, Store, StoreError, Timestamp,
        Token, WakeRegistry,
    },
};
use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

pub(super) struct StoreState {
    pub(super) redis: RedisStore,
    pub(super) client: Arc<LockClient>,
    pub(super) recipe: Arc<dyn LabRecipe>,
    pub(super) held_locks: HeldLocks,
}

impl StoreState {
    pub(super) fn acquisition(self: &Arc<Self>, key: &CacheKey, token: Token, ttl: Duration) -> Arc<Acquisition> {
        let lock = Key::new(key.primary()).variant(Bytes::copy_from_slice(key.hash().as_bytes()));
        let (client, key) = (self.client.clone(), CacheKey::new(key.namespace(), 0, lock));
        Arc::new(Acquisition { client, key, token, ttl })
    }

    /// Admits the holder of the lock: reads the entry again, and otherwise takes the lease, even from another holder,
    /// because the lock decides which process leads. Releases the lock unless the lease is granted.
    pub(super) async fn admit(self: Arc<Self>, request: LeaseRequest, entry: HeldLockEntry) -> Admission {
        let key = entry.key.clone();
        let answer = get_or_lease(&self.redis, Arbiter::LockAcquired, &key, request).await;
        match &answer {
            Ok(LeaseReply::Granted { lease, .. }) => self.held_locks.insert(*lease, entry),
            answer => {
                self.held_locks.remove(request.token);
                let released = self.release_held(&entry.held);
                match answer {
                    Ok(_) => released.await,
                    Err(_) => detach(&self.client.background, released), // do not wait: it may fail as well
                }
            }
        }
        Admission { shared: self, key, token: request.token, answer }
    }

    /// Releases the lease before the lock, so that the next holder of the lock finds the failure marker.
    pub(super) async fn release(
        self: Arc<Self>,
        key: CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Result<LeaseStatus, StoreError> {
        let held = self.redis.release(&key, token, failure_marker).await;
        // Keep the lock after a disconnect, because the guard then repeats the call.
        let is_cut = held.as_ref().is_err_and(StoreError::is_disconnected);
        if !is_cut && let Some(entry) = self.held_locks.remove(token) {
            self.release_held(&entry.held).await;
        }
        held
    }

    /// Extends lock and lease. If either is lost, the other one is released.
    pub(super) async fn extend(&self, key: &CacheKey, lease: Lease, span: Duration) -> Result<LeaseStatus, StoreError> {
        let Some((held, until)) = self.held_locks.get(lease) else { return self.redis.extend(key, lease, span).await };
        let now = Timestamp::now();
        let span = if !self.recipe.guarantees().extendable {
            until.since(now)
        } else if held.extend(span).await? == LeaseStatus::Held {
            self.held_locks.extended(lease, now.after(span));
            span
        } else {
            self.held_locks.take(lease);
            let _ = self.redis.release(key, lease.token, None).await;
            return Ok(LeaseStatus::Lost);
        };
        let extended = self.redis.extend(key, lease, span).await?;
        if extended == LeaseStatus::Lost {
            self.release_lock(lease).await;
        }
        Ok(extended)
    }

    pub(super) async fn release_lock(&self, lease: Lease) {
        if let Some(entry) = self.held_locks.take(lease) {
            self.release_held(&entry.held).await;
        }
    }

    /// Releases a lock. If the future is dropped, the release continues in the background. If it fails, the lock ends
    /// with its ttl.
    fn release_held(&self, held: &Arc<dyn HeldState>) -> impl Future<Output = ()> + Send + use<> {
        let released = DetachOnDrop::new(&self.client.background, held.release());
        async move { drop(released.await) }
    }
}

/// The result of an admission: the reply to the lease request of a lock holder.
pub(super) struct Admission {
    shared: Arc<StoreState>,
    key: CacheKey,
    token: Token,
    pub(super) answer: Result<LeaseReply, StoreError>,
}

impl Admission {
    /// Releases lock and lease if the caller was cancelled after the grant.
    pub(super) fn on_abandoned(self) -> Option<BoxFuture<'static, ()>> {
        let Self { shared, key, token, answer } = self;
        let release = async move { drop(shared.release(key, token, None).await) };
        matches!(answer, Ok(LeaseReply::Granted { .. })).then(|| Box::pin(release) as _)
    }
}

/// A message handler that forwards messages to the waiters of this process, and checks held locks after an
/// invalidation.
pub(super) struct MessageForwarder {
    pub(super) wakes: WakeRegistry,
    pub(super) shared: Weak<StoreState>,
}

impl MessageForwarder {
    /// Asks the server which of the suspected leases have ended, by extending them, and releases their locks.
    fn check_leases(&self, suspects: impl FnOnce(&HeldLocks) -> Vec<(Lease, CacheKey, Duration)>) {
        let Some(shared) = self.shared.upgrade() else { return };
        for (lease, key, span) in suspects(&shared.held_locks) {
            let (owner, shared) = (shared.client.background.clone(), shared.clone());
            detach(&owner, async move { drop(shared.extend(&key, lease, span).await) });
        }
    }
}

impl MessageHandler for MessageForwarder {
    fn inbox(&self) -> Inbox {
        self.wakes.inbox()
    }

    /// Checks the leases of an invalidated key: the invalidation may have ended a current lease, or only an earlier
    /// one.
    fn on_message(&self, message: &[u8]) {
        self.wakes.on_message(message);
        if let Some((b'g', hash)) = message.split_first() {
            self.check_leases(|held_locks| held_locks.under(Some(hash)));
        }
    }

    fn on_gap(&self) {
        self.wakes.on_gap();
        self.check_leases(|held_locks| held_locks.under(None));
    }
}
