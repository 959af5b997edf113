//! A value that changes, and those who wait for a change of it.
//!
//! In place of `tokio::sync::watch`, which spreads those who wait at random and wakes them in that order. Here they are
//! woken in the order in which they came: who came first goes on first, and a simulation of many processes repeats
//! itself from its seed.

use crate::sync::{Mutex, MutexGuard};
use std::{
    mem,
    sync::{Arc, PoisonError},
};
use tokio::sync::Notify;

/// The side that changes the value.
pub(crate) struct Sender<T>(Arc<Watched<T>>);

/// The side that waits.
pub(crate) struct Receiver<T>(Arc<Watched<T>>);

struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(Watched { value: Mutex::new(value), changed: Notify::new() }))
    }

    pub(crate) fn subscribe(&self) -> Receiver<T> {
        Receiver(self.0.clone())
    }

    pub(crate) fn receiver_count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    pub(crate) fn is(&self, wanted: impl FnOnce(&T) -> bool) -> bool {
        wanted(&self.0.lock())
    }

    pub(crate) fn send_replace(&self, value: T) {
        let old = mem::replace(&mut *self.0.lock(), value);
        self.0.changed.notify_waiters();
        drop(old); // not under the lock: what it drops may be the users'
    }

    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Tells nobody if `change` says that it did nothing.
    pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) {
        let modified = change(&mut self.0.lock());
        if modified {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T: Clone> Receiver<T> {
    pub(crate) fn get(&self) -> T {
        self.0.lock().clone()
    }

    /// The first value of that kind, beginning with the one that is there.
    ///
    /// Dropping the future loses nothing: the value stays.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(&T) -> bool) -> T {
        loop {
            // Before the look: it is told of every change from here on.
            let changed = self.0.changed.notified();
            if let Some(value) = self.get_if(&wanted) {
                return value;
            }
            changed.await;
        }
    }

    fn get_if(&self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        Some(self.0.lock()).filter(|value| wanted(value)).map(|value| value.clone())
    }
}

impl<T> Watched<T> {
    /// What is done to a value while it is locked does not panic.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explore;
    use shuttle::{future, thread};

    /// Seen to deadlock when it looks before it asks to be told.
    #[test]
    fn no_change_is_missed_and_no_value_is_seen_before_it_is_there() {
        explore(|| {
            let sender = Sender::new(0);
            let waiting = [1, 2].map(|wanted| {
                let receiver = sender.subscribe();
                future::spawn(async move { receiver.wait_for(|value| *value >= wanted).await })
            });
            assert_eq!(sender.receiver_count(), 2);
            let changes = thread::spawn(move || {
                sender.send_modify(|value| *value += 1);
                sender.send_if_modified(|_| false);
                sender.send_replace(2);
                assert!(sender.is(|value| *value == 2));
            });
            for (waiting, wanted) in waiting.into_iter().zip([1, 2]) {
                assert!(future::block_on(waiting).unwrap() >= wanted);
            }
            changes.join().unwrap();
        });
    }
}
