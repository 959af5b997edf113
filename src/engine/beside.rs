//! Two futures as one.

use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Awaits the one, while the other goes on beside it. As a `select!` in an `async fn`, it would have room for
    /// both of them twice.
    pub(super) struct Beside<A, B> {
        #[pin]
        awaited: A,
        #[pin]
        other: B,
    }
}

impl<A, B> Beside<A, B> {
    pub(super) fn new(awaited: A, other: B) -> Self {
        Self { awaited, other }
    }
}

impl<A: Future, B: Future<Output = Infallible>> Future for Beside<A, B> {
    type Output = A::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<A::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.awaited.poll(cx) {
            return Poll::Ready(done);
        }
        match this.other.poll(cx) {
            Poll::Ready(never) => match never {},
            Poll::Pending => Poll::Pending,
        }
    }
}
