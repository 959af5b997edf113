//! Two futures polled as one.
//!
//! Not `tokio::select!`, which in an `async fn` reserves space for both futures twice. Not `futures_util`'s `select`,
//! which takes futures that are `Unpin`: both would be boxed. PERF: with this and other measures the future of a flight
//! takes 3.2 KB instead of 9.9 KB (`docs/decisions/0002-small-boxed-futures.md`).

use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// A future that awaits one future while the other one runs alongside.
    pub(crate) struct Alongside<A, B> {
        #[pin]
        awaited: A,
        #[pin]
        other: B,
    }
}

impl<A, B> Alongside<A, B> {
    pub(crate) fn new(awaited: A, other: B) -> Self {
        Self { awaited, other }
    }
}

impl<A: Future, B: Future<Output = Infallible>> Future for Alongside<A, B> {
    type Output = A::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<A::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.awaited.poll(cx) {
            return Poll::Ready(done);
        }
        this.other.poll(cx).map(|never| match never {})
    }
}
