//! A limit on concurrent work, whose queue serves the newest first.
//!
//! Replaces `tokio::sync::Semaphore`, which serves the oldest first. If work arrives faster than the limit allows, the
//! clients of the oldest work in the queue are about to leave. All permits would then be spent on unused results.

use super::mutex::Mutex;
use std::{collections::BTreeMap, fmt, sync::Arc};
use tokio::sync::oneshot;

/// A limit: the permits, and the queue for them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct NewestFirst(Arc<Mutex<Queue>>);

struct Queue {
    free: usize,
    /// In order of arrival.
    waiting: BTreeMap<u64, oneshot::Sender<Permit>>,
    last: u64,
}

/// A permit. On drop it goes to the newest in the queue.
pub(crate) struct Permit {
    /// `None` after it was passed on.
    permits: Option<NewestFirst>,
}

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
        Some(self.permit())
    }

    /// Waits for a permit.
    ///
    /// Cancel safe: a permit that has just arrived goes to the next one in the queue.
    pub(crate) async fn acquire(&self) -> Permit {
        loop {
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            let (send, arrived) = oneshot::channel();
            let place = self.enqueue(send);
            let permit = arrived.await;
            drop(place);
            if let Ok(permit) = permit {
                return permit;
            }
        }
    }

    /// Joins the queue, or sends a permit at once if one has become free.
    fn enqueue(&self, send: oneshot::Sender<Permit>) -> Place<'_> {
        let mut queue = self.0.lock();
        queue.last += 1;
        let number = queue.last;
        match queue.free.checked_sub(1) {
            None => _ = queue.waiting.insert(number, send),
            Some(free) => {
                queue.free = free;
                drop(queue); // a permit that cannot be sent is dropped, and its drop takes the lock
                let _ = send.send(self.permit());
            }
        }
        Place { permits: self, number }
    }

    fn permit(&self) -> Permit {
        Permit { permits: Some(self.clone()) }
    }

    /// Removes the newest from the queue. If the queue is empty, a permit becomes free.
    fn pop_newest(&self) -> Option<oneshot::Sender<Permit>> {
        let mut queue = self.0.lock();
        let newest = queue.waiting.pop_last();
        if newest.is_none() {
            queue.free += 1;
        }
        newest.map(|(_, send)| send)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.permits.0.lock().waiting.remove(&self.number);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(permits) = self.permits.take() else { return };
        while let Some(newest) = permits.pop_newest() {
            match newest.send(permits.permit()) {
                Ok(()) => return,
                Err(mut unused) => unused.permits = None, // the receiver has just left the queue
            }
        }
    }
}

impl fmt::Debug for NewestFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.0.lock();
        f.debug_struct("NewestFirst").field("free", &queue.free).field("waiting", &queue.waiting.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::explore;
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
