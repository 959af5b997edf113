//! Passes a request through uncached, and finds out whether it has to pass because it has a body.

use super::{
    body::CacheBody,
    reply::{Annotated, Answer, StatusNote, Storage},
};
use crate::uncached::Uncached;
use http::{Request, Response};
use http_body::Body;
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
    let response = call_when_ready(inner, request).await?.map(CacheBody::origin);
    let (status, storage) = (response.status().as_u16(), Storage::NotStored(reason));
    Ok(Annotated { response, note: StatusNote::Forwarded { reason: fwd, status, storage } })
}

/// Reports whether the request has a body. One that does not say whether it is empty counts as a body, because the
/// absence of `Content-Length` and `Transfer-Encoding` proves nothing. RFC 9112 §6.3 concludes from it that a message of
/// HTTP/1.1 has no body. But a layer that decompresses requests removes the first of these fields, and a proxy the second.
pub(super) fn has_body<B: Body>(request: &Request<B>) -> bool {
    let body = request.body();
    !body.is_end_stream() && body.size_hint().upper() != Some(0)
}

/// Creates an empty body, if one of this type can be created: only that of axum.
pub(super) fn empty_body<B: 'static>() -> Option<B> {
    #[cfg(feature = "axum")]
    return (&mut Some(axum::body::Body::empty()) as &mut dyn std::any::Any).downcast_mut::<Option<B>>()?.take();
    #[cfg(not(feature = "axum"))]
    None
}
