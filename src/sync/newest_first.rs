//! A limit on concurrent work, whose queue serves the newest first.
//!
//! Replaces `tokio::sync::Semaphore`, which serves the oldest first. If work arrives faster than the limit allows, the
//! clients of the oldest work in the queue are about to leave. All permits would then be spent on unused results.

use super::mutex::Mutex;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::oneshot;

/// A limit: the permits, and the queue for them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NewestFirst(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// In order of arrival.
    waiting: BTreeMap<u64, oneshot::Sender<Permit>>,
    last: u64,
}

/// A permit. On drop it goes to the newest in the queue.
#[derive(Debug)]
pub(crate) struct Permit(NewestFirst);

/// A place in the queue, which is left on drop.
struct Place<'a> {
    permits: &'a NewestFirst,
    number: u64,
}

impl NewestFirst {
    pub(crate) fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue { free: permits, waiting: BTreeMap::new(), last: 0 })))
    }

    /// Returns a permit if one is free.
    pub(crate) fn try_acquire(&self) -> Option<Permit> {
        let mut queue = self.0.lock();
        queue.free = queue.free.checked_sub(1)?;
        Some(Permit(self.clone()))
    }

    /// Waits for a permit.
    ///
    /// Cancel safe: a permit that has just arrived goes to the next one in the queue.
    pub(crate) async fn acquire(&self) -> Permit {
        let (send, arrived) = oneshot::channel();
        let _place = {
            let mut queue = self.0.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Permit(self.clone());
            }
            queue.last += 1;
            let number = queue.last;
            queue.waiting.insert(number, send);
            Place { permits: self, number }
        };
        arrived.await.expect("the queue keeps the sender until the place is served or left")
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.permits.0.lock().waiting.remove(&self.number);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queue = self.0.0.lock();
        match queue.waiting.pop_last() {
            None => queue.free += 1,
            Some((_, newest)) => {
                // If the receiver has just left the queue, this drops the permit, which takes the lock to pass it on.
                drop(queue);
                let _ = newest.send(Self(self.0.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::schedules::explore;
    use futures_util::{FutureExt, poll};
    use shuttle::future;

    #[tokio::test]
    async fn newest_in_the_queue_gets_the_permit() {
        let permits = NewestFirst::new(1);
        let held = permits.acquire().await;
        assert!(permits.try_acquire().is_none());
        let mut queue = [(); 3].map(|()| Box::pin(permits.acquire()));
        for place in &mut queue {
            assert!(poll!(place).is_pending());
        }
        let [oldest, left, newest] = queue;
        drop(held);
        drop(newest.now_or_never().expect("the newest is served"));
        drop(left);
        drop(oldest.now_or_never().expect("the permit is free again"));
        assert!(permits.try_acquire().is_some());
    }

    /// Seen to fail when a permit that was sent to a dropped place is forgotten.
    #[test]
    fn no_permit_is_lost_or_doubled() {
        explore(|| {
            let permits = NewestFirst::new(1);
            let users = [(); 3].map(|()| {
                let permits = permits.clone();
                future::spawn(async move {
                    let permit = permits.acquire().await;
                    assert!(permits.try_acquire().is_none());
                    future::yield_now().await;
                    drop(permit);
                })
            });
            users[1].abort();
            for user in users {
                let _ = future::block_on(user);
            }
            assert_eq!(permits.0.lock().free, 1);
        });
    }
}
