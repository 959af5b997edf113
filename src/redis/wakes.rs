//! Wake-ups of waiters by messages from other processes.

use super::connection::subscriber::MessageHandler;
use crate::{
    key::KeyHash,
    store::{token::Inbox, wake::WakeRegistry},
};

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
