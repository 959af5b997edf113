//! Use it if one Redis server is not reliable enough and several independent servers, for example five, are available.
//!
//! `SET NX PX` on N independent servers: a client that acquires a majority of them in time holds the lock.

mod quorum;

use super::{
    attempt::{Acquisition, Attempt, Busy, HeldState, LockFuture, held_if, retry_once_if_disconnected},
    client::LockClient,
    guarantees::Guarantees,
    recipe::Recipe,
    token_lock::{self, TokenLock},
};
use crate::{
    clock::Timestamp,
    redis::connection::{
        endpoint::IntoEndpoint,
        script::{millis, unexpected},
    },
    store::{error::StoreError, lease::LeaseStatus},
};
use quorum::Quorum;
use redis::Value;
use std::{sync::Arc, time::Duration};

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
    /// Creates the recipe over the server of the [`Lock`](crate::Lock) and `others`. Their total number should be odd,
    /// and no server may be a replica of another.
    #[must_use]
    pub fn with<S: IntoEndpoint>(others: impl IntoIterator<Item = S>) -> Self {
        let others = others.into_iter().map(|server| Arc::new(LockClient::new(&server.into_endpoint(), &[]))).collect();
        Self { others, server_timeout: Duration::from_millis(50) }
    }

    /// Sets the maximum time that each server may take to reply. Default: 50 ms.
    ///
    /// Keep it much shorter than the ttl, so that a server that is down does not use up the ttl. Keep it below half of
    /// the [`store_timeout`](crate::Lock::store_timeout), because a failed attempt needs it twice: to acquire, and to
    /// release.
    #[must_use]
    pub fn server_timeout(self, most: Duration) -> Self {
        Self { server_timeout: most, ..self }
    }

    /// Returns the lock on each of the servers.
    fn on_each_server(&self, acquisition: &Acquisition) -> Arc<[TokenLock]> {
        let name = acquisition.name("redlock");
        let on = |client: &Arc<LockClient>| {
            let (client, key) = (client.clone(), acquisition.key.clone());
            let acquisition =
                Acquisition { client, key, token: acquisition.token, ttl: acquisition.ttl, fair: acquisition.fair };
            TokenLock::new(Arc::new(acquisition), name.clone())
        };
        std::iter::once(&acquisition.client).chain(&*self.others).map(on).collect()
    }
}

impl Recipe for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { fenceable: false, ..Guarantees::ALL }
    }

    fn delay(&self, random_unit: f64) -> Duration {
        Duration::from_millis(200).mul_f64(random_unit)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let held = Quorum { locks: self.on_each_server(&acquisition), server_timeout: self.server_timeout };
        Box::pin(async move {
            let (begun, ttl) = (Timestamp::now(), acquisition.ttl);
            let votes = held.vote(|on| Box::pin(set(on.acquisition().clone(), on.name().to_owned()))).await;
            let valid = ttl.saturating_sub(held.margin(ttl));
            if votes.of(LeaseStatus::Held) >= held.majority() && Timestamp::now().since(begun) < valid {
                return Ok(Attempt::acquired(held, valid));
            }
            // Release on every server, because a server that did not reply may have set the key.
            held.vote(|on| on.release()).await;
            if votes.answered() < held.majority() { Err(votes.too_few()) } else { Ok(Attempt::Busy(Busy::default())) }
        })
    }

    /// Returns `Held` unless the lock is free on a majority of the servers.
    fn check_held(&self, acquisition: Arc<Acquisition>) -> LockFuture<LeaseStatus> {
        let quorum = Quorum { locks: self.on_each_server(&acquisition), server_timeout: self.server_timeout };
        Box::pin(async move {
            let votes = quorum.vote(|on| token_lock::check_exists(on.acquisition().clone(), on.name())).await;
            if votes.answered() < quorum.majority() {
                return Err(votes.too_few());
            }
            Ok(held_if(votes.of(LeaseStatus::Lost) < quorum.majority()))
        })
    }
}

async fn set(acquisition: Arc<Acquisition>, name: String) -> Result<LeaseStatus, StoreError> {
    let mut cmd = redis::cmd("SET");
    cmd.arg(&name).arg(acquisition.token.as_bytes()).arg("NX").arg("PX").arg(millis(acquisition.ttl));
    let set = |acquisition: Arc<Acquisition>, cmd| async move {
        match acquisition.client.send(cmd).await? {
            Value::Okay => Ok(LeaseStatus::Held),
            Value::Nil => Ok(LeaseStatus::Lost),
            other => Err(unexpected(&other)),
        }
    };
    // If the first reply was lost, a key that exists may be the one this acquisition has set.
    let again = |_| async {
        match set(acquisition.clone(), &cmd).await? {
            LeaseStatus::Lost => token_lock::check_token(acquisition.clone(), &name).await,
            LeaseStatus::Held => Ok(LeaseStatus::Held),
        }
    };
    retry_once_if_disconnected(set(acquisition.clone(), &cmd), again).await
}
