//! What one request makes of what is stored or shared.

use super::{
    body::{Growing, GuardBody},
    head::{self, Stored},
    index::{self, INDEX, Selected},
    reply::Reply,
    rules::Rules,
    semantics::{
        request::{Credentials, Wish},
        reuse::{self, Ages, Reuse},
        storing::Open,
    },
    service::Answer,
    status::Note,
};
use crate::{
    clock::Timestamp,
    config::Config,
    engine::{Class, EVERYBODY, Hop, Judge, Offer, Verdict},
    entry::{Entry, Kind, Live},
    error::Error,
    policy::{self, Early, Freshness},
    store::Token,
};
use http::{HeaderMap, StatusCode};
use std::{borrow::Borrow, marker::PhantomData, sync::Arc, time::Duration};

/// A request, `H` its head, under the settings `C`.
pub(super) struct Asking<H, C, B, E> {
    pub(super) wish: Wish,
    pub(super) headers: H,
    pub(super) config: C,
    pub(super) asked: Timestamp,
    pub(super) early: Early,
    pub(super) of: PhantomData<fn() -> (B, E)>,
}

/// A response on its way, for those who wait in this process.
pub(super) struct InTransit {
    pub(super) id: Token,
    /// Which requests select it, if that is not known from its place.
    pub(super) selected: Option<Selected>,
    pub(super) open: Open,
    pub(super) answered: Timestamp,
    /// The age with which it came.
    pub(super) age: Duration,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// None: it cannot be shared, and they get none.
    pub(super) body: Option<Arc<Growing>>,
    /// It says that the origin is in trouble: whoever may not have it gets its status.
    pub(super) failure: Option<Blame>,
}

/// What a server error is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    Origin,
    /// Perhaps the credentials that the request had: those who have none may get something else.
    Credentials,
}

impl<H: Borrow<HeaderMap>, C: Borrow<Config>, B, E> Asking<H, C, B, E> {
    fn rules(&self) -> &Rules {
        &self.config.borrow().rules
    }

    fn reply(&self) -> Reply<'_> {
        Reply { wish: &self.wish, request: self.headers.borrow() }
    }

    /// The stored response, if it is one, and for this request.
    fn stored<'e>(&self, entry: &'e Entry) -> Option<&'e Stored> {
        stored(entry).filter(|stored| stored.facts.open.admits(self.wish.credentials))
    }

    /// Whether it is too late to join.
    fn is_too_old(&self, shared: &InTransit) -> bool {
        // Half an answer is of no use to those who have the time to ask for a whole one.
        let broken_off = shared.body.as_ref().is_some_and(|body| body.has_broken_off());
        let demand = &self.wish.demand;
        let age = Timestamp::now().since(shared.answered) + shared.age;
        // What was answered after the client asked is new to it, whatever it demands.
        let refused = demand.no_cache || demand.max_age.is_some_and(|max_age| age >= max_age);
        broken_off || (shared.answered < self.asked && refused)
    }
}

impl<H: Borrow<HeaderMap>, C: Borrow<Config>, B, E> Judge<Answer<B, E>> for Asking<H, C, B, E> {
    fn judge(&self, entry: &Entry, now: Timestamp) -> Verdict {
        let freshness = policy::freshness(entry, now);
        if entry.meta().kind == Kind::Value && entry.meta().codec == INDEX {
            return if freshness == Freshness::Fresh { Verdict::Beneath } else { Verdict::Ignore };
        }
        let Some(stored) = stored(entry) else { return Verdict::Ignore };
        let facts = &stored.facts;
        if !facts.open.admits(self.wish.credentials) {
            return Verdict::Decline;
        }
        let (here, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
        let early = || !facts.immutable && self.early.is_due(entry, now);
        let ages = Ages { age: here + stored.age, here, fresh_for };
        match reuse::reuse(facts, &self.wish.demand, ages) {
            Reuse::Fresh if early() => Verdict::ServeAndRefresh,
            Reuse::Fresh | Reuse::Stale => Verdict::Serve,
            Reuse::Expired if freshness == Freshness::Revalidate => Verdict::ServeAndRefresh,
            Reuse::Expired | Reuse::TooOld if freshness == Freshness::Dead => Verdict::Ignore,
            Reuse::Expired | Reuse::TooOld => Verdict::Validate,
        }
    }

    fn forgives(&self, entry: &Entry, now: Timestamp) -> bool {
        let Some(stored) = self.stored(entry) else { return false };
        let stale_for = entry.age(now).saturating_sub(entry.meta().lifetimes.fresh_for);
        let accepted = !stored.facts.never_stale && stale_for < self.wish.demand.stale_if_error;
        accepted || policy::forgives(entry, now)
    }

    fn read(&self, entry: &Entry, now: Timestamp) -> Option<Answer<B, E>> {
        let stored = self.stored(entry)?;
        let (age, fresh_for) = (entry.age(now), entry.meta().lifetimes.fresh_for);
        let seconds = |span: Duration| (span.as_secs() + u64::from(span.subsec_millis() > 0)) as i64;
        let ttl = seconds(fresh_for.saturating_sub(age)) - seconds(age.saturating_sub(fresh_for));
        Some(Ok(self.reply().stored(stored, age + stored.age, Note::Ttl(ttl))))
    }

    fn beneath(&self, index: &Entry) -> Option<Hop> {
        (index.meta().codec == INDEX).then(|| index::follow(index, self.headers.borrow(), self.rules()))?
    }

    fn share(&self, live: &Live) -> Offer<Answer<B, E>> {
        let Some(shared) = live.downcast_ref::<InTransit>() else { return Offer::Declined };
        let hop = shared.selected.as_ref().and_then(|selected| {
            let hop = index::hop(shared.id, selected.fields.clone(), self.headers.borrow(), self.rules());
            (hop.variant != selected.variant).then_some(hop)
        });
        let admitted = shared.open.admits(self.wish.credentials);
        let why = if shared.selected.is_some() { "vary-miss" } else { "uri-miss" };
        match hop {
            _ if shared.failure == Some(Blame::Credentials) && self.wish.credentials == Credentials::None => {
                Offer::Again
            }
            _ if shared.failure.is_some() && !admitted => {
                let bare = (shared.status, HeaderMap::new(), GuardBody::stored(bytes::Bytes::new()));
                Offer::Taken(Ok(self.reply().shared(bare, Duration::ZERO, Note::Collapsed { why })))
            }
            Some(hop) => Offer::Beneath(hop),
            None if !admitted => Offer::Declined,
            None if self.is_too_old(shared) => Offer::TooOld,
            None => {
                let body =
                    shared.body.as_ref().map_or_else(|| GuardBody::stored(bytes::Bytes::new()), GuardBody::growing);
                let (head, age) = ((shared.status, shared.headers.clone(), body), shared.age);
                let age = Timestamp::now().since(shared.answered) + age;
                Offer::Taken(Ok(self.reply().shared(head, age, Note::Collapsed { why })))
            }
        }
    }

    fn heeds(&self, class: Class) -> bool {
        match class {
            EVERYBODY => true,
            WITH_CREDENTIALS => self.wish.credentials != Credentials::None,
            _ => false,
        }
    }

    fn refuse(&self, error: Error) -> Answer<B, E> {
        Ok(super::reply::refused(&error))
    }
}

impl<H: Clone, C: Clone, B, E> Clone for Asking<H, C, B, E> {
    fn clone(&self) -> Self {
        let Self { wish, asked, early, of, .. } = *self;
        Self { wish, headers: self.headers.clone(), config: self.config.clone(), asked, early, of }
    }
}

/// The response that the entry is.
pub(super) fn stored(entry: &Entry) -> Option<&Stored> {
    let is_response = entry.meta().kind == Kind::Value && entry.meta().codec == RESPONSE;
    is_response.then(|| entry.payload().look(head::decode))?
}

/// Tells stored responses from typed values, and from other formats of the head.
pub(super) const RESPONSE: u64 = u64::from_be_bytes(*b"http-2\0\0");
/// The class of those who ask with credentials.
pub(super) const WITH_CREDENTIALS: Class = 1;
