//! The waiters that a script has left to wake, in tasks of their own.

use super::connection::{reconnecting::CommandLink, script::ScriptCall};
use crate::sync::mutex::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// Wakes waiters after the operation that has ended their lease. The outcome of the operation does not depend on them,
/// and its store timeout does not cover them: up to fifteen round trips. They end with the store.
pub(super) struct Waves {
    link: Arc<dyn CommandLink>,
    running: Mutex<JoinSet<()>>,
}

impl Waves {
    pub(super) fn over(link: Arc<dyn CommandLink>) -> Self {
        Self { link, running: Mutex::default() }
    }

    /// Runs the calls one after the other, so that the server serves other clients in between. The first error ends
    /// them, because a waiter that is not woken asks again when the lease would have ended.
    pub(super) fn start(&self, calls: Vec<ScriptCall>) {
        let link = self.link.clone();
        let mut running = self.running.lock();
        while running.try_join_next().is_some() {}
        running.spawn(async move {
            for call in calls {
                if !matches!(timeout(WAVE_TIMEOUT, call.run(&*link)).await, Ok(Ok(_))) {
                    return;
                }
            }
        });
    }
}

/// Maximum time for one call. Later the waiters ask by themselves.
const WAVE_TIMEOUT: Duration = Duration::from_secs(1);
