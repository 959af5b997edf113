//! Scripted faults of store operations.

use super::origin::Gate;
use crate::store::error::StoreError;
use std::{
    collections::VecDeque,
    future::{Future, pending},
    time::Duration,
};
use tokio::time::sleep;

/// An operation of a store.
///
/// ```
/// use stampede_guard::testing::{FakeRedis, Fault, Operation};
///
/// let node = FakeRedis::new().node();
/// for operation in [Operation::Get, Operation::GetOrLease, Operation::Fill] {
///     node.once(operation, Fault::Hangs);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Reads the entry.
    Get,
    /// Requests the entry or a lease.
    GetOrLease,
    /// Stores the result of a fetch.
    Fill,
    /// Releases the lease.
    Release,
    /// Extends the lease.
    Extend,
    /// Drops the entry and the lease, which fences the fetch in flight.
    Invalidate,
}

/// A fault of an operation on its way to the store and back.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{FakeRedis, Fault, Operation, Origin};
///
/// let (node, origin) = (FakeRedis::new().node(), Origin::new());
/// node.always(Operation::Get, Fault::Fails);
/// node.always(Operation::GetOrLease, Fault::Fails);
/// assert_eq!(node.guard().fetch("k", origin.fetch(1)).await?, 1); // without the store, from the origin
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Not executed; the server refuses it, for example because it is full or a replica.
    Fails,
    /// Not executed; the connection is closed.
    RequestLost,
    /// Executed; the connection is closed before the reply arrives.
    ReplyLost,
    /// Executed; the reply never arrives.
    Hangs,
    /// Executed after the delay, even if the caller is cancelled before.
    RequestDelayed(Duration),
    /// Executed at once; the reply arrives after the delay.
    ReplyDelayed(Duration),
    /// Executed at once with a reply, and executed again after the delay: a late duplicate of the request.
    Repeated(Duration),
    /// Executed when the gate lets it pass, even if the caller is cancelled before.
    Held(Gate),
}

impl Fault {
    /// Applies the fault to an operation. `disconnected` closes the connection.
    pub(super) async fn apply<T: Send + 'static>(
        self,
        execute: impl Fn() -> T + Send + 'static,
        disconnected: impl Fn() -> StoreError,
    ) -> Result<T, StoreError> {
        match self {
            Self::Fails => Err(StoreError::refused("refused by a scripted fault")),
            Self::RequestLost => Err(disconnected()),
            Self::ReplyLost => {
                execute();
                Err(disconnected())
            }
            Self::Hangs => {
                execute();
                pending().await
            }
            Self::RequestDelayed(span) => execute_after(sleep(span), execute).await,
            Self::ReplyDelayed(span) => {
                let answer = execute();
                sleep(span).await;
                Ok(answer)
            }
            Self::Repeated(span) => {
                let answer = execute();
                drop(tokio::spawn(async move {
                    sleep(span).await;
                    execute();
                }));
                Ok(answer)
            }
            Self::Held(gate) => execute_after(async move { gate.pass().await }, execute).await,
        }
    }
}

/// Executes the operation in a task, because a sent request arrives even if its caller is cancelled.
async fn execute_after<T: Send + 'static>(
    delay: impl Future<Output = ()> + Send + 'static,
    execute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let sent = tokio::spawn(async move {
        delay.await;
        execute()
    });
    sent.await.map_err(StoreError::disconnected)
}

/// The scripted faults of one operation of a node, and the number of its requests.
#[derive(Debug, Default)]
pub(super) struct OperationFaults {
    pub(super) asked: usize,
    pub(super) next: VecDeque<(usize, Fault)>,
    pub(super) always: Option<Fault>,
}

impl OperationFaults {
    /// Removes the faults.
    pub(super) fn heal(&mut self) {
        *self = Self { asked: self.asked, ..Self::default() };
    }

    /// Counts a request and returns its fault, if one is scripted.
    pub(super) fn next_fault(&mut self) -> Option<Fault> {
        self.asked += 1;
        self.next.retain(|(left, _)| *left > 0);
        let Some((left, fault)) = self.next.front_mut() else { return self.always.clone() };
        *left -= 1;
        Some(fault.clone())
    }
}
