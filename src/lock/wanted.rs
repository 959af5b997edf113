//! A lock that somebody wants: one attempt, attempts at intervals, a place in the queue.

mod queueing;

use super::{
    Lock, LockError, LockErrorKind, LockGuard,
    behind::{self, Behind},
    guard::Granted,
    handle::Patience,
    recipe::{Attempt, Busy, Claim},
};
use crate::{
    clock::{self, Timestamp},
    key::{Address, Key},
    lease::Hold,
    store::{BoxFuture, StoreError},
};
use std::{future::Future, sync::Arc, time::Duration};

pub(super) struct Wanted<'a> {
    lock: &'a Lock,
    name: Arc<str>,
    at: Address,
}

impl<'a> Wanted<'a> {
    /// Nothing is sent for what cannot be a lock.
    pub(super) fn new(lock: &'a Lock, name: &str) -> Result<Self, LockError> {
        let shown: Arc<str> = if name.len() <= MAX_NAME { name.into() } else { cut(name).into() };
        let refused = |reason| Err(LockError::new(LockErrorKind::Input, &shown, reason));
        if name.is_empty() {
            return refused("a lock needs a name");
        }
        if name.len() > MAX_NAME {
            return refused("a name has 1,024 bytes at most");
        }
        if name.chars().any(char::is_control) {
            return refused("a name has no control characters");
        }
        accept_ttl(&shown, lock.config.ttl)?;
        let at = Address::new(lock.config.namespace.clone(), 0, Key::from(name));
        Ok(Self { lock, name: shown, at })
    }

    /// One attempt; an inner error if somebody else holds it.
    ///
    /// Dropped at its await, it goes on behind, and what it is granted is released.
    pub(super) async fn attempt(&self) -> Result<Result<LockGuard, Busy>, LockError> {
        let (claim, sent) = (self.claim(), Timestamp::now());
        let token = claim.token;
        let doing = Behind::new(&self.lock.hub.behind, self.lock.config.recipe.attempt(claim), given_to_nobody);
        match within(self.lock.config.op_timeout, doing).await {
            Ok(Attempt::Acquired { held, valid }) if Timestamp::now() < sent.after(valid) => {
                Ok(Ok(self.guard(Granted { token, held, from: sent, valid })))
            }
            // Heard of too late: by now it may be somebody else's.
            Ok(Attempt::Acquired { held, .. }) => {
                behind::spawn(&self.lock.hub.behind, async move { drop(held.release().await) });
                Ok(Err(Busy::default()))
            }
            Ok(Attempt::Busy(busy)) => Ok(Err(busy)),
            Err(error) => Err(LockError::store(&self.name, "the server did not say whether it was acquired", error)),
        }
    }

    pub(super) async fn acquire(&self) -> Result<LockGuard, LockError> {
        let (patience, queue) = (self.lock.config.patience, self.lock.config.recipe.queue());
        match (patience, queue) {
            (Patience::Wait(budget), Some(queue)) if queue.begins_with_its_script() => {
                self.queue(queue, budget, None).await
            }
            _ => match (self.attempt().await?, patience, queue) {
                (Ok(guard), ..) => Ok(guard),
                (Err(busy), Patience::Wait(budget), Some(queue)) => self.queue(queue, budget, Some(busy)).await,
                _ => self.spin().await,
            },
        }
    }

    pub(super) async fn check(&self) -> Result<(), LockError> {
        let mut turns = self.turns();
        loop {
            let looked = self.lock.config.recipe.look(self.claim());
            match within(self.lock.config.op_timeout, looked).await {
                Ok(Hold::Lost) => return Ok(()),
                Ok(Hold::Held) => {}
                Err(error) => return Err(LockError::store(&self.name, "the server did not say who holds it", error)),
            }
            if !turns.next().await {
                return Err(LockError::new(LockErrorKind::Held, &self.name, "somebody holds it"));
            }
        }
    }

    /// Tries again and again. The first attempt was made.
    async fn spin(&self) -> Result<LockGuard, LockError> {
        let (mut turns, mut failed) = (self.turns(), None);
        while turns.next().await {
            match self.attempt().await {
                Ok(Ok(guard)) => return Ok(guard),
                Ok(Err(_)) => failed = None,
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| self.busy()))
    }

    fn guard(&self, granted: Granted) -> LockGuard {
        LockGuard::new(self.lock, self.name.clone(), granted)
    }

    fn claim(&self) -> Arc<Claim> {
        let (hub, config) = (self.lock.hub.clone(), &self.lock.config);
        let (at, token) = (self.at.clone(), hub.token());
        Arc::new(Claim { hub, at, token, ttl: config.ttl, fair: config.fair })
    }

    fn busy(&self) -> LockError {
        let reason = match self.lock.config.patience {
            Patience::Retries(0) => "somebody else holds it".to_owned(),
            Patience::Retries(n) => format!("somebody else held it at {} attempts", n.saturating_add(1)),
            Patience::Wait(budget) => format!("somebody else held it for the whole wait of {budget:?}"),
        };
        LockError::new(LockErrorKind::Acquisition, &self.name, reason)
    }

    /// Until the next attempt.
    fn pause(&self) -> Duration {
        self.lock.config.delay.unwrap_or_else(|| self.lock.config.recipe.delay(clock::draw()))
    }

    fn turns(&self) -> Turns<'_> {
        let left = match self.lock.config.patience {
            Patience::Retries(n) => Left::Turns(n),
            Patience::Wait(budget) => Left::Until(Timestamp::now().after(budget)),
        };
        Turns { wanted: self, left }
    }
}

/// The pauses between attempts.
struct Turns<'a> {
    wanted: &'a Wanted<'a>,
    left: Left,
}

enum Left {
    Turns(u32),
    Until(Timestamp),
}

impl Turns<'_> {
    /// Waits for the next turn; `false` if there is none.
    async fn next(&mut self) -> bool {
        let mut pause = self.wanted.pause();
        match &mut self.left {
            Left::Turns(0) => return false,
            Left::Turns(n) => *n -= 1,
            Left::Until(until) => match until.since(Timestamp::now()) {
                Duration::ZERO => return false,
                left => pause = pause.min(left),
            },
        }
        tokio::time::sleep(pause).await;
        true
    }
}

/// What is done with a lock that was granted when nobody waited for it any more.
pub(crate) fn given_to_nobody(attempt: Result<Attempt, StoreError>) -> Option<BoxFuture<'static, ()>> {
    match attempt {
        Ok(Attempt::Acquired { held, .. }) => Some(Box::pin(async move { drop(held.release().await) })),
        _ => None,
    }
}

/// An operation of the server, for no longer than that.
pub(super) async fn within<T>(
    most: Duration,
    doing: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(most, doing).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::timed_out(format!("no answer within {most:?}"))),
    }
}

pub(super) fn accept_ttl(name: &Arc<str>, ttl: Duration) -> Result<(), LockError> {
    if ttl < Duration::from_millis(1) {
        let reason = format!("a ttl of {ttl:?} is over before it begins: it has to be a millisecond at least");
        return Err(LockError::new(LockErrorKind::Input, name, reason));
    }
    Ok(())
}

/// The beginning of a name that is too long to be shown.
fn cut(name: &str) -> String {
    let shown: String = name.chars().take(32).collect();
    format!("{shown}.. ({} bytes)", name.len())
}

/// Bytes.
const MAX_NAME: usize = 1024;
