//! The expensive thing behind the cache, faked.

use super::Gate;
use crate::store::BoxFuture;
use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// What the guard protects: counts its calls, and takes as long as the test wants. Clones share one count.
///
/// As the fetch itself, with [`fetch`](Self::fetch), or within the test's own double of a database, with
/// [`call`](Self::call):
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::{StampedeGuard, testing::Origin};
/// use std::time::Duration;
///
/// #[derive(Clone)]
/// struct Users(Origin);
///
/// impl Users {
///     async fn load(&self, id: u64) -> Result<String, std::io::Error> {
///         self.0.call().await;
///         Ok(format!("user {id}"))
///     }
/// }
///
/// let (guard, users) = (StampedeGuard::in_memory(), Users(Origin::new().takes(Duration::from_millis(20))));
/// let load = || {
///     let users = users.clone();
///     guard.fetch("user:42", async move || users.load(42).await)
/// };
/// let (a, b, c) = tokio::join!(load(), load(), load());
/// assert_eq!((a?, b?, c?), ("user 42".into(), "user 42".into(), "user 42".into()));
/// users.0.assert_fetched_once();
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Origin {
    state: Arc<State>,
    cost: Duration,
}

#[derive(Debug)]
struct State {
    began: Instant,
    calls: Mutex<Vec<Duration>>,
    running: AtomicUsize,
    peak: AtomicUsize,
    gate: Gate,
}

impl Origin {
    /// Answers at once.
    #[must_use]
    pub fn new() -> Self {
        let origin = Self::gated();
        origin.open();
        origin
    }

    /// Holds every call until [`release`](Self::release) or [`open`](Self::open).
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// use stampede_guard::{StampedeGuard, testing::Origin};
    ///
    /// let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    /// let caller = tokio::spawn({
    ///     let (guard, origin) = (guard.clone(), origin.clone());
    ///     async move { guard.fetch("k", origin.fetch(1)).await }
    /// });
    /// origin.arrived(1).await;
    /// caller.abort(); // the caller has gone, the call goes on
    /// origin.open();
    /// guard.shutdown().await;
    /// assert_eq!(guard.fetch("k", origin.fetch(2)).await.unwrap(), 1);
    /// origin.assert_fetched_once();
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    #[must_use]
    pub fn gated() -> Self {
        let (running, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (calls, gate) = (Mutex::default(), Gate::closed());
        let state = State { began: super::server::now(), calls, running, peak, gate };
        Self { state: Arc::new(state), cost: Duration::ZERO }
    }

    /// The same origin, but calls through this handle take that long from the moment the gate lets them through.
    #[must_use]
    pub fn takes(self, cost: Duration) -> Self {
        Self { cost, ..self }
    }

    /// One call; returns its number, counted from 1.
    pub async fn call(&self) -> usize {
        self.work(self.cost).await
    }

    /// One call that takes that long from the moment the gate lets it through; returns its number, counted from 1.
    pub async fn work(&self, cost: Duration) -> usize {
        let running = Running::enter(&self.state);
        self.state.gate.pass().await;
        if !cost.is_zero() {
            sleep(cost).await;
        }
        running.number
    }

    /// A fetch for [`StampedeGuard::fetch`](crate::StampedeGuard::fetch) that calls this origin and answers with the
    /// value.
    pub fn fetch<T: Send + 'static>(
        &self,
        value: T,
    ) -> impl FnOnce() -> BoxFuture<'static, Result<T, Infallible>> + Send + use<T> {
        self.answer(Ok(value))
    }

    /// A fetch that calls this origin and answers so.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// use stampede_guard::{StampedeGuard, testing::Origin};
    ///
    /// let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    /// let down = || origin.answer(Err::<u8, _>(std::io::Error::other("down")));
    /// let (a, b) = tokio::join!(guard.fetch("k", down()), guard.fetch("k", down()));
    /// assert!(a.is_err() && b.is_err());
    /// origin.assert_fetched_once();
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn answer<T: Send + 'static, E: Send + 'static>(
        &self,
        answer: Result<T, E>,
    ) -> impl FnOnce() -> BoxFuture<'static, Result<T, E>> + Send + use<T, E> {
        let origin = self.clone();
        move || {
            Box::pin(async move {
                origin.call().await;
                answer
            })
        }
    }

    /// Calls so far, those that were dropped half-way included.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state.calls().len()
    }

    /// Calls that have neither answered nor been dropped.
    #[must_use]
    pub fn running(&self) -> usize {
        self.state.running.load(SeqCst)
    }

    /// The most calls that ever ran at once.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.state.peak.load(SeqCst)
    }

    /// Returns once there have been `n` calls in all.
    ///
    /// # Panics
    ///
    /// If there have not after ten seconds.
    pub async fn arrived(&self, n: usize) {
        self.state.gate.arrived(n).await;
    }

    /// Lets `n` calls through, those to come included.
    pub fn release(&self, n: usize) {
        self.state.gate.release(n);
    }

    /// Lets every call through from now on.
    pub fn open(&self) {
        self.state.gate.open();
    }

    /// That there was one call in all.
    ///
    /// # Panics
    ///
    /// If not: with how many there were, and when.
    #[track_caller]
    pub fn assert_fetched_once(&self) {
        self.assert_fetched(1);
    }

    /// That there were `n` calls in all.
    ///
    /// ```should_panic
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let origin = stampede_guard::testing::Origin::new();
    /// origin.call().await;
    /// origin.assert_fetched(2); // 1 call of the origin instead of 2, after 0ns
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If not: with how many there were, and when, counted from when the origin was made.
    #[track_caller]
    pub fn assert_fetched(&self, n: usize) {
        let calls = self.state.calls().clone();
        let s = if calls.len() == 1 { "" } else { "s" };
        assert!(calls.len() == n, "{} call{s} of the origin instead of {n}, after {calls:?}", calls.len());
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn calls(&self) -> MutexGuard<'_, Vec<Duration>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call under way; also one that is dropped or panics leaves the count.
struct Running<'a> {
    state: &'a State,
    number: usize,
}

impl<'a> Running<'a> {
    fn enter(state: &'a State) -> Self {
        let running = state.running.fetch_add(1, SeqCst) + 1;
        state.peak.fetch_max(running, SeqCst);
        let mut calls = state.calls();
        calls.push(super::server::now() - state.began);
        Self { state, number: calls.len() }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.state.running.fetch_sub(1, SeqCst);
    }
}
