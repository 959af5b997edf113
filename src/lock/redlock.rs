//! `SET NX PX` on N servers that know nothing of each other: who has a majority of them in time holds the lock.

mod majority;

use super::{
    Guarantees, Recipe,
    hub::Hub,
    owned::{self, Owned},
    recipe::{Attempt, Busy, Claim, Doing, Held, Sealed, held_if, or_again},
};
use crate::{
    clock::Timestamp,
    lease::Hold,
    store::StoreError,
    wire::{IntoServer, millis, unexpected},
};
use majority::Majority;
use redis::Value;
use std::{sync::Arc, time::Duration};

/// A majority of several servers.
///
/// Origin: named by the page of `SETNX` (seed 003); the algorithm is that of the Redis documentation, with its drift of a
/// hundredth of the ttl and 2 ms. It tries again after a random time of up to 200 ms.
///
/// Known failure: a server that restarts without its data, within the ttl of a lock that it had granted, can be part of a
/// second majority: keep it away for longer than the longest ttl, or let it write every command to disk before it answers.
/// And no more than with the others, a holder that is paused for longer than the ttl can be kept from believing that it
/// holds the lock; there is no single place at which a token could be compared.
#[derive(Clone, Debug)]
pub struct Redlock {
    others: Arc<[Arc<Hub>]>,
    patience: Duration,
}

impl Redlock {
    /// The lock's own server, and these: an odd number together, none of them a replica of another.
    #[must_use]
    pub fn with<S: IntoServer>(others: impl IntoIterator<Item = S>) -> Self {
        let others = others.into_iter().map(|server| Arc::new(Hub::new(&server.into_server()))).collect();
        Self { others, patience: Duration::from_millis(50) }
    }

    /// How long each server may take to answer: little beside the ttl, so that one that is down does not use it up,
    /// and less than half of the [`op_timeout`](super::Lock::op_timeout), which an attempt that fails needs twice: to ask,
    /// and to give back. Default: 50 ms.
    #[must_use]
    pub fn server_timeout(self, most: Duration) -> Self {
        Self { patience: most, ..self }
    }

    /// The same lock, on each of the servers.
    fn everywhere(&self, claim: &Claim) -> Arc<[Owned]> {
        let name = claim.name("redlock");
        let on = |hub: &Arc<Hub>| {
            let (hub, at) = (hub.clone(), claim.at.clone());
            let claim = Claim { hub, at, token: claim.token, ttl: claim.ttl, fair: claim.fair };
            Owned::new(Arc::new(claim), name.clone())
        };
        std::iter::once(&claim.hub).chain(&*self.others).map(on).collect()
    }
}

impl Sealed for Redlock {}

impl Recipe for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { fenceable: false, ..Guarantees::ALL }
    }

    fn delay(&self, draw: f64) -> Duration {
        Duration::from_millis(200).mul_f64(draw)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let held = Majority { on: self.everywhere(&claim), patience: self.patience };
        Box::pin(async move {
            let (begun, ttl) = (Timestamp::now(), claim.ttl);
            let votes = held.ask(|on| Box::pin(set(on.claim().clone(), on.name().to_owned()))).await;
            let valid = ttl.saturating_sub(held.margin(ttl));
            if votes.of(Hold::Held) >= held.quorum() && Timestamp::now().since(begun) < valid {
                return Ok(Attempt::acquired(held, valid));
            }
            // Everywhere: where there was no answer it may be set all the same.
            held.ask(|on| on.release()).await;
            if votes.answered() < held.quorum() { Err(votes.too_few()) } else { Ok(Attempt::Busy(Busy::default())) }
        })
    }

    /// Held if a majority could not be had now.
    fn look(&self, claim: Arc<Claim>) -> Doing<Hold> {
        let asked = Majority { on: self.everywhere(&claim), patience: self.patience };
        Box::pin(async move {
            let votes = asked.ask(|on| owned::look(on.claim().clone(), on.name())).await;
            if votes.answered() < asked.quorum() {
                return Err(votes.too_few());
            }
            Ok(held_if(votes.of(Hold::Lost) < asked.quorum()))
        })
    }
}

async fn set(claim: Arc<Claim>, name: String) -> Result<Hold, StoreError> {
    let mut cmd = redis::cmd("SET");
    cmd.arg(&name).arg(claim.token.as_bytes()).arg("NX").arg("PX").arg(millis(claim.ttl));
    let set = |claim: Arc<Claim>, cmd| async move {
        match claim.hub.send(cmd).await? {
            Value::Okay => Ok(Hold::Held),
            Value::Nil => Ok(Hold::Lost),
            other => Err(unexpected(&other)),
        }
    };
    // What is there after a reply that was lost may be ours.
    let again = |_| async {
        match set(claim.clone(), &cmd).await? {
            Hold::Lost => owned::check(claim.clone(), &name).await,
            Hold::Held => Ok(Hold::Held),
        }
    };
    or_again(set(claim.clone(), &cmd), again).await
}
