//! Waiting in the queue of a lock until the wait timeout.

use super::Acquire;
use crate::{
    clock::{self, Timestamp},
    lock::{
        attempt::{Acquisition, Attempt, Busy, Registration, release_with_retry},
        client::{Notification, WaitHandle},
        error::LockError,
        guard::{Grant, LockGuard},
        limits::with_timeout,
        queue::Queue,
    },
    sync::detach::detach,
};
use std::{sync::Arc, time::Duration};

impl Acquire<'_> {
    /// Waits in the queue. `busy` is the result of a first attempt.
    ///
    /// Cancel safe: the drop of [`QueuedWaiter`] leaves the queue, and releases a lock that was handed over in between.
    pub(super) async fn wait_in_queue(
        &self,
        queue: Queue,
        wait_timeout: Duration,
        busy: Option<Busy>,
    ) -> Result<LockGuard, LockError> {
        let until = Timestamp::now().after(wait_timeout);
        let acquisition = self.acquisition();
        let (token, ttl) = (acquisition.token, acquisition.ttl);
        let handle = self.client.register_waiter(token); // before the first request, so that no message is missed
        let mut waiter = QueuedWaiter { handle, queue, acquisition: Some(acquisition.clone()) };
        // The last reply of the server, and the time at which its request was sent.
        let mut last_reply = busy.map(|busy| (Timestamp::now(), busy));
        loop {
            let registration = match self.client.can_receive_messages().await {
                true => Registration::Notified,
                false => Registration::Polling,
            };
            let (sent, mut failed) = (Timestamp::now(), None);
            let attempt = queue.acquire(acquisition.clone(), registration);
            match with_timeout(self.config.store_timeout, attempt).await {
                Ok(Attempt::Acquired { held, valid }) if Timestamp::now() < sent.after(valid) => {
                    waiter.acquisition = None;
                    return Ok(self.guard(Grant { token, held, from: sent, valid }));
                }
                // The reply arrived after the validity had ended.
                Ok(Attempt::Acquired { .. }) => last_reply = Some((sent, Busy::default())),
                Ok(Attempt::Busy(busy)) => last_reply = Some((sent, busy)),
                Err(error) => failed = Some(self.unconfirmed(error)),
            }
            let left = until.since(Timestamp::now());
            // An error before the first reply ends the wait. A later one is retried until the timeout.
            let Some((requested, busy)) = last_reply.filter(|_| !left.is_zero()) else {
                return Err(failed.unwrap_or_else(|| self.busy()));
            };
            let pause = self.pause_in_queue(registration, busy).min(left);
            let notification = tokio::time::timeout(pause, waiter.handle.notified()).await;
            if let Ok(Notification::HandedOver { stamp }) = notification
                && let Some(from) = valid_from(stamp, requested, busy, Timestamp::now(), ttl)
            {
                waiter.acquisition = None;
                let held = queue.handed_over(acquisition, stamp);
                return Ok(self.guard(Grant { token, held, from, valid: ttl }));
            }
        }
    }

    /// Returns the pause before the next request, unless a message arrives earlier.
    fn pause_in_queue(&self, registration: Registration, last_reply: Busy) -> Duration {
        let pause = match (registration, last_reply) {
            (Registration::Notified, Busy { is_notified: true, remaining, .. }) => {
                remaining.map_or(MAX_POLL_INTERVAL, |remaining| remaining.saturating_add(jitter()))
            }
            _ => self.pause(),
        };
        pause.min(MAX_POLL_INTERVAL)
    }
}

/// A waiter in the queue. Dropping it leaves the queue.
struct QueuedWaiter {
    handle: WaitHandle,
    queue: Queue,
    /// `None` once the lock is acquired.
    acquisition: Option<Arc<Acquisition>>,
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        if let Some(acquisition) = self.acquisition.take() {
            let leave = || self.queue.leave(acquisition.clone());
            let leaving = release_with_retry(leave(), Some(leave()));
            detach(&acquisition.client.background, async move { drop(leaving.await) });
        }
    }
}

/// Returns the start of the validity of a lock that the server handed over at `stamp`. `None` if the validity has ended,
/// or if the message is about an earlier hand-over. `busy` is the last reply of the server, to a request sent at `sent`.
fn valid_from(stamp: u64, sent: Timestamp, busy: Busy, received: Timestamp, ttl: Duration) -> Option<Timestamp> {
    let now = busy.now?;
    // The server read `now` after `sent`, so `sent + (stamp - now)` is not later than the hand-over.
    // The minimum with `received` covers a server clock that was set forward between the two readings.
    let from = sent.after(Duration::from_micros(stamp.saturating_sub(now))).min(received);
    // A stamp before `now` belongs to an earlier hand-over: the server has since replied that another client holds the
    // lock.
    (stamp >= now && received < from.after(ttl)).then_some(from)
}

/// Returns a random pause of 1 ms to 11 ms, so that the waiters of a crashed holder do not retry at the same time.
fn jitter() -> Duration {
    Duration::from_millis(1) + Duration::from_millis(10).mul_f64(clock::random_unit())
}

/// Maximum time between two requests of a waiter, and so the maximum delay after a lost message. `hand_over.lua` skips
/// a waiter that has sent no request for three times as long (`stale_us`).
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
