//! Where something is held until the test lets it go on.

use crate::watch;
use std::{fmt, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

/// Holds whoever passes it until the test says so. Clones are one gate.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{Fault, Gate, Operation, Origin, Server};
///
/// let (server, origin, gate) = (Server::new(), Origin::new(), Gate::closed());
/// let [process, elsewhere] = [server.process(), server.process()];
/// process.once(Operation::Fill, Fault::Held(gate.clone()));
/// let guard = process.guard();
/// assert_eq!(guard.fetch("k", origin.fetch("old".to_owned())).await?, "old");
/// gate.arrived(1).await; // it is computed, and about to be stored
/// elsewhere.guard().invalidate("k").await?;
/// gate.open();
/// guard.shutdown().await;
/// assert!(!server.holds("k")); // too late: it was refused
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone)]
pub struct Gate(Arc<State>);

struct State {
    came: watch::Sender<usize>,
    /// Closed means open: everybody passes.
    permits: Semaphore,
}

impl Gate {
    /// A gate that holds everybody.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(State { came: watch::Sender::new(0), permits: Semaphore::new(0) }))
    }

    /// Waits until it may go on.
    pub async fn pass(&self) {
        self.0.came.send_modify(|came| *came += 1);
        if let Ok(permit) = self.0.permits.acquire().await {
            permit.forget();
        }
    }

    /// Returns once `n` have come to it in all, whether or not they have passed.
    ///
    /// # Panics
    ///
    /// If they have not after ten seconds.
    pub async fn arrived(&self, n: usize) {
        let came = self.0.came.subscribe();
        let arrived = timeout(BOUND, came.wait_for(|came| *came >= n)).await;
        assert!(arrived.is_ok(), "{n} expected at the gate, {} came within {BOUND:?}", came.get());
    }

    /// Lets `n` through, of those that wait or the next ones that come.
    pub fn release(&self, n: usize) {
        self.0.permits.add_permits(n);
    }

    /// Lets everybody through from now on.
    pub fn open(&self) {
        self.0.permits.close();
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (came, open) = (self.0.came.subscribe().get(), self.0.permits.is_closed());
        f.debug_struct("Gate").field("came", &came).field("open", &open).finish()
    }
}

const BOUND: Duration = Duration::from_secs(10);
