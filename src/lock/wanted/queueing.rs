//! Waiting in a queue, for as long as the wait budget lasts.

use super::{
    super::{
        LockError, LockGuard, behind,
        guard::Granted,
        hub::{Seat, Told},
        queue::Queue,
        recipe::{Attempt, Busy, Claim, Place, give_back},
    },
    Wanted, within,
};
use crate::clock::{self, Timestamp};
use std::{sync::Arc, time::Duration};

impl Wanted<'_> {
    /// Waits in the queue. `busy` is what a first attempt has found.
    ///
    /// Dropped at any await, [`Queueing`] leaves the queue, and gives back what was handed over meanwhile.
    pub(super) async fn queue(
        &self,
        queue: Queue,
        budget: Duration,
        busy: Option<Busy>,
    ) -> Result<LockGuard, LockError> {
        let until = Timestamp::now().after(budget);
        let claim = self.claim();
        let (token, ttl) = (claim.token, claim.ttl);
        let seat = self.lock.hub.seat(token); // before the server can say anything
        let mut queueing = Queueing { seat, queue, claim: Some(claim.clone()) };
        // What the server has said last, and when that was asked.
        let mut known = busy.map(|busy| (Timestamp::now(), busy));
        loop {
            let place = if self.lock.hub.is_woken().await { Place::Woken } else { Place::Polling };
            let (sent, mut failed) = (Timestamp::now(), None);
            match within(self.lock.config.op_timeout, queue.acquire(claim.clone(), place)).await {
                Ok(Attempt::Acquired { held, valid }) if Timestamp::now() < sent.after(valid) => {
                    queueing.claim = None;
                    return Ok(self.guard(Granted { token, held, from: sent, valid }));
                }
                // Heard of too late.
                Ok(Attempt::Acquired { .. }) => {
                    known = Some((sent, Busy { remaining: Some(Duration::ZERO), now: None }));
                }
                Ok(Attempt::Busy(busy)) => known = Some((sent, busy)),
                Err(error) => {
                    let error = LockError::store(&self.name, "the server did not say whether it was acquired", error);
                    if known.is_none() {
                        return Err(error);
                    }
                    failed = Some(error);
                }
            }
            let left = until.since(Timestamp::now());
            if left.is_zero() {
                return Err(failed.unwrap_or_else(|| self.busy()));
            }
            let pause = match (place, known) {
                (Place::Polling, _) => self.pause(),
                (_, Some((_, Busy { remaining: Some(remaining), .. }))) => remaining.saturating_add(spread()),
                _ => IN_CASE,
            };
            let told = tokio::time::timeout(pause.min(IN_CASE).min(left), queueing.seat.told()).await;
            if let (Ok(Told::HandedOver { stamp }), Some((asked, Busy { now: Some(now), .. }))) = (told, known) {
                // The server's clock was `now` after that was asked: it was handed over that much later, or later still,
                // but not after we have heard of it, unless that clock was set.
                let heard = Timestamp::now();
                let from = asked.after(Duration::from_micros(stamp.saturating_sub(now))).min(heard);
                // Since an earlier hand-over the server has said that somebody else holds it.
                if stamp >= now && heard < from.after(ttl) {
                    queueing.claim = None;
                    let held = queue.handed_over(claim, stamp);
                    return Ok(self.guard(Granted { token, held, from, valid: ttl }));
                }
            }
        }
    }
}

/// Waits in a queue. Dropped, it leaves the queue.
struct Queueing {
    seat: Seat,
    queue: Queue,
    /// None if it holds the lock.
    claim: Option<Arc<Claim>>,
}

impl Drop for Queueing {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let leaving = give_back(self.queue.leave(claim.clone()), Some(self.queue.leave(claim.clone())));
            behind::spawn(&claim.hub.behind, async move { drop(leaving.await) });
        }
    }
}

/// So that those who wait for a holder that died do not ask at one moment.
fn spread() -> Duration {
    Duration::from_millis(1) + Duration::from_millis(10).mul_f64(clock::draw())
}

/// A lost message costs that much, and who is not heard of for three times that is taken for dead.
const IN_CASE: Duration = Duration::from_secs(1);
