//! Passes a request through uncached.

use super::{
    body::CacheBody,
    cache_status_field::{Annotated, Answer, StatusNote},
};
use http::{Request, Response};
use std::future::poll_fn;
use tower_service::Service;

/// Drives the service to readiness and calls it.
pub(super) async fn call_when_ready<S, Req>(mut inner: S, request: Request<Req>) -> Result<S::Response, S::Error>
where
    S: Service<Request<Req>>,
{
    poll_fn(|cx| inner.poll_ready(cx)).await?;
    inner.call(request).await
}

/// Forwards a request unchanged, for its own client only.
pub(super) async fn forward_uncached<S, Req, B>(
    inner: S,
    request: Request<Req>,
    reason: &'static str,
) -> Answer<B, S::Error>
where
    S: Service<Request<Req>, Response = Response<B>>,
{
    let response = passthrough(call_when_ready(inner, request).await?);
    let note = StatusNote::Forwarded { reason, status: response.status().as_u16(), stored: false };
    Ok(Annotated { response, note: Some(note) })
}

/// Returns the origin's response with its body untouched: its first byte is passed on as soon as it arrives.
pub(super) fn passthrough<B>(response: Response<B>) -> Response<CacheBody<B>> {
    response.map(CacheBody::origin)
}
