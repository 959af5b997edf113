//! The right to fill: held, kept alive, spent by a fill, or given back.

use super::{CacheVerdict, Class, Keep, flight::Flight, place::Place};
use crate::{
    clock::Timestamp,
    entry::{Entry, Kind, Lifetimes, Meta, Payload},
    key::Address,
    store::{Hold, Inbox, Lease, Listener, Right, Token, Tombstone, Write},
};
use bytes::Bytes;
use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::{Pin, pin},
    time::Duration,
};
use tokio::sync::OwnedSemaphorePermit;

/// What may be done with the result of a fetch.
pub(super) enum Claim {
    /// Fill, as the leader of the fleet.
    Lease(Box<Leading>),
    /// Nothing: it stays in this process. Still hears of invalidations. While the store is down it has a place in the
    /// bulkhead, unless it is part of a computation that has one.
    Local { listener: Box<Listener>, _place: Option<OwnedSemaphorePermit> },
    /// Take the place of this pass marker, if the answer may be stored after all.
    PassStore(Token),
    /// Nothing any more.
    Spent,
}

impl Claim {
    pub(super) fn lease(&self) -> Option<Lease> {
        match self {
            Self::Lease(leading) => Some(leading.lease),
            Self::Local { .. } | Self::PassStore(_) | Self::Spent => None,
        }
    }

    pub(super) fn verdict(&self) -> CacheVerdict {
        match self {
            Self::Lease(_) => CacheVerdict::Filled,
            Self::Local { .. } => CacheVerdict::FailedOpen,
            Self::PassStore(_) | Self::Spent => CacheVerdict::Bypassed,
        }
    }

    /// The id of what is filled.
    pub(super) fn id(&self) -> Token {
        self.lease().map_or_else(|| Token::unique(Inbox::unique()), |lease| lease.token)
    }

    /// Keeps the lease, if this is one, and hears of invalidations; for as long as it is polled.
    pub(super) async fn keep(&mut self, flight: &Flight) -> Infallible {
        match self {
            Self::Lease(leading) => leading.keep(flight).await,
            Self::Local { listener, .. } => hearing(listener, flight, pin!(pending())).await,
            Self::PassStore(_) | Self::Spent => pending().await,
        }
    }

    /// Stores the entry, if this is a right to do so. Its flight may be joined meanwhile, so it hears of invalidations.
    pub(super) async fn fill(self, place: &Place, flight: &Flight, made: &Made) {
        match self {
            Self::Lease(leading) if leading.lost => leading.guard.spent(),
            Self::Lease(mut leading) => {
                let fill = pin!(place.fill(Right::Lease(leading.lease), made));
                match hearing(&mut leading.listener, flight, fill).await {
                    Ok(_) => leading.guard.spent(),
                    Err(_) => _ = leading.guard.abandon(None).await,
                }
            }
            Self::PassStore(marker) => _ = place.fill(Right::Promote(marker), made).await,
            Self::Local { .. } | Self::Spent => {}
        }
    }

    /// Gives the lease back, if this is one and it is still held.
    pub(super) async fn give_back(self, tombstone: Option<Tombstone>) -> Hold {
        match self {
            Self::Lease(leading) => leading.guard.abandon(tombstone).await,
            Self::PassStore(_) | Self::Local { .. } | Self::Spent => Hold::Lost,
        }
    }
}

/// A lease and what is needed to keep it.
pub(super) struct Leading {
    lease: Lease,
    guard: LeaseGuard,
    listener: Listener,
    lost: bool,
}

impl Leading {
    pub(super) fn new(lease: Lease, guard: LeaseGuard, listener: Listener) -> Self {
        Self { lease, guard, listener, lost: false }
    }

    /// Extends the lease and hears of invalidations, for as long as it is polled; dropped before the fill.
    async fn keep(&mut self, flight: &Flight) -> Infallible {
        loop {
            let Self { lease, guard, listener, .. } = self;
            let extended = pin!(async {
                tokio::time::sleep(guard.place.config.lease / 3).await;
                Box::pin(guard.place.extend(*lease)).await // few last so long: no flight has room for it
            });
            if let Ok(Hold::Lost) = hearing(listener, flight, extended).await {
                flight.detach();
                self.lost = true;
                pending::<()>().await;
            }
        }
    }
}

/// Awaits, and takes the flight out of the map when an invalidation is heard of meanwhile. That is only a hint, and
/// perhaps of one before the grant: whether the fill lands, the store says.
async fn hearing<T>(listener: &mut Listener, flight: &Flight, mut awaited: Pin<&mut impl Future<Output = T>>) -> T {
    loop {
        tokio::select! {
            biased;
            () = listener.gone() => flight.gone(),
            done = &mut awaited => return done,
        }
    }
}

/// Gives a lease back when it is dropped. Made before the lease is asked for: an answer that is lost, or not waited
/// for, leaves nothing behind.
pub(super) struct LeaseGuard {
    place: Place,
    token: Token,
    armed: bool,
}

impl LeaseGuard {
    pub(super) fn new(place: Place, token: Token) -> Self {
        Self { place, token, armed: true }
    }

    /// There is nothing to give back.
    pub(super) fn spent(mut self) {
        self.armed = false;
    }

    /// Gives it back. Dropped while it waits, it does so behind.
    pub(super) async fn abandon(mut self, tombstone: Option<Tombstone>) -> Hold {
        let answer = self.place.abandon(self.token, tombstone).await;
        self.armed = false; // if the store did not say, the lease ends by itself
        answer.unwrap_or(Hold::Lost)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // Without a runtime the process is about to end; the lease ends by itself.
        if self.armed && tokio::runtime::Handle::try_current().is_ok() {
            let (place, token) = (self.place.clone(), self.token);
            self.place.engine.tasks.spawn(async move { place.abandon(token, None).await });
        }
    }
}

/// What a fetch has made.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) entry: Entry,
    /// If the entry goes to that variant: what takes its place.
    pub(crate) index: Option<(Bytes, Entry)>,
}

impl Made {
    /// Of a fetch that began and answered then.
    pub(super) fn new(id: Token, (began, answered): (Timestamp, Timestamp), keep: Keep, payload: Payload) -> Self {
        let entry = |lifetimes, codec, payload: Payload| {
            let meta = Meta { kind: Kind::Value, id, answered, cost: answered.since(began), lifetimes, codec };
            Entry::new(meta, payload)
        };
        let index = keep.index.map(|index| (index.variant, entry(index.lifetimes, index.codec, index.payload)));
        Self { entry: entry(keep.lifetimes, keep.codec, payload), index }
    }

    /// The marker that an answer is not for this class of callers.
    pub(super) fn marker(id: Token, kind: Kind, class: Class, span: Duration) -> Self {
        let lifetimes = Lifetimes { fresh_for: span, ..Lifetimes::default() };
        let meta = Meta { kind, id, answered: Timestamp::now(), cost: Duration::ZERO, lifetimes, codec: class };
        Entry::new(meta, Bytes::new()).into()
    }

    /// What is stored where, the address itself first.
    pub(super) fn writes(&self, at: &Address) -> Vec<Write> {
        let (entry, at) = (self.entry.clone(), at.clone());
        match &self.index {
            None => vec![Write { at, entry }],
            Some((variant, index)) => {
                let beneath = at.to_variant(variant.clone());
                vec![Write { at, entry: index.clone() }, Write { at: beneath, entry }]
            }
        }
    }
}

impl From<Entry> for Made {
    fn from(entry: Entry) -> Self {
        Self { entry, index: None }
    }
}
