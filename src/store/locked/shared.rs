//! What the operations of a [`LockedStore`](super::LockedStore) have in common, some of which outlive it.

use super::holdings::{Holding, Holdings};
use crate::{
    lock::{
        Recipe,
        behind::{self, Behind},
        hub::Hub,
        recipe::{Claim, Held, give_back},
    },
    store::{
        Address, Ask, BoxFuture, Hold, Inbox, Lead, Lease, RedisStore, Store, StoreError, Timestamp, Token, Tombstone,
        Wakes, redis::By,
    },
    wire::Hear,
};
use bytes::Bytes;
use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

pub(super) struct Shared {
    pub(super) redis: RedisStore,
    pub(super) hub: Arc<Hub>,
    pub(super) recipe: Arc<dyn Recipe>,
    pub(super) holdings: Holdings,
}

impl Shared {
    pub(super) fn claim(self: &Arc<Self>, at: &Address, token: Token, ttl: Duration) -> Arc<Claim> {
        let (hub, at) = (self.hub.clone(), at.in_schema(0).to_variant(Bytes::copy_from_slice(at.hash().as_bytes())));
        Arc::new(Claim { hub, at, token, ttl, fair: false })
    }

    /// Reads again, and takes the lease as well, whoever has it: the lock has decided.
    pub(super) async fn let_in(self: Arc<Self>, ask: Ask, holding: Holding) -> LetIn {
        let at = holding.at.clone();
        let answer = self.redis.lead_by(By::LockTaken, &at, ask).await;
        match &answer {
            Ok(Lead::Granted { lease, .. }) => self.holdings.insert(*lease, holding),
            answer => {
                self.holdings.remove(ask.token);
                let released = self.release(&holding.held);
                match answer {
                    Ok(_) => released.await,
                    Err(_) => behind::spawn(&self.hub.behind, released), // nor does the other connection answer, perhaps
                }
            }
        }
        LetIn { shared: self, at, token: ask.token, answer }
    }

    /// The tombstone first: who gets the lock next has to find it.
    pub(super) async fn abandon(
        self: Arc<Self>,
        at: Address,
        token: Token,
        tombstone: Option<Tombstone>,
    ) -> Result<Hold, StoreError> {
        let held = self.redis.abandon(&at, token, tombstone).await;
        // The guard sends it once more then.
        let is_cut = held.as_ref().is_err_and(StoreError::is_disconnected);
        if !is_cut && let Some(holding) = self.holdings.remove(token) {
            self.release(&holding.held).await;
        }
        held
    }

    /// What is lost on one side is given back on the other.
    pub(super) async fn extend(&self, at: &Address, lease: Lease, span: Duration) -> Result<Hold, StoreError> {
        let Some((held, until)) = self.holdings.get(lease) else { return self.redis.extend(at, lease, span).await };
        let now = Timestamp::now();
        let span = if !self.recipe.guarantees().extendable {
            until.since(now)
        } else if held.extend(span).await? == Hold::Held {
            self.holdings.extended(lease, now.after(span));
            span
        } else {
            self.holdings.take(lease);
            let _ = self.redis.abandon(at, lease.token, None).await;
            return Ok(Hold::Lost);
        };
        let extended = self.redis.extend(at, lease, span).await?;
        if extended == Hold::Lost {
            self.let_go(lease).await;
        }
        Ok(extended)
    }

    pub(super) async fn let_go(&self, lease: Lease) {
        if let Some(holding) = self.holdings.take(lease) {
            self.release(&holding.held).await;
        }
    }

    /// Releases a lock, also if it is dropped before the end. What is not released by then ends with its ttl.
    fn release(&self, held: &Arc<dyn Held>) -> impl Future<Output = ()> + Send + use<> {
        let owner_safe = self.recipe.guarantees().owner_safe;
        let doing = give_back(held.release(), owner_safe.then(|| held.release()));
        let released = Behind::new(&self.hub.behind, doing, |_| None);
        async move { drop(released.await) }
    }
}

/// What became of somebody to whom the lock was granted.
pub(super) struct LetIn {
    shared: Arc<Shared>,
    at: Address,
    token: Token,
    pub(super) answer: Result<Lead, StoreError>,
}

impl LetIn {
    /// Nobody waited for it any more.
    pub(super) fn given_up(self) -> Option<BoxFuture<'static, ()>> {
        let Self { shared, at, token, answer } = self;
        let abandoned = async move { drop(shared.abandon(at, token, None).await) };
        matches!(answer, Ok(Lead::Granted { .. })).then(|| Box::pin(abandoned) as _)
    }
}

/// Hears what the waiters of this process are told.
pub(super) struct Ears {
    pub(super) wakes: Wakes,
    pub(super) shared: Weak<Shared>,
}

impl Ears {
    /// Asks the server which of these leases are over, and releases their locks.
    fn verify(&self, suspects: impl FnOnce(&Holdings) -> Vec<(Lease, Address, Duration)>) {
        let Some(shared) = self.shared.upgrade() else { return };
        for (lease, at, span) in suspects(&shared.holdings) {
            let (owner, shared) = (shared.hub.behind.clone(), shared.clone());
            behind::spawn(&owner, async move { drop(shared.extend(&at, lease, span).await) });
        }
    }
}

impl Hear for Ears {
    fn inbox(&self) -> Inbox {
        self.wakes.inbox()
    }

    /// An invalidation has ended the lease of somebody who holds the lock, or of one before.
    fn hear(&self, message: &[u8]) {
        self.wakes.hear(message);
        if let Some((b'g', hash)) = message.split_first() {
            self.verify(|holdings| holdings.under(Some(hash)));
        }
    }

    fn missed(&self) {
        self.wakes.missed();
        self.verify(|holdings| holdings.under(None));
    }
}
