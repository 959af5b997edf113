//! Wake-ups between processes: the messages to this one, and the waiters of others that a script has left to wake.

use super::connection::{reconnecting::CommandLink, script::ScriptCall, subscriber::MessageHandler};
use crate::{
    key::KeyHash,
    store::{token::Inbox, wake::WakeRegistry},
    sync::mutex::Mutex,
};
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// A message is an outcome and a key hash. It is only a hint: a notified waiter calls `get_or_lease`.
impl MessageHandler for WakeRegistry {
    fn inbox(&self) -> Inbox {
        Self::inbox(self)
    }

    fn on_message(&self, message: &[u8]) {
        let Some((outcome, hash)) = message.split_first() else { return };
        let Ok(hash) = hash.try_into().map(KeyHash::from_bytes) else { return };
        match outcome {
            b'g' => self.invalidated(hash),
            _ => self.wake(hash),
        }
    }

    fn on_gap(&self) {
        self.wake_all();
    }
}

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
