//! A gate that holds calls until the test opens it.

use crate::sync::watch::Watched;
use std::{fmt, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

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
#[derive(Clone)]
pub struct Gate(Arc<GateState>);

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

    /// Lets `n` callers pass: waiting ones, or the next to arrive.
    pub fn release(&self, n: usize) {
        self.0.permits.add_permits(n);
    }

    /// Lets every caller pass from now on.
    pub fn open(&self) {
        self.0.permits.close();
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (came, open) = (self.0.came.get(), self.0.permits.is_closed());
        f.debug_struct("Gate").field("came", &came).field("open", &open).finish()
    }
}

/// Maximum time that [`Gate::arrived`] waits.
const BOUND: Duration = Duration::from_secs(10);
