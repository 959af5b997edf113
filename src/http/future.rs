//! The future of a response.

use super::body::GuardBody;
use crate::store::BoxFuture;
use http::Response;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The future of [`GuardService`](super::GuardService). An embedded hit is ready at once and allocates nothing for it.
///
/// Dropping it does not stop a computation that others may use.
///
/// # Panics
///
/// If it is polled after it has answered.
pub struct ResponseFuture<B, E>(State<B, E>);

enum State<B, E> {
    Ready(Option<Response<GuardBody<B>>>),
    Slow(BoxFuture<'static, Result<Response<GuardBody<B>>, E>>),
}

impl<B, E> ResponseFuture<B, E> {
    pub(super) fn ready(response: Response<GuardBody<B>>) -> Self {
        Self(State::Ready(Some(response)))
    }

    pub(super) fn slow(answer: impl Future<Output = Result<Response<GuardBody<B>>, E>> + Send + 'static) -> Self {
        Self(State::Slow(Box::pin(answer)))
    }
}

/// Nothing in it is pinned but what is in a box.
impl<B, E> Unpin for ResponseFuture<B, E> {}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<GuardBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            State::Ready(response) => Poll::Ready(Ok(response.take().expect("polled after it has answered"))),
            State::Slow(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
