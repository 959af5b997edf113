//! Work that completes in the background if its caller is cancelled.
//!
//! Not `tokio::spawn` from the start: it would cost every operation a task, although few callers are cancelled, and the
//! output would be lost with a cancelled caller. Not `futures_util`'s `RemoteHandle`, which needs the same task.

use futures_util::future::BoxFuture;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::TaskTracker;

/// A future that continues as a task if it is dropped before it completes.
///
/// The task drops the output: the guard of a lock whose caller was cancelled releases the lock.
/// The work is cancelled if there is no tokio runtime, or once five seconds have passed since the drop.
pub struct DetachOnDrop<T: Send + 'static> {
    /// `None` after its completion.
    operation: Option<BoxFuture<'static, T>>,
    tracker: TaskTracker,
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// Wraps `operation`. A task for it is tracked by `tracker`.
    #[must_use]
    pub fn new(tracker: &TaskTracker, operation: BoxFuture<'static, T>) -> Self {
        Self { operation: Some(operation), tracker: tracker.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for DetachOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachOnDrop").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(operation) = &mut self.operation else { return Poll::Pending }; // polled after completion
        let output = ready!(operation.as_mut().poll(cx));
        self.operation = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            detach(&self.tracker, async move { drop(operation.await) });
        }
    }
}

/// Runs the work in the background for at most five seconds. Without a tokio runtime the work is dropped.
pub fn detach(tracker: &TaskTracker, work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        tracker.spawn_on(async move { drop(timeout(BACKGROUND_TIMEOUT, work).await) }, &runtime);
    }
}

/// Maximum duration of background work: a server that has not replied by then is not waited for.
pub(crate) const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(5);
