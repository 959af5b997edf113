//! A fake of the expensive origin that the cache protects, and the gate that holds its calls.

use crate::{
    clock,
    store::error::BoxFuture,
    sync::{mutex::Mutex, watch::Watched},
};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

/// A fake origin that counts its calls and takes as long as the test requires. Clones share one count.
///
/// Use it as the fetch, with [`fetch`](Self::fetch), or inside a test double of a database, with [`call`](Self::call):
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
    state: Arc<OriginState>,
    cost: Duration,
}

#[derive(Debug)]
struct OriginState {
    began: Instant,
    calls: Mutex<Calls>,
    gate: Gate,
}

#[derive(Debug, Default)]
struct Calls {
    began: Vec<Duration>,
    running: usize,
    peak: usize,
}

impl Origin {
    /// Creates an origin that replies at once.
    #[must_use]
    pub fn new() -> Self {
        let origin = Self::gated();
        origin.open();
        origin
    }

    /// Creates an origin that holds every call until [`release`](Self::release) or [`open`](Self::open).
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
    /// caller.abort(); // the caller is cancelled, its fetch continues
    /// origin.open();
    /// guard.drain().await;
    /// assert_eq!(guard.fetch("k", origin.fetch(2)).await.unwrap(), 1);
    /// origin.assert_fetched_once();
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    #[must_use]
    pub fn gated() -> Self {
        let state = OriginState { began: clock::now(), calls: Mutex::default(), gate: Gate::closed() };
        Self { state: Arc::new(state), cost: Duration::ZERO }
    }

    /// Sets the duration of calls through this handle, counted from the time at which the gate lets them pass.
    #[must_use]
    pub fn takes(self, cost: Duration) -> Self {
        Self { cost, ..self }
    }

    /// Makes one call and returns its number, counted from 1.
    pub async fn call(&self) -> usize {
        self.work(self.cost).await
    }

    /// Makes one call that takes `cost` after the gate lets it pass. Returns its number, counted from 1.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::Origin;
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    ///
    /// let (origin, began) = (Origin::new(), Instant::now());
    /// assert_eq!(origin.work(Duration::from_secs(1)).await, 1);
    /// assert_eq!(origin.work(Duration::from_secs(2)).await, 2);
    /// assert_eq!(began.elapsed(), Duration::from_secs(3)); // on the paused clock
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub async fn work(&self, cost: Duration) -> usize {
        let running = Running::enter(&self.state);
        self.state.gate.pass().await;
        if !cost.is_zero() {
            sleep(cost).await;
        }
        running.number
    }

    /// Returns a fetch for [`StampedeGuard::fetch`](crate::StampedeGuard::fetch) that calls this origin and returns
    /// `value`.
    pub fn fetch<T: Send + 'static>(
        &self,
        value: T,
    ) -> impl FnOnce() -> BoxFuture<'static, Result<T, Infallible>> + Send + use<T> {
        self.answer(Ok(value))
    }

    /// Returns a fetch that calls this origin and returns `answer`.
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

    /// Returns the number of calls so far, including calls that were dropped before they completed: see
    /// [`peak`](Self::peak).
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state.calls.lock().began.len()
    }

    /// Returns the number of calls in progress: see [`peak`](Self::peak).
    #[must_use]
    pub fn running(&self) -> usize {
        self.state.calls.lock().running
    }

    /// Returns the maximum number of concurrent calls so far.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Fault, Operation, Origin};
    ///
    /// // Without Redis at most two fetches run at a time.
    /// let (node, origin) = (FakeRedis::new().node(), Origin::gated());
    /// node.always(Operation::Get, Fault::Fails);
    /// node.always(Operation::GetOrLease, Fault::Fails);
    /// let guard = node.guard().max_fallback_fetches(2);
    /// for key in 0..5 {
    ///     let (guard, fetch) = (guard.clone(), origin.fetch(key));
    ///     tokio::spawn(async move { guard.fetch(key, fetch).await });
    /// }
    /// origin.arrived(2).await;
    /// assert_eq!((origin.running(), origin.calls()), (2, 2));
    /// origin.release(1); // lets one call end, and the next one begins
    /// origin.arrived(3).await;
    /// origin.open(); // lets all calls end
    /// origin.arrived(5).await;
    /// assert_eq!(origin.peak(), 2);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    #[must_use]
    pub fn peak(&self) -> usize {
        self.state.calls.lock().peak
    }

    /// Waits until `n` calls in total have been made: see [`gated`](Self::gated).
    ///
    /// # Panics
    ///
    /// Panics if fewer have been made after 10 s.
    pub async fn arrived(&self, n: usize) {
        self.state.gate.arrived(n).await;
    }

    /// Lets `n` calls pass the gate, waiting ones or the next to arrive: see [`peak`](Self::peak).
    pub fn release(&self, n: usize) {
        self.state.gate.release(n);
    }

    /// Lets every call pass the gate from now on: see [`gated`](Self::gated).
    pub fn open(&self) {
        self.state.gate.open();
    }

    /// Asserts that exactly one call was made.
    ///
    /// # Panics
    ///
    /// Panics otherwise, with the number and the times of the calls.
    #[track_caller]
    pub fn assert_fetched_once(&self) {
        self.assert_fetched(1);
    }

    /// Asserts that exactly `n` calls were made.
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
    /// Panics otherwise, with the number of the calls and their times since the creation of the origin.
    #[track_caller]
    pub fn assert_fetched(&self, n: usize) {
        let calls = self.state.calls.lock().began.clone();
        let s = if calls.len() == 1 { "" } else { "s" };
        assert!(calls.len() == n, "{} call{s} of the origin instead of {n}, after {calls:?}", calls.len());
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::new()
    }
}

/// A call in progress. Its drop ends the call, also if the call is cancelled or panics.
struct Running<'a> {
    state: &'a OriginState,
    number: usize,
}

impl<'a> Running<'a> {
    fn enter(state: &'a OriginState) -> Self {
        let mut calls = state.calls.lock();
        calls.running += 1;
        calls.peak = calls.peak.max(calls.running);
        calls.began.push(clock::now() - state.began);
        Self { state, number: calls.began.len() }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.state.calls.lock().running -= 1;
    }
}

/// A gate that holds every caller of [`pass`](Self::pass) until the test releases it. Clones share one gate.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{FakeRedis, Fault, Gate, Operation, Origin};
///
/// let (server, origin, gate) = (FakeRedis::new(), Origin::new(), Gate::closed());
/// let [node, elsewhere] = [server.node(), server.node()];
/// node.once(Operation::Fill, Fault::Held(gate.clone()));
/// let guard = node.guard();
/// assert_eq!(guard.fetch("k", origin.fetch("old".to_owned())).await?, "old");
/// gate.arrived(1).await; // the fetch is complete, and its fill is held
/// elsewhere.guard().invalidate("k").await?;
/// gate.open();
/// guard.drain().await;
/// assert!(!server.holds("k")); // the late fill was fenced
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    came: Watched<usize>,
    /// The semaphore of the gate. A closed semaphore means an open gate: every caller passes.
    permits: Semaphore,
}

impl Gate {
    /// Creates a gate that holds every caller.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(GateState { came: Watched::new(0), permits: Semaphore::new(0) }))
    }

    /// Waits until the gate lets this caller pass.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::Gate;
    ///
    /// let gate = Gate::closed();
    /// let workers = [(); 2].map(|()| {
    ///     let gate = gate.clone();
    ///     tokio::spawn(async move { gate.pass().await })
    /// });
    /// gate.arrived(2).await;
    /// gate.release(1);
    /// tokio::task::yield_now().await;
    /// assert_eq!(workers.iter().filter(|worker| worker.is_finished()).count(), 1);
    /// gate.open();
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub async fn pass(&self) {
        self.0.came.send_modify(|came| *came += 1);
        if let Ok(permit) = self.0.permits.acquire().await {
            permit.forget();
        }
    }

    /// Waits until `n` callers in total have arrived, whether or not they have passed.
    ///
    /// # Panics
    ///
    /// Panics if fewer have arrived after 10 s.
    pub async fn arrived(&self, n: usize) {
        let arrived = timeout(BOUND, self.0.came.wait_for(|came| *came >= n)).await;
        assert!(arrived.is_ok(), "expected {n} arrivals at the gate, counted {} within {BOUND:?}", self.0.came.get());
    }

    /// Lets `n` callers pass, waiting ones or the next to arrive: see [`pass`](Self::pass).
    pub fn release(&self, n: usize) {
        self.0.permits.add_permits(n);
    }

    /// Lets every caller pass from now on.
    pub fn open(&self) {
        self.0.permits.close();
    }
}

/// Maximum time that [`Gate::arrived`] waits.
const BOUND: Duration = Duration::from_secs(10);
