//! The origin as an HTTP service, for subjects that are layers. It is called within the process, without sockets.

use crate::{Result, origin::Origin, subject::Boxed};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::{
    convert::Infallible,
    fmt::Display,
    task::{Context, Poll},
};
use tower::{Service, ServiceExt};

pub(crate) type Body = Full<Bytes>;

/// Answers each path with the origin's value for that key. A failure becomes a response 500.
#[derive(Clone)]
pub(crate) struct Upstream(pub(crate) Origin);

impl<B: Send + 'static> Service<Request<B>> for Upstream {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (origin, path) = (self.0.clone(), request.uri().path().to_owned());
        Box::pin(async move { Ok(respond(origin.value(&path).await)) })
    }
}

pub(crate) fn respond<B: From<Bytes>>(value: Result<String>) -> Response<B> {
    let (status, body) = match value {
        Ok(value) => (StatusCode::OK, value),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let body = Bytes::from(body);
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    let fields = response.headers_mut();
    fields.insert("content-type", http::HeaderValue::from_static("text/plain"));
    if status == StatusCode::OK {
        fields.insert("cache-control", http::HeaderValue::from_static("max-age=600"));
    }
    response
}

pub(crate) fn request<B: Default>(key: &str) -> Request<B> {
    let mut request = Request::new(B::default());
    *request.uri_mut() = format!("http://example.org/{key}").parse().expect("keys fit into a path");
    request
}

/// Sends the request and reads the body to its end. A status other than 200 is an error.
pub(crate) fn answer<S, Q, B>(service: S, request: Request<Q>) -> Boxed<Result<usize, String>>
where
    S: Service<Request<Q>, Response = Response<B>, Error: Display, Future: Send> + Send + 'static,
    Q: Send + 'static,
    B: axum::body::HttpBody<Data: Send, Error: Display> + Send + 'static,
{
    Box::pin(async move {
        let response = service.oneshot(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        if status == StatusCode::OK { Ok(body.len()) } else { Err(format!("status {status}")) }
    })
}
