//! The response future of the HTTP layer.

use super::body::CacheBody;
use crate::store::error::BoxFuture;
use http::Response;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
/// The response future of [`HttpCache`](super::HttpCache). A hit in memory is ready at once, without an
/// allocation.
///
/// Cancel safe: dropping it does not stop a fetch that other requests may share, within the limit of
/// [`max_detached`](crate::StampedeGuard::max_detached). An invalidation by an unsafe request goes on too.
///
/// # Panics
///
/// If polled again after completion.
pub struct ResponseFuture<B, E>(ResponseState<B, E>);

enum ResponseState<B, E> {
    /// PERF: without an allocation.
    Ready(Option<Response<CacheBody<B>>>),
    Slow(BoxFuture<'static, Result<Response<CacheBody<B>>, E>>),
}

impl<B, E> ResponseFuture<B, E> {
    pub(super) fn ready(response: Response<CacheBody<B>>) -> Self {
        Self(ResponseState::Ready(Some(response)))
    }

    pub(super) fn slow(answer: impl Future<Output = Result<Response<CacheBody<B>>, E>> + Send + 'static) -> Self {
        Self(ResponseState::Slow(Box::pin(answer)))
    }
}

/// Nothing is pinned in place: the inner future is boxed.
impl<B, E> Unpin for ResponseFuture<B, E> {}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<CacheBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            ResponseState::Ready(response) => Poll::Ready(Ok(response.take().expect("polled after completion"))),
            ResponseState::Slow(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
