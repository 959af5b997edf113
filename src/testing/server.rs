//! The store that the processes of a test share.

use super::{Event, Happened, Process, process};
use crate::{
    clock::Timestamp,
    key::{Address, Key},
    lease::{Ask, Filled, Hold, Lead, Lease, Token, Tombstone},
    store::{Entry, MemoryStore, Right, Write},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// In the place of Redis: the entries and leases that the processes of a test share. Clones are one server.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{Origin, Server};
///
/// let (server, origin) = (Server::new(), Origin::new());
/// let [a, b] = [server.process().guard(), server.process().guard()];
/// a.fetch("k", origin.fetch(1)).await?;
/// a.shutdown().await; // until it is stored
/// assert_eq!(b.fetch("k", origin.fetch(2)).await?, 1);
/// server.evict("k");
/// assert_eq!(b.fetch("k", origin.fetch(2)).await?, 2);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
///
/// As over Redis, and unlike [`MemoryStore`] alone, only those are told of a key who lead it or wait for it.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    began: Instant,
    store: MemoryStore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    processes: Vec<Weak<process::Inner>>,
    /// Who takes part in a lease, the holder first; it is void once the lease has ended.
    parties: HashMap<Address, Vec<usize>>,
    history: Vec<Event>,
}

impl Server {
    /// An empty server.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared { began: now(), store: MemoryStore::bytes(CAPACITY), state: Mutex::default() }))
    }

    /// One more process, with a connection of its own. They are numbered from 0.
    #[must_use]
    pub fn process(&self) -> Process {
        let mut state = self.state();
        let process = Process::new(self.clone(), state.processes.len());
        state.processes.push(process.downgrade());
        process
    }

    /// The lease of the key ends now, as if its holder had been silent for too long. Nobody is told. In every namespace,
    /// as for all that takes a key here.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{Origin, Server};
    ///
    /// let (server, slow, origin) = (Server::new(), Origin::gated(), Origin::new());
    /// let [a, b] = [server.process().guard(), server.process().guard()];
    /// let late = tokio::spawn({
    ///     let (a, fetch) = (a.clone(), slow.fetch(1));
    ///     async move { a.fetch("k", fetch).await }
    /// });
    /// slow.arrived(1).await;
    /// server.expire_lease("k");
    /// assert_eq!(b.fetch("k", origin.fetch(2)).await?, 2); // takes over
    /// slow.open();
    /// assert_eq!(late.await.unwrap()?, 1);
    /// a.shutdown().await;
    /// assert_eq!((a.report().fenced, b.fetch("k", origin.fetch(3)).await?), (1, 2));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn expire_lease(&self, key: impl Into<Key>) {
        let key = key.into();
        let mut state = self.state();
        for at in self.0.store.expire_leases(|at| at.key() == &key, Timestamp::now()) {
            self.note(&mut state, None, Some(&at), Happened::Expired);
        }
    }

    /// The entry of the key is evicted. Its lease, if there is one, stays.
    pub fn evict(&self, key: impl Into<Key>) {
        let key = key.into();
        let mut state = self.state();
        for at in self.0.store.evict(|at| at.key() == &key) {
            self.note(&mut state, None, Some(&at), Happened::Evicted);
        }
    }

    /// Entries and leases are lost, as with `FLUSHALL` or a restart without persistence. Nobody is told.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{Origin, Server};
    ///
    /// let (server, origin) = (Server::new(), Origin::new());
    /// let guard = server.process().guard();
    /// guard.fetch("k", origin.fetch(1)).await?;
    /// guard.shutdown().await;
    /// server.flush();
    /// guard.fetch("k", origin.fetch(1)).await?;
    /// origin.assert_fetched(2);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn flush(&self) {
        let mut state = self.state();
        self.0.store.clear();
        self.note(&mut state, None, None, Happened::Flushed);
    }

    /// The key is invalidated from elsewhere, by a process that is not part of the test.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{Origin, Server};
    ///
    /// let (server, origin) = (Server::new(), Origin::new());
    /// let guard = server.process().guard();
    /// assert_eq!(guard.fetch("k", origin.fetch(1)).await?, 1);
    /// guard.shutdown().await;
    /// server.invalidate("k");
    /// assert_eq!(guard.fetch("k", origin.fetch(2)).await?, 2);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn invalidate(&self, key: impl Into<Key>) {
        let key = key.into();
        for at in self.0.store.known(|at| at.key() == &key) {
            self.invalidate_by(None, &at);
        }
    }

    /// Whether an entry of the key is stored; a pass marker is one too.
    #[must_use]
    pub fn holds(&self, key: impl Into<Key>) -> bool {
        let (key, now) = (key.into(), Timestamp::now());
        self.0.store.any_entry(|at, entry| at.key() == &key && entry.is_retained(now))
    }

    /// Leases that are held now.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.0.store.leases(|_| true, Timestamp::now())
    }

    /// Whether the key is being computed by somebody whose lease is still valid.
    #[must_use]
    pub fn is_led(&self, key: impl Into<Key>) -> bool {
        let key = key.into();
        self.0.store.leases(|at| at.key() == &key, Timestamp::now()) > 0
    }

    /// All that has happened, in the order in which it did: print it when a test fails.
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        self.state().history.clone()
    }

    pub(super) fn note_of(&self, process: usize, what: Happened) {
        let mut state = self.state();
        self.note(&mut state, Some(process), None, what);
    }

    pub(super) fn get_by(&self, process: usize, at: &Address) -> Option<Entry> {
        let mut state = self.state();
        let entry = self.0.store.read(at, Timestamp::now());
        self.note(&mut state, Some(process), Some(at), Happened::Get(entry.clone()));
        entry
    }

    pub(super) fn lead_by(&self, process: usize, at: &Address, ask: Ask) -> Lead {
        let mut state = self.state();
        let mut lead = self.0.store.lead_now(at, ask, Timestamp::now());
        match &mut lead {
            Lead::Granted { .. } => _ = state.parties.insert(at.in_schema(0), vec![process]),
            Lead::Wait { waiting, .. } => {
                let parties = state.parties.entry(at.in_schema(0)).or_default();
                // The holder is one of them by right, and may wait as well: it is told all the same.
                if !parties.contains(&process) {
                    parties.push(process);
                }
                *waiting = parties.len() - 1;
            }
            Lead::Hit(_) | Lead::Failed { .. } => {}
        }
        self.note(&mut state, Some(process), Some(at), Happened::Lead(ask, lead.clone()));
        lead
    }

    pub(super) fn fill_by(&self, process: usize, at: &Address, right: Right, writes: Vec<Write>) -> Filled {
        let mut state = self.state();
        let parties = self.parties(&mut state, at);
        let filled = self.0.store.fill_now(at, right, writes.clone(), Timestamp::now());
        self.note(&mut state, Some(process), Some(at), Happened::Fill(right, writes, filled));
        self.settle(&mut state, at, parties, false);
        filled
    }

    pub(super) fn abandon_by(&self, process: usize, at: &Address, token: Token, tombstone: Option<Tombstone>) -> Hold {
        let mut state = self.state();
        let parties = self.parties(&mut state, at);
        let hold = self.0.store.abandon_now(at, token, tombstone, Timestamp::now());
        self.note(&mut state, Some(process), Some(at), Happened::Abandon(token, tombstone, hold));
        self.settle(&mut state, at, parties, false);
        hold
    }

    pub(super) fn extend_by(&self, process: usize, at: &Address, lease: Lease, span: Duration) -> Hold {
        let mut state = self.state();
        let hold = self.0.store.extend_now(at, lease, span, Timestamp::now());
        self.note(&mut state, Some(process), Some(at), Happened::Extend(lease, hold));
        hold
    }

    pub(super) fn invalidate_by(&self, process: Option<usize>, at: &Address) {
        let mut state = self.state();
        let parties = self.parties(&mut state, at);
        self.0.store.invalidate_now(at);
        self.note(&mut state, process, Some(at), Happened::Invalidate);
        self.settle(&mut state, at, parties, true);
    }

    /// Who takes part in the lease that is held now.
    fn parties(&self, state: &mut State, at: &Address) -> Option<Vec<usize>> {
        let resource = at.in_schema(0);
        let held = self.0.store.leases(|led| led.in_schema(0) == resource, Timestamp::now()) > 0;
        state.parties.remove(&resource).filter(|_| held)
    }

    /// Tells them that it has ended, if it has.
    fn settle(&self, state: &mut State, at: &Address, parties: Option<Vec<usize>>, gone: bool) {
        let Some(parties) = parties else { return };
        let resource = at.in_schema(0);
        if self.0.store.leases(|led| led.in_schema(0) == resource, Timestamp::now()) > 0 {
            state.parties.insert(resource, parties);
            return;
        }
        // The holder knows, unless it is by an invalidation that its lease ends.
        let told = if gone { &parties[..] } else { &parties[1..] };
        for number in told {
            let Some(process) = state.processes[*number].upgrade() else { continue };
            if process.hears() {
                self.note(state, Some(*number), Some(at), Happened::Told { gone });
                process.tell(at, gone);
            }
        }
    }

    fn note(&self, state: &mut State, process: Option<usize>, address: Option<&Address>, what: Happened) {
        let at = now() - self.0.began;
        state.history.push(Event { at, process, address: address.cloned(), what });
    }

    /// Nothing in here panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("store", &self.0.store).field("events", &self.state().history.len()).finish()
    }
}

/// Enough for what a test stores, and little enough for a simulation that makes thousands of servers.
const CAPACITY: u64 = 4 << 20;

/// This moment, for what is shown.
pub(super) fn now() -> Instant {
    crate::clock::in_future(Duration::ZERO)
}
