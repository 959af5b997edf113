//! Asks the origin over pooled connections. Runs after the guard.

use crate::{fields, front::refused, target::Refusal};
use http_body_util::{BodyExt, Either, Full};
use hyper::{
    Request, Response, StatusCode, Uri, Version,
    body::{Body, Bytes, Incoming},
    http::uri::{Authority, Parts},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use stampede_guard::BoxError;
use std::{pin::Pin, time::Duration};
use tokio::{sync::oneshot, time};

/// The origin's body, or the line with the reason why there is none.
pub(crate) type Answer = Either<Incoming, Full<Bytes>>;

/// A request body whose drop signals that it has been sent.
type Sent = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// How long a connection to the origin is kept for the next request. Gunicorn closes it after 2 s, Apache and Node.js
/// after 5 s. A request that is sent just then is lost, and one with a body cannot be sent again.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct Origin {
    client: Client<HttpConnector, Sent>,
    authority: Authority,
    patience: Duration,
}

impl Origin {
    pub(crate) fn new(authority: Authority, patience: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(patience));
        let mut client = Client::builder(TokioExecutor::new());
        let client = client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(connector);
        Self { client, authority, patience }
    }

    /// Sends the request and returns the origin's response once its head has arrived. Returns 502 and 504 as responses,
    /// so that the guard can choose a stored response instead.
    pub(crate) async fn ask(self, request: Request<Incoming>) -> Response<Answer> {
        let (mut parts, body) = request.into_parts();
        parts.uri = self.at_the_origin(parts.uri);
        let (sending, sent) = oneshot::channel::<()>();
        // The closure is dropped with the body, and `sending` with the closure.
        let body: Sent = Box::pin(body.map_err(move |error| {
            let _ = &sending;
            error.into()
        }));
        let answer = self.client.request(Request::from_parts(parts, body));
        let too_late = async {
            let _ = sent.await;
            time::sleep(self.patience).await;
        };
        let answer = tokio::select! {
            answer = answer => answer,
            () = too_late => return failed(StatusCode::GATEWAY_TIMEOUT, "the origin does not answer in time"),
        };
        match answer {
            // This proxy never asks for an upgrade, so a 101 is an error of the origin.
            Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
                let (mut parts, body) = response.into_parts();
                // Each connection has its own version.
                let version = std::mem::replace(&mut parts.version, Version::HTTP_11);
                fields::forward_response(&mut parts.headers, version);
                Response::from_parts(parts, Either::Left(body))
            }
            _ => failed(StatusCode::BAD_GATEWAY, "the origin cannot be reached"),
        }
    }

    fn at_the_origin(&self, target: Uri) -> Uri {
        let mut parts = Parts::from(target);
        parts.authority = Some(self.authority.clone());
        Uri::from_parts(parts).unwrap_or_default()
    }
}

fn failed(status: StatusCode, why: &'static str) -> Response<Answer> {
    refused(Refusal(status, why)).map(Either::Right)
}
