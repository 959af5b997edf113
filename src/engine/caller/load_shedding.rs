//! Load shedding: a caller is rejected at once, because too many callers wait or the answer would come too late.

use super::Caller;
use crate::{
    clock::{self, Timestamp},
    engine::{flight::callers::Waiter, frontend::ReusePolicy},
    error::Error,
};
use std::time::Duration;
use tokio::time::Instant;

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Returns the reason why this caller must not wait, if there is one.
    pub(super) fn rejection_reason(&self, waiter: &Waiter) -> Option<Error> {
        let too_late = |deadline: Instant| {
            let remaining = deadline.saturating_duration_since(clock::deadline_after(Duration::ZERO));
            waiter.expected_end().is_some_and(|end| end.since(Timestamp::now()) > remaining)
        };
        if waiter.is_complete() {
            None // the flight is over, so there is no wait
        } else if !waiter.joined_lookup() && waiter.waiter_count() > self.resource().config.max_waiters {
            Some(Error::overloaded("the fetch has `max_waiters` waiters already"))
        } else if self.resource().deadline.is_some_and(too_late) {
            Some(Error::deadline_exceeded())
        } else {
            None
        }
    }
}
