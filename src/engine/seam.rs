//! Between the engine and those who ask it: typed fetchers, keyed services, HTTP requests.
//!
//! What is shared is erased (entries are bytes, values among callers are [`Live`]), what belongs to one caller stays
//! typed (`R`, its own answer). So `R` is never cloned nor encoded, and may be an error of any type.

use crate::{
    clock::Timestamp,
    entry::{Entry, Lifetimes, Live, Payload},
    error::Error,
    key::Address,
    lease::Token,
    store::BoxFuture,
};
use bytes::Bytes;
use std::time::Instant;

/// What one caller makes of what is stored or shared. Its answer is an `R`.
pub(crate) trait Judge<R> {
    /// What may be done with the entry. Whoever says *serve* is asked to [`read`](Self::read) it next.
    fn judge(&self, entry: &Entry, now: Timestamp) -> Verdict;
    /// Whether the entry may stand in for a fetch that failed.
    fn forgives(&self, entry: &Entry, now: Timestamp) -> bool;
    /// The entry as an answer, whatever its age. `None` if it does not decode: a miss.
    fn read(&self, entry: &Entry, now: Timestamp) -> Option<R>;
    /// Where the answer is, according to an entry of which [`judge`](Self::judge) said *beneath*. `None` if that does not
    /// decode: a miss.
    fn beneath(&self, index: &Entry) -> Option<Hop> {
        let _ = index;
        None
    }
    /// What a leader shares with those who wait.
    fn share(&self, live: &Live) -> Offer<R>;
    /// Whether an answer or a marker that turns this class of callers away turns this one away.
    fn heeds(&self, class: Class) -> bool {
        let _ = class;
        true
    }
    /// No answer.
    fn refuse(&self, error: Error) -> R;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Serve,
    ServeAndRefresh,
    /// Lead, although an entry is there; it goes to the fetch, and may be served if that fails.
    Validate,
    /// As if it were not there.
    Ignore,
    /// It says only where the answer is.
    Beneath,
    /// It is for others, and stays; this caller makes a call of its own.
    Decline,
}

/// What the shared result of somebody else's fetch is for one caller.
pub(crate) enum Offer<R> {
    Taken(R),
    /// Not for this caller, who makes a call of its own.
    Declined,
    /// From before this caller asked, and too old for it.
    TooOld,
    /// Says nothing of what this caller would get, who tries again.
    Again,
    /// The answer for this caller is elsewhere.
    Beneath(Hop),
}

/// The way to another address of the same resource.
pub(crate) struct Hop {
    /// What tells it from its siblings.
    pub(crate) variant: Bytes,
    /// The index that was passed on the way, for the fetch.
    pub(crate) passed: Live,
}

/// A class of callers. 0 is everybody.
pub(crate) type Class = u64;
pub(crate) const EVERYBODY: Class = 0;
/// Nobody is turned away: they try again.
pub(crate) const NO_ONE: Class = Class::MAX;

/// Told to a fetch.
pub(crate) enum Turn {
    /// It leads: its end will be driven, and its head says who may share it.
    Lead {
        /// The id of the entry that will be filled.
        id: Token,
        /// The indexes that were passed on the way, the first one first.
        trail: Vec<Live>,
        /// The entry at hand, if there is one.
        seen: Option<Entry>,
        /// When it will be aborted.
        deadline: Instant,
        /// Orders the leaders of one key. None while the store cannot be asked.
        fencing_token: Option<u64>,
    },
    /// It runs under a pass marker: for its own caller, but its end will be driven, and if its head says that everybody
    /// may have it, it takes the place of the marker.
    Pass { id: Token, trail: Vec<Live> },
    /// It runs for its own caller only: nothing is shared or stored, and nobody drives its end.
    Alone,
}

/// The first half of what a fetch answers.
pub(crate) struct Head<R> {
    /// Goes to the leader's own caller.
    pub(crate) own: R,
    pub(crate) share: Share,
    pub(crate) end: End,
}

impl<R> Head<R> {
    /// An answer for nobody else.
    pub(crate) fn private(own: R) -> Self {
        Self { own, share: Share::Nobody(EVERYBODY), end: End::Nothing }
    }
}

/// Who may have it, said at the head.
pub(crate) enum Share {
    /// Nobody. Those of this class are not to wait for it for a while.
    Nobody(Class),
    /// Those who wait now in this process; it is not stored.
    Waiting(Live),
    /// Everybody, from now on: the value to those who wait, the end to the store.
    Everybody(Live, Keep),
    /// Everybody, but not before the end: it may still turn out too large to be shared. Those who learn from the value that
    /// their answer is elsewhere do not wait for that.
    AtEnd(Option<Live>, Keep),
    /// It failed. Those who wait get this, others are held off by a tombstone with the code; without one they are not.
    Failed(Failure, Option<u16>),
}

/// What those get who waited for a fetch that failed.
#[derive(Clone)]
pub(crate) enum Failure {
    Error(Error),
    /// An answer that says so, such as a response 500.
    Live(Live),
}

/// How it is to be stored.
#[derive(Clone)]
pub(crate) struct Keep {
    pub(crate) lifetimes: Lifetimes,
    pub(crate) codec: u64,
    /// It goes to another address, and this in its place.
    pub(crate) index: Option<Box<Index>>,
}

/// An entry that says where others are.
#[derive(Clone)]
pub(crate) struct Index {
    /// Where the one is that it comes with.
    pub(crate) variant: Bytes,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) codec: u64,
    pub(crate) payload: Payload,
}

impl Hop {
    /// Where it leads to.
    pub(crate) fn from(&self, at: &Address) -> Address {
        at.to_variant(self.variant.clone())
    }
}

/// The second half of what a fetch answers.
pub(crate) enum End {
    Nothing,
    Now(Payload),
    Later(BoxFuture<'static, Ended>),
}

pub(crate) enum Ended {
    /// To be stored.
    Payload(Payload),
    /// It turned out too large to be stored or shared.
    OverCap,
    /// It broke off, and is never stored.
    BrokenOff,
}

impl End {
    pub(crate) async fn reached(self) -> Ended {
        match self {
            Self::Nothing => Ended::BrokenOff,
            Self::Now(payload) => Ended::Payload(payload),
            Self::Later(end) => end.await,
        }
    }
}

/// A fetch in a box: what flights carry and give back unused.
pub(crate) type BoxFetch<'a, R> = Box<dyn FnOnce(Turn) -> BoxFuture<'a, Head<R>> + Send + 'a>;

/// How a request was answered. Behind the HTTP layer it is an extension of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheVerdict {
    /// From the cache, fresh.
    Hit,
    /// From the cache, stale: it is being refreshed, the fetch for a newer one failed, or the request accepts it.
    Stale,
    /// By the origin, while this request held the lease.
    Filled,
    /// By the computation of another request, in this process or another one.
    Coalesced,
    /// By the origin for this request alone: it has no key, is not for sharing, or runs inside the computation of the
    /// same key.
    Bypassed,
    /// By the origin because the store or another leader did not answer in time; shared in this process, not stored.
    FailedOpen,
    /// Not: the computation it waited for had failed.
    Refused,
}
