//! Runs before the guard: changes a request to what the origin will see, or rejects it.

use crate::{
    fields,
    target::{self, Refusal},
};
use http_body_util::{Either, Full};
use hyper::{
    Request, Response, Version,
    body::{Body, Bytes, Incoming},
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use std::convert::Infallible;
use tower::{Service, ServiceExt};

/// Answers one request of a client with `service`, the guard and the origin. `trusted` are fields that a proxy in front
/// sets.
pub(crate) async fn answer<S, B>(
    service: S,
    mut request: Request<Incoming>,
    trusted: &[&str],
) -> Result<Response<Either<B, Full<Bytes>>>, Infallible>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes>,
{
    let uri = match target::of(&request) {
        Ok(uri) => uri,
        Err(refusal) => return Ok(refused(refusal).map(Either::Right)),
    };
    let version = std::mem::replace(request.version_mut(), Version::HTTP_11);
    if let Some(authority) = uri.authority() {
        fields::forward_request(request.headers_mut(), version, authority, trusted);
    }
    *request.uri_mut() = uri;
    Ok(service.oneshot(request).await?.map(Either::Left))
}

/// Returns a one-line response with the reason. It must not be stored.
pub(crate) fn refused(Refusal(status, why): Refusal) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{why}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
