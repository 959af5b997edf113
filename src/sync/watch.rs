//! A value that tasks watch for changes.
//!
//! In place of `tokio::sync::watch`, which wakes its waiters in random order. This one wakes them in the order of their
//! arrival. So the first to come goes on first, and a simulation of many processes repeats itself from its seed.

use super::mutex::Mutex;
use tokio::sync::Notify;

/// A value, and the tasks that wait for a change of it.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    pub(crate) fn is(&self, condition: impl FnOnce(&T) -> bool) -> bool {
        condition(&self.value.lock())
    }

    /// Changes the value, and wakes no task.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.value.lock())
    }

    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.value.lock());
        self.changed.notify_waiters();
    }

    /// Changes the value, and wakes the waiting tasks if `change` returns `true`.
    pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) {
        let modified = change(&mut self.value.lock());
        if modified {
            self.changed.notify_waiters();
        }
    }
}

impl<T: Clone> Watched<T> {
    pub(crate) fn get(&self) -> T {
        self.value.lock().clone()
    }

    /// Waits for a value for which `condition` is true, and returns it. The current value counts.
    ///
    /// Cancel safe: the value stays.
    pub(crate) async fn wait_for(&self, condition: impl Fn(&T) -> bool) -> T {
        loop {
            // Registered before the value is read, so that every later change is noticed.
            let changed = self.changed.notified();
            if let Some(value) = Some(self.value.lock()).filter(|value| condition(value)) {
                return value.clone();
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::schedules::explore;
    use shuttle::{future, thread};
    use std::sync::Arc;

    /// Seen to deadlock when a task reads the value before it registers.
    #[test]
    fn watching_task_sees_each_change_and_no_value_too_early() {
        explore(|| {
            let watched = Arc::new(Watched::new(0));
            let waiting = [1, 2].map(|condition| {
                let watched = watched.clone();
                future::spawn(async move { watched.wait_for(|value| *value >= condition).await })
            });
            let changes = thread::spawn(move || {
                watched.send_modify(|value| *value += 1);
                watched.send_if_modified(|_| false);
                watched.send_modify(|value| *value = 2);
                assert!(watched.is(|value| *value == 2));
            });
            for (waiting, condition) in waiting.into_iter().zip([1, 2]) {
                assert!(future::block_on(waiting).unwrap() >= condition);
            }
            changes.join().unwrap();
        });
    }
}
