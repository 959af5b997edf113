//! Those who wait for a lock, first come first served: a sorted set in Redis, whose first member is handed the lock by the
//! very script that releases it, and is told so by message. Nobody spins, and nobody who comes later gets in between.

use super::{
    owned,
    recipe::{Attempt, Busy, Claim, Doing, Held, Place, or_again},
};
use crate::{
    lease::Hold,
    store::StoreError,
    wire::{CHANNEL, Call, Script, millis, number, unexpected},
};
use redis::Value;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// Which lock it is that is queued for.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// What its names in Redis end with.
    pub(crate) name: &'static str,
    /// Whether the value of the lock is a token and the server's time at the grant, which makes a fencing token.
    pub(crate) stamped: bool,
}

impl Queue {
    pub(crate) fn lock(self, claim: &Claim) -> String {
        claim.name(self.name)
    }

    fn call(self, script: &Script, claim: &Claim) -> Call {
        let name = self.lock(claim);
        let mut call = script.call(&[&name, &[&name, ":queue"].concat(), &[&name, ":heard"].concat()]);
        call.arg(claim.token.as_bytes()).arg(flag(self.stamped)).arg(flag(claim.fair)).arg(CHANNEL);
        call
    }

    /// Acquires it, or takes a place in the queue if one is wanted; keeps the place that the claim has.
    pub(crate) fn acquire(self, claim: Arc<Claim>, wanted: Place) -> Doing<Attempt> {
        // The script knows its token again, and says what is left.
        let again = move |claim, before| async move { Ok(self.ask(claim, wanted).await?.begun_earlier(before)) };
        Box::pin(or_again(self.ask(claim.clone(), wanted), move |before| again(claim, before)))
    }

    async fn ask(self, claim: Arc<Claim>, wanted: Place) -> Result<Attempt, StoreError> {
        let mut call = self.call(&ACQUIRE_SCRIPT, &claim);
        call.arg(millis(claim.ttl)).arg(place(wanted));
        let answer = claim.hub.run(call).await?;
        let Value::Array(parts) = &answer else { return Err(unexpected(&answer)) };
        let [granted, pttl, stamp] = &parts[..] else { return Err(unexpected(&answer)) };
        // Less than nothing: it has no expiry, or is just gone.
        let remaining = number(pttl).ok().map(Duration::from_millis);
        if number(granted)? == 0 {
            return Ok(Attempt::Busy(Busy { remaining, now: Some(number(stamp)?) }));
        }
        let stamp = if self.stamped { Some(number(stamp)?) } else { None };
        let valid = remaining.unwrap_or_default();
        Ok(Attempt::acquired(Queued { queue: self, claim, stamp }, valid))
    }

    /// Whether there is nothing quicker to try first.
    pub(crate) fn begins_with_its_script(self) -> bool {
        self.stamped
    }

    /// What the claim holds since it was told so.
    pub(crate) fn handed_over(self, claim: Arc<Claim>, stamp: u64) -> Arc<dyn Held> {
        Arc::new(Queued { queue: self, claim, stamp: self.stamped.then_some(stamp) })
    }

    /// Gives up the lock or the place in the queue, whichever the claim has.
    pub(crate) fn leave(self, claim: Arc<Claim>) -> Doing<Hold> {
        let member = [claim.token.as_bytes(), millis(claim.ttl).as_bytes()].concat();
        self.release(claim, &member)
    }

    /// Hands it over, if the claim has it; takes `member` out of the queue.
    fn release(self, claim: Arc<Claim>, member: &[u8]) -> Doing<Hold> {
        let mut call = self.call(&RELEASE_SCRIPT, &claim);
        call.arg(member);
        claim.ask(call)
    }
}

/// A lock with a queue.
pub(crate) struct Queued {
    queue: Queue,
    claim: Arc<Claim>,
    stamp: Option<u64>,
}

impl Queued {
    pub(crate) fn new(queue: Queue, claim: Arc<Claim>) -> Self {
        Self { queue, claim, stamp: None }
    }
}

impl Held for Queued {
    fn release(&self) -> Doing<Hold> {
        self.queue.release(self.claim.clone(), b"")
    }

    fn extend(&self, ttl: Duration) -> Doing<Hold> {
        owned::extend(self.claim.clone(), &self.queue.lock(&self.claim), ttl)
    }

    fn check(&self) -> Doing<Hold> {
        owned::check(self.claim.clone(), &self.queue.lock(&self.claim))
    }

    fn fencing_token(&self) -> Option<u64> {
        self.stamp
    }
}

fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

fn place(place: Place) -> &'static str {
    match place {
        Place::None => "",
        Place::Woken => "w",
        Place::Polling => "p",
    }
}

static ACQUIRE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(ACQUIRE));
static RELEASE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE));
pub(crate) const ACQUIRE: &str = concat!(include_str!("queue/hand_over.lua"), include_str!("queue/acquire.lua"));
pub(crate) const RELEASE: &str = concat!(include_str!("queue/hand_over.lua"), include_str!("queue/release.lua"));
