//! A value that tasks watch for changes.
//!
//! In place of `tokio::sync::watch`, which wakes its waiters in random order. This one wakes them in the order of their
//! arrival. So the first to come goes on first, and a simulation of many processes repeats itself from its seed.

use super::mutex::Mutex;
use std::{mem, sync::Arc};
use tokio::sync::Notify;

/// The half that changes the value.
pub(crate) struct Sender<T>(Arc<Watched<T>>);

/// The half that waits for changes.
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

    pub(crate) fn is(&self, condition: impl FnOnce(&T) -> bool) -> bool {
        condition(&self.0.value.lock())
    }

    pub(crate) fn send_replace(&self, value: T) {
        let old = mem::replace(&mut *self.0.value.lock(), value);
        self.0.changed.notify_waiters();
        drop(old); // not under the lock: it may drop values of the user
    }

    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value, and wakes the receivers if `change` returns `true`.
    pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) {
        let modified = change(&mut self.0.value.lock());
        if modified {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T: Clone> Receiver<T> {
    pub(crate) fn get(&self) -> T {
        self.0.value.lock().clone()
    }

    /// Waits for a value for which `condition` is true, and returns it. The current value counts.
    ///
    /// Cancel safe: the value stays.
    pub(crate) async fn wait_for(&self, condition: impl Fn(&T) -> bool) -> T {
        loop {
            // Registered before the value is read, so that every later change is noticed.
            let changed = self.0.changed.notified();
            if let Some(value) = self.get_if(&condition) {
                return value;
            }
            changed.await;
        }
    }

    fn get_if(&self, condition: impl Fn(&T) -> bool) -> Option<T> {
        Some(self.0.value.lock()).filter(|value| condition(value)).map(|value| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::explore;
    use shuttle::{future, thread};

    /// Seen to deadlock when the receiver reads the value before it registers.
    #[test]
    fn watch_receiver_sees_each_change_and_no_value_too_early() {
        explore(|| {
            let sender = Sender::new(0);
            let waiting = [1, 2].map(|condition| {
                let receiver = sender.subscribe();
                future::spawn(async move { receiver.wait_for(|value| *value >= condition).await })
            });
            assert_eq!(sender.receiver_count(), 2);
            let changes = thread::spawn(move || {
                sender.send_modify(|value| *value += 1);
                sender.send_if_modified(|_| false);
                sender.send_replace(2);
                assert!(sender.is(|value| *value == 2));
            });
            for (waiting, condition) in waiting.into_iter().zip([1, 2]) {
                assert!(future::block_on(waiting).unwrap() >= condition);
            }
            changes.join().unwrap();
        });
    }
}
