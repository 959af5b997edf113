//! One call of the origin: what it is asked, and what it answers with.

use super::{
    ask::stored,
    body::GuardBody,
    made::Made,
    semantics::{fields, freshness::Times, request::Wish, validation},
    service::Answer,
    status::{Note, Noted},
};
use crate::{
    clock::{self, Timestamp},
    engine::{End, Failure, Head, Place, Share, Turn},
    entry::{Entry, Live},
    error::{BoxError, Error, ErrorKind},
    policy::{self, Freshness},
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use std::{future::poll_fn, sync::Arc};
use tower_service::Service;

/// A request, without what is sent on.
pub(super) struct Call {
    pub(super) wish: Wish,
    /// Its head, which is not in what is sent on until it is.
    pub(super) client: Arc<HeaderMap>,
    pub(super) place: Place,
}

impl Call {
    /// Decides at the head of the response, before anybody who waits is released.
    pub(super) async fn make<S, Req, B>(
        self,
        inner: S,
        mut request: Request<Req>,
        turn: Turn,
    ) -> Head<Answer<B, S::Error>>
    where
        S: Service<Request<Req>, Response = Response<B>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        *request.headers_mut() = HeaderMap::clone(&self.client);
        let (id, trail, seen) = match turn {
            Turn::Lead { id, trail, seen, .. } => {
                validation::strip(request.headers_mut());
                (id, trail, seen)
            }
            Turn::Pass { id, trail } => (id, trail, None),
            Turn::Alone => return Head::private(alone(inner, request, "bypass").await),
        };
        let why = why(seen.as_ref(), &trail);
        let known = seen.as_ref().and_then(stored).filter(|stored| stored.status == StatusCode::OK);
        let age = seen.as_ref().map(|seen| seen.age(Timestamp::now())).unwrap_or_default();
        let conditions = known.map(|known| validation::conditions(&known.headers)).unwrap_or_default();
        let known = known.filter(|_| !conditions.is_empty());
        request.headers_mut().extend(conditions);
        let asked = clock::wall();
        let mut response = match call(inner, request).await {
            Ok(response) => response,
            Err(error) => return failed(Err(error), "the service failed"),
        };
        let (times, status) = (Times { asked, answered: clock::wall() }, response.status());
        fields::dated(response.headers_mut(), times.answered);
        let made = Made { call: &self, id, trail, times, why, status };
        match known.filter(|_| status == StatusCode::NOT_MODIFIED) {
            None => made.answered(response),
            Some(known) if validation::freshens(&known.headers, response.headers()) => {
                made.confirmed(known, response.headers())
            }
            Some(known) => {
                // As long as it is here it would be asked about again.
                let _ = self.place.clone().invalidate().await;
                made.unconfirmed(known, age)
            }
        }
    }
}

/// RFC 9211 §2.2.
fn why(seen: Option<&Entry>, trail: &[Live]) -> &'static str {
    match seen.filter(|entry| stored(entry).is_some()) {
        Some(entry) if policy::freshness(entry, Timestamp::now()) == Freshness::Fresh => "request",
        Some(_) => "stale",
        None if trail.is_empty() => "uri-miss",
        None => "vary-miss",
    }
}

async fn call<S, Req>(mut inner: S, request: Request<Req>) -> Result<S::Response, S::Error>
where
    S: Service<Request<Req>>,
{
    poll_fn(|cx| inner.poll_ready(cx)).await?;
    inner.call(request).await
}

/// For its own client, as it is.
pub(super) async fn alone<S, Req, B>(inner: S, request: Request<Req>, why: &'static str) -> Answer<B, S::Error>
where
    S: Service<Request<Req>, Response = Response<B>>,
{
    let response = pass(call(inner, request).await?);
    let note = Note::Forwarded { why, status: response.status().as_u16(), stored: false };
    Ok(Noted { response, note: Some(note) })
}

/// The origin's own response, untouched: its first byte is passed on when it comes.
pub(super) fn pass<B>(response: Response<B>) -> Response<GuardBody<B>> {
    response.map(GuardBody::origin)
}

fn failed<B, E>(own: Answer<B, E>, what: &'static str) -> Head<Answer<B, E>> {
    let failure = Failure::Error(Error::new(ErrorKind::Origin, what));
    Head { own, share: Share::Failed(failure, Some(StatusCode::BAD_GATEWAY.as_u16())), end: End::Nothing }
}
