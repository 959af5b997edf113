//! Operations that are undone if their caller is cancelled.

use stampede_guard::{
    lock::recipe::{Attempt, DetachOnDrop, LockClient, detach},
    store::{BoxFuture, StoreError},
};
use std::sync::Arc;

/// What is done in the background with the output of an operation whose caller was cancelled.
type Undo<T> = fn(T) -> Option<BoxFuture<'static, ()>>;

/// Returns the output of the operation. If the future is dropped before it completes, the operation continues in the
/// background, and then `undo` gets its output.
pub(super) async fn completed<T: Send + 'static>(
    client: &Arc<LockClient>,
    operation: BoxFuture<'static, T>,
    undo: Undo<T>,
) -> T {
    let owner = client.clone();
    let operation = async move { Completed { client: owner, output: Some(operation.await), undo } };
    let mut completed = DetachOnDrop::new(&client.background, Box::pin(operation)).await;
    completed.output.take().expect("it is taken here only")
}

/// Releases a lock that was granted after its caller was cancelled.
pub(super) fn release_if_acquired(attempt: Result<Attempt, StoreError>) -> Option<BoxFuture<'static, ()>> {
    let Ok(Attempt::Acquired { held, .. }) = attempt else { return None };
    Some(Box::pin(async move { drop(held.release().await) }))
}

/// The output of an operation. If it is dropped before it is taken, it is undone.
struct Completed<T: Send + 'static> {
    client: Arc<LockClient>,
    output: Option<T>,
    undo: Undo<T>,
}

impl<T: Send + 'static> Drop for Completed<T> {
    fn drop(&mut self) {
        if let Some(undone) = self.output.take().and_then(self.undo) {
            detach(&self.client.background, undone);
        }
    }
}
