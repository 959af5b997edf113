//! Work that is brought to its end even if whoever wanted it goes away.

use crate::store::BoxFuture;
use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::TaskTracker;

/// Awaited, it is the work. Dropped before its end, the work goes on as a task, and what comes of it is handed to `then`:
/// a lock that was granted to nobody is given back, for one.
///
/// Without a runtime to go on in, and after [`LATE`], the work is given up.
pub(crate) struct Behind<T: Send + 'static>(State<T>);

enum State<T> {
    Working(Work<T>),
    Done,
}

struct Work<T> {
    doing: BoxFuture<'static, T>,
    then: fn(T) -> Option<BoxFuture<'static, ()>>,
    owner: TaskTracker,
}

impl<T: Send + 'static> Behind<T> {
    pub(crate) fn new(
        owner: &TaskTracker,
        doing: BoxFuture<'static, T>,
        then: fn(T) -> Option<BoxFuture<'static, ()>>,
    ) -> Self {
        Self(State::Working(Work { doing, then, owner: owner.clone() }))
    }
}

impl<T: Send + 'static> Future for Behind<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let State::Working(work) = &mut self.0 else { return Poll::Pending }; // polled after its end
        let output = ready!(work.doing.as_mut().poll(cx));
        self.0 = State::Done;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Behind<T> {
    fn drop(&mut self) {
        let State::Working(Work { doing, then, owner }) = mem::replace(&mut self.0, State::Done) else { return };
        spawn(&owner, async move {
            if let Some(rest) = then(doing.await) {
                rest.await;
            }
        });
    }
}

/// Does that behind, if there is a runtime.
pub(crate) fn spawn(owner: &TaskTracker, work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        owner.spawn_on(
            async move {
                let _ = timeout(LATE, work).await;
            },
            &runtime,
        );
    }
}

/// A server that has not answered by then is not waited for any longer.
const LATE: Duration = Duration::from_secs(5);
