//! Passes a request through uncached.

use super::{
    body::CacheBody,
    cache_status_field::{Annotated, Answer, StatusNote, Storage},
};
use crate::uncached::Uncached;
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

/// Forwards a request unchanged, for its own client only: `fwd` is that of RFC 9211 §2.2.
pub(super) async fn forward_uncached<S, Req, B>(
    inner: S,
    request: Request<Req>,
    fwd: &'static str,
    reason: Uncached,
) -> Answer<B, S::Error>
where
    S: Service<Request<Req>, Response = Response<B>>,
{
    let response = passthrough(call_when_ready(inner, request).await?);
    let (status, storage) = (response.status().as_u16(), Storage::NotStored(reason));
    let note = StatusNote::Forwarded { reason: fwd, status, storage };
    Ok(Annotated { response, note: Some(note) })
}

/// Returns the origin's response with its body untouched: its first byte is passed on as soon as it arrives.
pub(super) fn passthrough<B>(response: Response<B>) -> Response<CacheBody<B>> {
    response.map(CacheBody::origin)
}
