//! What a call of the origin has made: who may have it, how it is stored, what its own client gets.

use super::{
    ask::{Blame, InTransit, RESPONSE, WITH_CREDENTIALS},
    body::{Growing, GuardBody, Pump},
    head::{self, Stored},
    index::{self, Selected},
    origin::{Call, pass},
    reply::{self, Reply},
    semantics::{
        fields,
        freshness::Times,
        request::Credentials,
        reuse::Facts,
        storing::{self, Open, Shared, Terms},
        validation,
    },
    service::Answer,
    status::{Note, Noted},
    vary::Selecting,
};
use crate::{
    clock::{self, Timestamp},
    config::Config,
    engine::{DEPTH, EVERYBODY, End, Failure, Head, Keep, NO_ONE, Share},
    entry::{Lifetimes, Live},
    error::BoxError,
    store::Token,
};
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body;
use std::{sync::Arc, time::Duration};

/// A call that has been answered.
pub(super) struct Made<'a> {
    pub(super) call: &'a Call,
    /// Of the entry, if it is stored.
    pub(super) id: Token,
    pub(super) trail: Vec<Live>,
    pub(super) times: Times,
    /// Why the origin was asked (RFC 9211 §2.2), and what it answered.
    pub(super) why: &'static str,
    pub(super) status: StatusCode,
}

/// What becomes of a response that others wait for.
enum Fate<'a> {
    Stored(&'a Terms, Option<Selected>),
    Failed(Blame),
}

/// What is stored of a response before its body, and how.
struct Plan {
    encoded: Vec<u8>,
    keep: Keep,
    terms: Terms,
    selected: Option<Selected>,
}

impl Made<'_> {
    /// A whole response: who may have it is decided at its head.
    pub(super) fn answered<B, E>(&self, response: Response<B>) -> Head<Answer<B, E>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let (shared, config) = (self.shared(response.status(), response.headers()), &self.call.place.config);
        let (plan, size) = (|terms| self.plan(&response, terms), response.body().size_hint());
        let room = |encoded: &[u8]| (config.max_payload as u64).saturating_sub(encoded.len() as u64);
        let (encoded, plan) = match shared {
            Shared::Everybody(terms) => match plan(terms) {
                Some(plan) if self.call.wish.head => return self.head_alone(response, plan),
                Some(mut plan) if size.lower() <= room(&plan.encoded) => {
                    (std::mem::take(&mut plan.encoded), Some(plan))
                }
                _ => return self.private(response),
            },
            Shared::Failure { whole: true } if size.lower() <= room(&[]) && !self.call.wish.head => (Vec::new(), None),
            // A failing origin is no reason to fall on it: those who wait hear that it fails, and no more.
            Shared::Failure { .. } => {
                let blame = self.blame(response.headers());
                let live = self.in_transit(response.status(), HeaderMap::new(), None, Fate::Failed(blame));
                // What fails for one user is no reason to hold off all others.
                let code = (blame == Blame::Origin).then_some(self.status.as_u16());
                let share = Share::Failed(Failure::Live(live), code);
                return Head { own: Ok(self.own(pass(response), false)), share, end: End::Nothing };
            }
            Shared::Nobody => return self.private(response),
        };
        // Those who wait may read along only where the size is known to be within the cap: else they wait for the end.
        let known = size.upper().is_some_and(|most| most <= room(&encoded));
        // The end may never come: they are let go while they still have time to ask themselves.
        let patience = (!known).then(|| config.wait / 2);
        let (parts, body) = response.into_parts();
        let length = fields::content_length(&parts.headers);
        let (pump, growing, body) = Pump::new(body, &encoded, length, config.max_payload);
        let headers = fields::end_to_end(&parts.headers);
        let own = Ok(self.own(Response::from_parts(parts, body), known && plan.is_some()));
        let share = match plan {
            Some(Plan { keep, terms, selected, .. }) if known => {
                let fate = Fate::Stored(&terms, selected);
                Share::Everybody(self.in_transit(self.status, headers, Some(growing), fate), keep)
            }
            Some(Plan { keep, terms, selected, .. }) => {
                let varies = selected.is_some();
                let live = || self.in_transit(self.status, HeaderMap::new(), None, Fate::Stored(&terms, selected));
                Share::AtEnd(varies.then(live), keep)
            }
            None => {
                let live = match known {
                    true => self.in_transit(self.status, headers, Some(growing), Fate::Failed(Blame::Origin)),
                    false => self.in_transit(self.status, without_body(headers), None, Fate::Failed(Blame::Origin)),
                };
                Share::Failed(Failure::Live(live), Some(self.status.as_u16()))
            }
        };
        Head { own, share, end: End::Later(Box::pin(pump.run(patience))) }
    }

    /// RFC 9111 §4.3.3, §4.3.4: what is stored still holds, with the fields of the 304.
    pub(super) fn confirmed<B, E>(&self, known: &Stored, newer: &HeaderMap) -> Head<Answer<B, E>> {
        let headers = validation::updated(&known.headers, newer);
        let said = validation::aged(headers.clone(), newer);
        let shared = self.shared(known.status, &said);
        let mut response = Response::new(());
        (*response.status_mut(), *response.headers_mut()) = (known.status, said);
        let plan = match shared {
            Shared::Everybody(terms) => self.plan(&response, terms),
            Shared::Nobody | Shared::Failure { .. } => None,
        };
        let own = Ok(self.own(response.map(|()| GuardBody::stored(known.body.clone())), plan.is_some()));
        let Some(Plan { mut encoded, keep, terms, selected }) = plan else {
            return Head { own, share: self.nobody(), end: End::Nothing };
        };
        encoded.extend_from_slice(&known.body);
        let body = Some(Growing::complete(known.body.clone()));
        let live = self.in_transit(known.status, headers, body, Fate::Stored(&terms, selected));
        Head { own, share: Share::Everybody(live, keep), end: End::Now(bytes::Bytes::from(encoded).into()) }
    }

    /// RFC 9111 §4.3.4: it says of another response that it holds, so this one is not freshened, nor given to others, who ask
    /// again. Its own client gets it as it is, unless it must not be stale: there is nothing else to give.
    pub(super) fn unconfirmed<B, E>(&self, known: &Stored, age: Duration) -> Head<Answer<B, E>> {
        let note = Note::Forwarded { why: self.why, status: self.status.as_u16(), stored: false };
        let own = match known.facts.never_stale {
            true => reply::empty(StatusCode::BAD_GATEWAY),
            false => self.reply().stored(known, known.age + age, note),
        };
        Head { own: Ok(own), share: Share::Nobody(NO_ONE), end: End::Nothing }
    }

    /// A response to a HEAD: it has no body, whatever its `Content-Length` says.
    fn head_alone<B, E>(&self, response: Response<B>, plan: Plan) -> Head<Answer<B, E>> {
        let Plan { encoded, keep, terms, selected } = plan;
        let headers = fields::end_to_end(response.headers());
        let live = self.in_transit(self.status, headers, None, Fate::Stored(&terms, selected));
        let end = End::Now(bytes::Bytes::from(encoded).into());
        Head { own: Ok(self.own(pass(response), true)), share: Share::Everybody(live, keep), end }
    }

    fn private<B, E>(&self, response: Response<B>) -> Head<Answer<B, E>> {
        Head { own: Ok(self.own(pass(response), false)), share: self.nobody(), end: End::Nothing }
    }

    /// What one with credentials may not share, one without may perhaps get to share.
    fn nobody(&self) -> Share {
        match self.call.wish.credentials {
            Credentials::None => Share::Nobody(EVERYBODY),
            _ => Share::Nobody(WITH_CREDENTIALS),
        }
    }

    /// What a server error is about.
    fn blame(&self, headers: &HeaderMap) -> Blame {
        let open = Open::of(headers, &self.call.place.config.rules);
        if open.admits(self.call.wish.credentials) { Blame::Origin } else { Blame::Credentials }
    }

    fn shared(&self, status: StatusCode, headers: &HeaderMap) -> Shared {
        storing::shared(status, headers, self.call.wish.credentials, self.times, &self.call.place.config.rules)
    }

    /// `None` if it cannot be stored after all.
    fn plan<B>(&self, response: &Response<B>, terms: Terms) -> Option<Plan> {
        let (config, headers) = (&self.call.place.config, response.headers());
        let beyond = index::beyond(Selecting::of(headers)?, &self.trail);
        let selected = match beyond.is_empty() {
            true => None,
            false if self.trail.len() == DEPTH => return None,
            false => Some(Selected::new(self.id, beyond, &self.call.client, &config.rules)),
        };
        let encoded = head::encode(response.status(), headers, terms.age, Facts::of(headers, &config.rules))?;
        let lifetimes = lifetimes(config, &terms);
        let index = selected.as_ref().map(|selected| Box::new(selected.index(&lifetimes)));
        Some(Plan { encoded, keep: Keep { lifetimes, codec: RESPONSE, index }, terms, selected })
    }

    fn in_transit(&self, status: StatusCode, headers: HeaderMap, body: Option<Arc<Growing>>, fate: Fate<'_>) -> Live {
        let (open, age, selected, failure) = match fate {
            Fate::Stored(terms, selected) => (terms.open, terms.age, selected, None),
            Fate::Failed(blame) => {
                let open = Open::of(&headers, &self.call.place.config.rules);
                (open, self.times.initial_age(&headers), None, Some(blame))
            }
        };
        let answered = Timestamp::now();
        Arc::new(InTransit { id: self.id, selected, open, answered, age, status, headers, body, failure })
    }

    fn reply(&self) -> Reply<'_> {
        Reply { wish: &self.call.wish, request: &self.call.client }
    }

    fn own<B>(&self, response: Response<GuardBody<B>>, stored: bool) -> Noted<GuardBody<B>> {
        let note = Note::Forwarded { why: self.why, status: self.status.as_u16(), stored };
        self.reply().own(response, note)
    }
}

pub(super) fn lifetimes(config: &Config, terms: &Terms) -> Lifetimes {
    let policy = config.policy.lifetimes(terms.lifetime, clock::draw());
    Lifetimes {
        stale_while_revalidate: terms.stale_while_revalidate.unwrap_or(policy.stale_while_revalidate),
        stale_if_error: terms.stale_if_error.unwrap_or(policy.stale_if_error),
        kept: terms.keep,
        ..policy
    }
}

fn without_body(mut headers: HeaderMap) -> HeaderMap {
    for of_the_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        headers.remove(of_the_body);
    }
    headers
}
