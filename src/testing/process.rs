//! One process of a test's fleet.

use super::{Fault, Happened, Operation, Server, fault::Script};
use crate::{
    StampedeGuard,
    key::Address,
    lease::{Ask, Filled, Hold, Lead, Lease, Token, Tombstone},
    store::{Answer, Entry, Listener, Right, Store, StoreError, Wakes, Write},
};
use std::{
    fmt,
    future::{Future, pending},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::sleep;

/// One process of the fleet: a [`Store`] for its guard, over which things go wrong as the test wants. Clones are one
/// process.
///
/// What was scripted with [`once`](Self::once) and [`times`](Self::times) happens first, in that order; then what was
/// scripted with [`always`](Self::always).
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{Fault, Operation, Origin, Server};
///
/// let (process, origin) = (Server::new().process(), Origin::new());
/// let guard = process.guard();
/// process.once(Operation::Fill, Fault::ReplyLost);
/// guard.fetch("k", origin.fetch(1)).await?;
/// guard.shutdown().await;
/// assert_eq!(process.asked(Operation::Fill), 2); // it asked once more, and heard that it is stored
/// guard.fetch("k", origin.fetch(1)).await?;
/// origin.assert_fetched_once();
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone)]
pub struct Process(Arc<Inner>);

pub(super) struct Inner {
    server: Server,
    number: usize,
    wakes: Wakes,
    script: Mutex<Script>,
    dead: AtomicBool,
    deaf: AtomicBool,
    dies_leading: AtomicBool,
    reconnects: AtomicU64,
}

impl Process {
    pub(super) fn new(server: Server, number: usize) -> Self {
        let [dead, deaf, dies_leading] = [const { AtomicBool::new(false) }; 3];
        Self(Arc::new(Inner {
            server,
            number,
            wakes: Wakes::new(),
            script: Mutex::default(),
            dead,
            deaf,
            dies_leading,
            reconnects: AtomicU64::new(0),
        }))
    }

    /// A guard over this process. The same as `StampedeGuard::new(process.clone())`.
    #[must_use]
    pub fn guard(&self) -> StampedeGuard {
        StampedeGuard::new(self.clone())
    }

    /// The next such operation goes wrong.
    pub fn once(&self, operation: Operation, fault: Fault) {
        self.times(1, operation, fault);
    }

    /// The next `n` such operations go wrong.
    pub fn times(&self, n: usize, operation: Operation, fault: Fault) {
        self.script().times(n, operation, fault);
    }

    /// Every such operation goes wrong, until something else is scripted here or the process [heals](Self::heal).
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.script().always(operation, fault);
    }

    /// Nothing goes wrong any more that has been scripted, and it hears wake-ups again. A dead process stays dead.
    pub fn heal(&self) {
        self.script().heal();
        self.0.dies_leading.store(false, SeqCst);
        self.0.deaf.store(false, SeqCst);
    }

    /// How often that was asked for, whatever came of it.
    #[must_use]
    pub fn asked(&self, operation: Operation) -> usize {
        self.script().asked(operation)
    }

    /// It is dead for all others: nothing that it does from now on arrives, its leases end by themselves. Its own tasks
    /// go on, cut off from the store: drop them if they are in the way.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{Origin, Server};
    ///
    /// let (server, stuck, origin) = (Server::new(), Origin::gated(), Origin::new());
    /// let [a, b] = [server.process(), server.process()];
    /// let leader = tokio::spawn({
    ///     let (guard, fetch) = (a.guard(), stuck.fetch(1));
    ///     async move { guard.fetch("k", fetch).await }
    /// });
    /// stuck.arrived(1).await;
    /// a.kill();
    /// assert_eq!(b.guard().fetch("k", origin.fetch(2)).await?, 2); // when the lease has run out
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn kill(&self) {
        if !self.0.dead.swap(true, SeqCst) {
            self.0.server.note_of(self.0.number, Happened::Killed);
        }
    }

    /// It is [killed](Self::kill) as soon as a lease has been granted to it.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{Origin, Server};
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    ///
    /// let (server, origin) = (Server::new(), Origin::new());
    /// let [a, b] = [server.process(), server.process()];
    /// a.kill_once_it_leads();
    /// a.guard().fetch("k", origin.fetch(1)).await?; // its own caller is answered
    /// assert!(server.is_led("k") && !server.holds("k")); // but nobody else ever is
    ///
    /// let began = Instant::now();
    /// let guard = b.guard().lease(Duration::from_secs(3));
    /// assert_eq!(guard.fetch("k", origin.fetch(2)).await?, 2);
    /// assert!(began.elapsed() <= Duration::from_millis(3300));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn kill_once_it_leads(&self) {
        self.0.dies_leading.store(true, SeqCst);
    }

    /// A process that was [killed](Self::kill) is back: it was cut off from the network for a while.
    pub fn revive(&self) {
        if self.0.dead.swap(false, SeqCst) {
            self.0.reconnects.fetch_add(1, SeqCst);
            self.0.server.note_of(self.0.number, Happened::Revived);
        }
    }

    /// No wake-up reaches it any more, although it believes so.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{Origin, Server};
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    ///
    /// let (server, origin) = (Server::new(), Origin::new().takes(Duration::from_millis(100)));
    /// let [a, b] = [server.process(), server.process()];
    /// b.lose_wakes();
    /// let began = Instant::now();
    /// let (a, b) = (a.guard(), b.guard());
    /// let (one, other) = tokio::join!(a.fetch("k", origin.fetch(1)), b.fetch("k", origin.fetch(1)));
    /// assert_eq!((one?, other?), (1, 1));
    /// origin.assert_fetched_once();
    /// assert!(began.elapsed() <= Duration::from_millis(1100)); // one poll
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn lose_wakes(&self) {
        self.0.deaf.store(true, SeqCst);
    }

    /// It hears wake-ups again, and all who wait in it look whether they have missed one, as after a reconnect.
    pub fn hear_wakes(&self) {
        self.0.deaf.store(false, SeqCst);
        self.0.wakes.wake_all();
    }

    /// Its number among the processes of the server, as [`Event`](super::Event)s have it.
    #[must_use]
    pub fn number(&self) -> usize {
        self.0.number
    }

    /// Keys that somebody in this process leads or waits for. Zero when nothing is under way.
    #[must_use]
    pub fn listening(&self) -> usize {
        self.0.wakes.keys()
    }

    pub(super) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    /// Sends an operation to the server, through whatever is scripted.
    fn send<'a, T: Send + 'static>(
        &self,
        operation: Operation,
        done: impl Fn(&Inner) -> T + Send + 'static,
    ) -> Answer<'a, T> {
        let inner = self.0.clone();
        Box::pin(async move {
            let fault = inner.script().play(operation);
            if inner.is_dead() {
                return Err(StoreError::disconnected("the process was killed"));
            }
            match fault {
                None => Ok(done(&inner)),
                Some(fault) => {
                    let answer = suffer(fault, inner.clone(), done).await;
                    if inner.is_dead() { Err(StoreError::disconnected("the process was killed")) } else { answer }
                }
            }
        })
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.script()
    }
}

async fn suffer<T: Send + 'static>(
    fault: Fault,
    inner: Arc<Inner>,
    done: impl Fn(&Inner) -> T + Send + 'static,
) -> Result<T, StoreError> {
    match fault {
        Fault::Fails => Err(StoreError::refused("it refuses, by script")),
        Fault::RequestLost => Err(inner.disconnected()),
        Fault::ReplyLost => {
            done(&inner);
            Err(inner.disconnected())
        }
        Fault::Hangs => {
            done(&inner);
            pending().await
        }
        Fault::RequestDelayed(span) => later(sleep(span), move || done(&inner)).await,
        Fault::ReplyDelayed(span) => {
            let answer = done(&inner);
            sleep(span).await;
            Ok(answer)
        }
        Fault::Repeated(span) => {
            let answer = done(&inner);
            drop(tokio::spawn(async move {
                sleep(span).await;
                done(&inner);
            }));
            Ok(answer)
        }
        Fault::Held(gate) => later(async move { gate.pass().await }, move || done(&inner)).await,
    }
}

/// In a task: what has been sent arrives, whether or not somebody waits for the answer.
async fn later<T: Send + 'static>(
    then: impl Future<Output = ()> + Send + 'static,
    done: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let sent = tokio::spawn(async move {
        then.await;
        done()
    });
    sent.await.map_err(StoreError::disconnected)
}

impl Inner {
    pub(super) fn hears(&self) -> bool {
        !self.is_dead() && !self.deaf.load(SeqCst)
    }

    pub(super) fn tell(&self, at: &Address, gone: bool) {
        if gone { self.wakes.gone(at.hash()) } else { self.wakes.wake(at.hash()) }
    }

    fn disconnected(&self) -> StoreError {
        self.reconnects.fetch_add(1, SeqCst);
        StoreError::disconnected("the connection broke, by script")
    }

    fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// Nothing in here panics while it holds the lock.
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Process {
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        let at = at.clone();
        self.send(Operation::Get, move |inner| inner.server.get_by(inner.number, &at))
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        let (at, process) = (at.clone(), self.clone());
        self.send(Operation::Lead, move |inner| {
            let lead = inner.server.lead_by(inner.number, &at, ask);
            if matches!(lead, Lead::Granted { .. }) && inner.dies_leading.swap(false, SeqCst) {
                process.kill();
            }
            lead
        })
    }

    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        let at = at.clone();
        self.send(Operation::Fill, move |inner| inner.server.fill_by(inner.number, &at, right, writes.clone()))
    }

    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold> {
        let at = at.clone();
        self.send(Operation::Abandon, move |inner| inner.server.abandon_by(inner.number, &at, token, tombstone))
    }

    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold> {
        let at = at.clone();
        self.send(Operation::Extend, move |inner| inner.server.extend_by(inner.number, &at, lease, span))
    }

    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()> {
        let at = at.clone();
        self.send(Operation::Invalidate, move |inner| inner.server.invalidate_by(Some(inner.number), &at))
    }

    fn epoch(&self) -> u64 {
        self.0.reconnects.load(SeqCst)
    }

    fn listen(&self, at: &Address) -> Listener {
        self.0.wakes.listen(at)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("number", &self.0.number)
            .field("dead", &self.0.dead)
            .field("deaf", &self.0.deaf)
            .field("script", &*self.script())
            .field("wakes", &self.0.wakes)
            .finish_non_exhaustive()
    }
}
