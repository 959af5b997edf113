//! A lock on several servers, and the vote of their majority.

use super::super::{
    attempt::{HeldState, LockFuture, release_with_retry},
    token_lock::TokenLock,
};
use crate::store::{
    error::{BoxFuture, StoreError},
    lease::LeaseStatus,
};
use futures_util::future::join_all;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// A lock on several servers, held while a majority of them holds it.
pub(super) struct Quorum {
    pub(super) locks: Arc<[TokenLock]>,
    pub(super) server_timeout: Duration,
}

/// The reply of each server; `None` if it failed or did not reply in time.
pub(super) struct Votes(Vec<Option<LeaseStatus>>);

impl Quorum {
    pub(super) fn majority(&self) -> usize {
        self.locks.len() / 2 + 1
    }

    /// Runs the operation on all servers concurrently, each with the server timeout.
    pub(super) fn vote(&self, operation: impl Fn(&TokenLock) -> LockFuture<LeaseStatus>) -> BoxFuture<'static, Votes> {
        let (requests, server_timeout): (Vec<_>, _) = (self.locks.iter().map(operation).collect(), self.server_timeout);
        Box::pin(async move {
            // Start the timeouts in the future, because a guard may be dropped outside of a runtime with a timer.
            let votes = join_all(requests.into_iter().map(|vote| timeout(server_timeout, vote))).await;
            Votes(votes.into_iter().map(|vote| vote.ok()?.ok()).collect())
        })
    }

    /// Returns `Held` if a majority holds the lock, `Lost` if no majority can, and an error if the replies do not
    /// decide.
    fn decide(&self, operation: impl Fn(&TokenLock) -> LockFuture<LeaseStatus>) -> LockFuture<LeaseStatus> {
        let (votes, majority, all) = (self.vote(operation), self.majority(), self.locks.len());
        Box::pin(async move {
            let votes = votes.await;
            match (votes.of(LeaseStatus::Held), votes.of(LeaseStatus::Lost)) {
                (held, _) if held >= majority => Ok(LeaseStatus::Held),
                (_, lost) if all - lost < majority => Ok(LeaseStatus::Lost),
                _ => Err(votes.too_few()),
            }
        })
    }
}

impl Votes {
    pub(super) fn of(&self, vote: LeaseStatus) -> usize {
        self.0.iter().filter(|given| **given == Some(vote)).count()
    }

    pub(super) fn answered(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(super) fn too_few(&self) -> StoreError {
        StoreError::new(format!("{} of {} servers answered in time", self.answered(), self.0.len()))
    }
}

impl HeldState for Quorum {
    fn release(&self) -> LockFuture<LeaseStatus> {
        self.decide(|on| release_with_retry(on.release(), Some(on.release())))
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        self.decide(|on| on.extend(ttl))
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        self.decide(|on| on.check())
    }

    /// Returns 1% of the ttl, for clocks that run at different speeds, plus 2 ms.
    fn margin(&self, ttl: Duration) -> Duration {
        ttl / 100 + Duration::from_millis(2)
    }
}
