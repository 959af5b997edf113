//! `SET NX PX` on N independent servers: a client that acquires a majority of them in time holds the lock.
//!
//! Use it if one Redis server is not reliable enough and several independent servers, for example five, are available.

use crate::guarantees::{Guarantees, LabRecipe, all_except};
use crate::token_lock::TokenLock;
use futures_util::future::join_all;
use stampede_guard::{
    lock::{
        IntoEndpoint, LeaseStatus, Recipe,
        recipe::{Acquisition, Attempt, Busy, HeldState, LockClient, LockFuture},
    },
    store::{BoxFuture, StoreError, Timestamp},
};
use std::{iter::once, sync::Arc, time::Duration};
use tokio::time::timeout;

/// A lock on a majority of several independent servers.
///
/// Use it if one Redis server is not reliable enough and several independent servers are available.
///
/// Origin: named by the page of `SETNX` (seed 003). The algorithm is the one of the Redis documentation, with its drift
/// allowance of 1% of the ttl plus 2 ms. Retries follow after a random delay of at most 200 ms.
///
/// Known failure: a server that restarts without its data, within the ttl of a lock that it had granted, can join a
/// second majority. Keep such a server offline for longer than the longest ttl, or let it write every command to disk
/// before it replies. As with every recipe, a holder that is paused for longer than the ttl may still believe that it
/// holds the lock. No single server could compare its token.
#[derive(Clone, Debug)]
pub struct Redlock {
    others: Arc<[Arc<LockClient>]>,
    server_timeout: Duration,
}

impl Redlock {
    /// Creates the recipe over the server of the [`Lock`](stampede_guard::Lock) and `others`. Their total number should be odd,
    /// and no server may be a replica of another.
    #[must_use]
    pub fn with<S: IntoEndpoint>(others: impl IntoIterator<Item = S>) -> Self {
        let others = others.into_iter().map(|server| Arc::new(LockClient::new(&server.into_endpoint(), &[]))).collect();
        Self { others, server_timeout: Duration::from_millis(50) }
    }

    /// Sets the maximum time that each server may take to reply. Default: 50 ms.
    ///
    /// Keep it much shorter than the ttl, so that a server that is down does not use up the ttl. Keep it below half of
    /// the [`store_timeout`](stampede_guard::Lock::store_timeout), because a failed attempt needs it twice: to acquire, and to
    /// release.
    #[must_use]
    pub fn server_timeout(self, most: Duration) -> Self {
        Self { server_timeout: most, ..self }
    }

    fn quorum(&self, acquisition: &Acquisition) -> Quorum {
        let name = acquisition.name("redlock");
        let on = |client: &Arc<LockClient>| {
            let acquisition = Acquisition { client: client.clone(), ..acquisition.clone() };
            TokenLock::new(Arc::new(acquisition), name.clone())
        };
        let locks = once(&acquisition.client).chain(&*self.others).map(on).collect();
        Quorum { locks, server_timeout: self.server_timeout }
    }
}

impl Recipe for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn delay(&self, random_unit: f64) -> Duration {
        Duration::from_millis(200).mul_f64(random_unit)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let (quorum, ttl) = (self.quorum(&acquisition), acquisition.ttl);
        Box::pin(async move {
            let begun = Timestamp::now();
            let votes = quorum.vote(|lock| Box::pin(lock.clone().set())).await;
            let valid = ttl.saturating_sub(quorum.margin(ttl));
            if votes.held >= votes.majority() && Timestamp::now().since(begun) < valid {
                return Ok(Attempt::acquired(quorum, valid));
            }
            // Release on every server, because a server that did not reply may have set the key.
            quorum.vote(|lock| lock.release()).await;
            votes.check_answered()?;
            Ok(Attempt::Busy(Busy::default()))
        })
    }
}

impl LabRecipe for Redlock {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| guarantees.fenceable = false)
    }
}

/// A lock on several servers, held while a majority of them holds it.
#[derive(Debug)]
struct Quorum {
    locks: Vec<TokenLock>,
    server_timeout: Duration,
}

impl Quorum {
    /// Runs the operation on all servers concurrently, each with the server timeout.
    fn vote(&self, operation: impl Fn(&TokenLock) -> LockFuture<LeaseStatus>) -> BoxFuture<'static, Votes> {
        let (requests, server_timeout): (Vec<_>, _) = (self.locks.iter().map(operation).collect(), self.server_timeout);
        Box::pin(async move {
            // Start the timeouts in the future, because a guard may be dropped outside of a runtime with a timer.
            let replies = join_all(requests.into_iter().map(|request| timeout(server_timeout, request))).await;
            let count =
                |status| replies.iter().filter(|reply| matches!(reply, Ok(Ok(given)) if *given == status)).count();
            Votes { held: count(LeaseStatus::Held), lost: count(LeaseStatus::Lost), servers: replies.len() }
        })
    }

    /// Returns `Held` if a majority holds the lock, `Lost` if no majority can, and an error if the replies do not
    /// decide.
    fn decide(&self, operation: impl Fn(&TokenLock) -> LockFuture<LeaseStatus>) -> LockFuture<LeaseStatus> {
        let votes = self.vote(operation);
        Box::pin(async move {
            let votes = votes.await;
            match votes {
                Votes { held, .. } if held >= votes.majority() => Ok(LeaseStatus::Held),
                Votes { lost, servers, .. } if servers - lost < votes.majority() => Ok(LeaseStatus::Lost),
                _ => Err(votes.too_few()),
            }
        })
    }
}

impl HeldState for Quorum {
    fn release(&self) -> LockFuture<LeaseStatus> {
        self.decide(|lock| lock.release())
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        self.decide(|lock| lock.extend(ttl))
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        self.decide(|lock| lock.check())
    }

    /// Returns 1% of the ttl, for clocks that run at different speeds, plus 2 ms.
    fn margin(&self, ttl: Duration) -> Duration {
        ttl / 100 + Duration::from_millis(2)
    }
}

/// The replies of the servers. A server that failed or did not reply in time has no vote.
struct Votes {
    held: usize,
    lost: usize,
    servers: usize,
}

impl Votes {
    fn majority(&self) -> usize {
        self.servers / 2 + 1
    }

    /// Returns an error unless a majority of the servers answered.
    fn check_answered(&self) -> Result<(), StoreError> {
        if self.held + self.lost < self.majority() { Err(self.too_few()) } else { Ok(()) }
    }

    fn too_few(&self) -> StoreError {
        StoreError::new(format!("{} of {} servers answered in time", self.held + self.lost, self.servers))
    }
}
