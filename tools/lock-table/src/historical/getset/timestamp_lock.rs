//! For the historical recipe `GetSet`: a held lock whose value is only the time at which it ends.

use super::wall_clock::{WallClock, millis};
use stampede_guard::{
    lock::{
        LeaseStatus,
        recipe::{Acquisition, HeldState, LockFuture, held_if, number},
    },
    store::StoreError,
};
use std::{fmt, sync::Arc};

pub(super) struct TimestampLock {
    pub(super) acquisition: Arc<Acquisition>,
    pub(super) name: String,
    pub(super) clock: WallClock,
    pub(super) until: u64,
}

impl TimestampLock {
    fn is_over(&self) -> bool {
        self.until <= millis((self.clock)())
    }
}

impl fmt::Debug for TimestampLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimestampLock").field("name", &self.name).field("until", &self.until).finish_non_exhaustive()
    }
}

impl HeldState for TimestampLock {
    /// Deletes the key only before its time is over, because another client may hold the lock afterwards.
    fn release(&self) -> LockFuture<LeaseStatus> {
        let (acquisition, name, is_over) = (self.acquisition.clone(), self.name.clone(), self.is_over());
        Box::pin(async move {
            if is_over {
                return Ok(LeaseStatus::Lost);
            }
            Ok(held_if(number(&acquisition.client.send(redis::cmd("DEL").arg(name)).await?)? == 1))
        })
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        if self.is_over() {
            return Box::pin(async { Ok::<_, StoreError>(LeaseStatus::Lost) });
        }
        let (acquisition, mut exists) = (self.acquisition.clone(), redis::cmd("EXISTS"));
        exists.arg(&self.name);
        Box::pin(async move { Ok(held_if(number(&acquisition.client.send(&exists).await?)? == 1)) })
    }
}
