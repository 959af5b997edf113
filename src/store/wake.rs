//! Who waits in this process for what, and how they hear that the wait is over.

#[cfg(test)]
mod schedules;

use crate::{
    key::{Address, KeyHash},
    lease::{Inbox, Token},
    sync::{Mutex, MutexGuard},
    watch,
};
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{Arc, PoisonError},
};

/// The waiters of one process, for stores to wake. Cheap to clone.
#[derive(Clone)]
pub struct Wakes {
    inbox: Inbox,
    table: Arc<Mutex<HashMap<KeyHash, Seat>>>,
}

/// Everybody in this process who takes part in one key.
struct Seat {
    heard: watch::Sender<Heard>,
    listeners: usize,
    /// The tokens with which they ask or lead: what is held under one of these is held by somebody alive.
    tokens: Vec<Token>,
}

/// Counters, so that two wake-ups that fall together lose nothing that matters.
#[derive(Clone, Copy, Default)]
struct Heard {
    wakes: u64,
    gone: u64,
}

impl Wakes {
    /// Nobody waits, under an inbox of its own.
    #[must_use]
    pub fn new() -> Self {
        Self { inbox: Inbox::unique(), table: Arc::default() }
    }

    /// The inbox of this process.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        self.inbox
    }

    /// Hears of the address from now on, until the listener is dropped.
    #[must_use]
    pub fn listen(&self, at: &Address) -> Listener {
        let hash = at.hash();
        let mut table = self.lock();
        let seat = table.entry(hash).or_insert_with(|| Seat {
            heard: watch::Sender::new(Heard::default()),
            listeners: 0,
            tokens: Vec::new(),
        });
        seat.listeners += 1;
        let heard = seat.heard.subscribe();
        let last = heard.get();
        Listener { wakes: self.clone(), hash, heard, last, token: None }
    }

    /// Wakes whoever waits for that key.
    pub fn wake(&self, hash: KeyHash) {
        self.tell(hash, |heard| heard.wakes += 1);
    }

    /// Tells whoever takes part in that key that its entry and lease were dropped.
    pub fn gone(&self, hash: KeyHash) {
        self.tell(hash, |heard| {
            heard.wakes += 1;
            heard.gone += 1;
        });
    }

    /// Wakes everybody: wake-ups may have been lost.
    pub fn wake_all(&self) {
        let table = self.lock();
        let mut seats: Vec<_> = table.iter().collect();
        seats.sort_unstable_by_key(|(hash, _)| hash.as_bytes()); // not as the table is hashed: a simulation repeats itself
        for (_, seat) in seats {
            seat.heard.send_modify(|heard| heard.wakes += 1);
        }
    }

    /// How many keys somebody takes part in.
    #[cfg(feature = "testing")]
    pub(crate) fn keys(&self) -> usize {
        self.lock().len()
    }

    fn tell(&self, hash: KeyHash, what: impl FnOnce(&mut Heard)) {
        if let Some(seat) = self.lock().get(&hash) {
            seat.heard.send_modify(what);
        }
    }

    /// Nothing in here panics while it holds the lock, and a count or a list is valid at every step.
    fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, Seat>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message is an outcome and a key hash. It is only a hint: whoever is woken asks the store.
#[cfg(feature = "redis")]
impl crate::wire::Hear for Wakes {
    fn inbox(&self) -> Inbox {
        self.inbox
    }

    fn hear(&self, message: &[u8]) {
        let Some((outcome, hash)) = message.split_first() else { return };
        let Ok(hash) = hash.try_into().map(KeyHash::from_bytes) else { return };
        match outcome {
            b'g' => self.gone(hash),
            _ => self.wake(hash),
        }
    }

    fn missed(&self) {
        self.wake_all();
    }
}

impl Default for Wakes {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakes").field("inbox", &self.inbox).field("keys", &self.lock().len()).finish()
    }
}

/// Takes part in one key: hears when it changes, and names the attempts to lead it.
pub struct Listener {
    wakes: Wakes,
    hash: KeyHash,
    heard: watch::Receiver<Heard>,
    last: Heard,
    token: Option<Token>,
}

impl Listener {
    /// A token for one send of [`lead`](super::Store::lead). It counts as alive until the next one is made, or the
    /// listener is dropped.
    #[must_use]
    pub fn token(&mut self) -> Token {
        let token = Token::unique(self.wakes.inbox);
        let last = self.token.replace(token);
        if let Some(seat) = self.wakes.lock().get_mut(&self.hash) {
            seat.tokens.retain(|known| Some(*known) != last);
            seat.tokens.push(token);
        }
        token
    }

    /// Whether the holder is a flight of this process that is no more: its request to lead arrived after it had been
    /// given up, and nobody will fill or abandon it.
    #[must_use]
    pub fn is_ghost(&self, holder: Token) -> bool {
        let alive = |seat: &Seat| seat.tokens.contains(&holder);
        holder.inbox() == self.wakes.inbox && !self.wakes.lock().get(&self.hash).is_some_and(alive)
    }

    /// The next wake-up; `true` if the entry was dropped meanwhile. One that came since the last call counts.
    ///
    /// Dropping the future loses nothing: what it did not return is still to be heard.
    pub async fn woken(&mut self) -> bool {
        let last = self.last;
        self.last = self.heard.wait_for(|heard| heard.wakes != last.wakes).await;
        self.last.gone != last.gone
    }

    /// Waits for the same as [`gone`](Self::gone), and leaves it to be heard.
    pub(crate) async fn told(&self) {
        let last = self.last;
        self.heard.wait_for(|heard| heard.gone != last.gone).await;
    }

    /// Waits until the entry is dropped, by an invalidation that comes after all that was heard before.
    pub async fn gone(&mut self) {
        while !self.woken().await {}
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut table = self.wakes.lock();
        let Entry::Occupied(mut taken) = table.entry(self.hash) else { return };
        let seat = taken.get_mut();
        seat.listeners -= 1;
        seat.tokens.retain(|known| Some(*known) != self.token);
        if seat.listeners == 0 {
            taken.remove();
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("hash", &self.hash).finish_non_exhaustive()
    }
}
