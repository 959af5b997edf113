//! Passes a request through uncached, and finds out whether it has to pass because it has a body.

use super::{
    body::CacheBody,
    reply::{Annotated, Answer, StatusNote, Storage},
};
use crate::uncached::Uncached;
use http::{HeaderMap, Method, Request, Response, header};
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

/// What the head of a request and its unread body say about whether it has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyPresence {
    Absent,
    Present,
    /// A layer above the guard has wrapped the body, or the request was built in this process.
    Unknown,
}

/// Returns whether the request has a body, according to its head and its unread body. Only a GET or HEAD may be
/// `Unknown`: other methods are not cached.
///
/// The absence of `Content-Length` and `Transfer-Encoding` proves nothing. RFC 9112 §6.3 concludes from it that a
/// message of HTTP/1.1 has no body. But a layer that decompresses requests removes the first of these fields, and a
/// proxy the second.
pub(super) fn body_presence<B: Body>(request: &Request<B>) -> BodyPresence {
    let body = request.body();
    if body.is_end_stream() {
        return BodyPresence::Absent; // PERF: most requests end here
    }
    let size = body.size_hint();
    if size.upper() == Some(0) {
        return BodyPresence::Absent;
    }
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_get || size.lower() > 0 || is_framed(request.headers()) {
        return BodyPresence::Present;
    }
    BodyPresence::Unknown
}

/// Reports whether the framing of HTTP/1 announces a body.
fn is_framed(headers: &HeaderMap) -> bool {
    let is_zero = |length: &http::HeaderValue| length == "0";
    headers.contains_key(header::TRANSFER_ENCODING) || !headers.get_all(header::CONTENT_LENGTH).iter().all(is_zero)
}

#[cfg(feature = "axum")]
pub(super) use probe::is_empty;

/// Reports whether the body is empty, if that can be found out without taking a part of it.
#[cfg(not(feature = "axum"))]
pub(super) async fn is_empty<B>(_: &mut B) -> bool {
    false
}

/// Creates an empty body, if one of this type can be created: only that of axum.
pub(super) fn empty_body<B: 'static>() -> Option<B> {
    #[cfg(feature = "axum")]
    return (&mut Some(axum::body::Body::empty()) as &mut dyn std::any::Any).downcast_mut::<Option<B>>()?.take();
    #[cfg(not(feature = "axum"))]
    None
}

#[cfg(feature = "axum")]
mod probe {
    use axum::{Error, body::Body};
    use bytes::Bytes;
    use http_body::{Body as HttpBody, Frame};
    use std::{
        any::Any,
        future::poll_fn,
        mem,
        pin::Pin,
        task::{Context, Poll},
    };

    /// Reports whether the body is empty, if that can be found out without taking a part of it.
    ///
    /// Only for the body of axum, because a frame that was read can be put back into that. Other bodies do not count as
    /// empty, and neither does a body whose first frame is not ready yet.
    pub(in crate::http) async fn is_empty<B: 'static>(body: &mut B) -> bool {
        let Some(body) = (body as &mut dyn Any).downcast_mut::<Body>() else { return false };
        loop {
            return match poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await {
                Poll::Ready(None) => {
                    *body = Body::empty();
                    true
                }
                // HTTP/2 may end a body by an empty frame.
                Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(Bytes::is_empty) => continue,
                Poll::Ready(first) => {
                    *body = Body::new(Probed { first, rest: mem::take(body) });
                    false
                }
                Poll::Pending => false,
            };
        }
    }

    /// A body whose first frame has been read.
    struct Probed {
        first: Option<Result<Frame<Bytes>, Error>>,
        rest: Body,
    }

    impl HttpBody for Probed {
        type Data = Bytes;
        type Error = Error;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
            match self.first.take() {
                None => Pin::new(&mut self.rest).poll_frame(cx),
                first => Poll::Ready(first),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body::{Frame, SizeHint};
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll},
    };

    /// A body with these bounds of its size.
    struct Hinted(u64, Option<u64>);

    impl Body for Hinted {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(None)
        }

        fn size_hint(&self) -> SizeHint {
            let mut size = SizeHint::new();
            size.set_lower(self.0);
            self.1.into_iter().for_each(|upper| size.set_upper(upper));
            size
        }
    }

    #[test]
    fn presence_follows_size_hint_and_framing() {
        let presence_of = |method: Method, (lower, upper), fields: &[(&'static str, &'static str)]| {
            let mut request = Request::builder().method(method);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            body_presence(&request.body(Hinted(lower, upper)).unwrap())
        };
        let unknown = (0, None);
        for (size, fields, expected) in [
            ((0, Some(0)), &[][..], BodyPresence::Absent),
            ((1, None), &[], BodyPresence::Present),
            ((0, Some(9)), &[], BodyPresence::Unknown),
            (unknown, &[], BodyPresence::Unknown),
            (unknown, &[("content-length", "0")], BodyPresence::Unknown),
            (unknown, &[("content-length", "5")], BodyPresence::Present),
            (unknown, &[("transfer-encoding", "chunked")], BodyPresence::Present),
        ] {
            for method in [Method::GET, Method::HEAD] {
                assert_eq!(presence_of(method, size, fields), expected, "{size:?} {fields:?}");
            }
        }
        assert_eq!(presence_of(Method::POST, unknown, &[]), BodyPresence::Present, "it is not polled");
    }
}
