//! The contract between the engine and its front ends: typed fetchers, keyed services, HTTP requests.
//!
//! Shared data is erased: entries are bytes, values shared between callers are [`SharedValue`]. The answer of one caller
//! is an `R` of its front end, which is never cloned or encoded, and may be an error of any type. The engine boxes it as
//! [`AnyAnswer`](super::erased::AnyAnswer), except on a hit.

use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::Timestamp,
    config::FailureClass,
    error::Error,
    key::CacheKey,
    policy::is_uncacheable_marker,
    store::{
        entry::{Audience, Entry, Kind, Lifetimes, Payload, SharedValue},
        error::BoxFuture,
        port::Renewal,
        token::Token,
    },
    telemetry::FetchFailure,
};
use bytes::Bytes;
use std::time::Instant;

/// What one caller accepts of stored and shared responses.
pub(crate) trait ReusePolicy: Send + Sync {
    /// Classifies an entry that is no marker, without decoding an answer.
    fn classify(&self, entry: &Entry, now: Timestamp) -> Reuse;
    /// Reports whether the entry may replace a failed fetch (stale-if-error).
    fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool;
    /// Reports whether a marker or private response with this audience applies to this caller.
    fn is_covered_by(&self, _audience: Audience) -> bool {
        true
    }
    /// Returns a hash of the request, by which the repeat of a failed fetch goes to another kind of request. `None` if
    /// all requests are alike: a failure then counts at once.
    fn request_hash(&self) -> Option<u64> {
        None
    }

    /// Returns the [number](crate::versions::Versions::now) of a refresh, which takes no result of a fetch that had begun
    /// before. 0 for another caller.
    fn since(&self) -> u64 {
        0
    }

    /// Classifies an entry, a marker included, without decoding an answer.
    fn class_of(&self, entry: &Entry, now: Timestamp) -> Reuse {
        if !is_uncacheable_marker(entry, now) {
            return self.classify(entry, now);
        }
        match entry.meta().kind {
            Kind::DoNotStore => Reuse::DoNotStore,
            _ if self.is_covered_by(entry.meta().audience) => Reuse::HitForPass,
            _ => Reuse::HitForPassOfOthers,
        }
    }

    /// Reports whether the entry answers this caller, or tells it to make a call of its own.
    fn settles(&self, entry: &Entry, now: Timestamp) -> bool {
        use Reuse::{Bypass, HitForPass, Serve, ServeAndRevalidate};
        matches!(self.class_of(entry, now), Serve(()) | ServeAndRevalidate(()) | Bypass | HitForPass)
    }

    /// Returns the redirect of the entry, if it is one.
    fn redirect_of(&self, entry: &Entry, now: Timestamp) -> Option<Redirect> {
        match self.class_of(entry, now) {
            Reuse::Redirect(redirect) => Some(redirect),
            _ => None,
        }
    }
}

/// The answers of one caller, each an `R`.
///
/// A front end classifies and decodes. The engine asks [`evaluate`](Self::evaluate), which does both.
pub(crate) trait Answers<R>: ReusePolicy {
    /// Decodes the entry as an answer, whatever its age. `None` if it does not decode: a miss.
    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<R>;
    /// Evaluates the value that a leader shares with its waiters. [`Reuse::Miss`] if it is from before this caller's
    /// request, and too old for it.
    fn accept_shared(&self, value: &SharedValue) -> Reuse<R>;
    /// Returns the answer of a request that is refused with this error.
    fn reject(&self, error: Error) -> R;

    /// Decides what the entry means for this caller.
    #[inline]
    fn evaluate(&self, entry: &Entry, now: Timestamp) -> Reuse<R> {
        self.class_of(entry, now).and_then(|()| self.decode(entry, now))
    }

    /// Decodes the entry, if it may be served without a fetch.
    fn servable(&self, entry: &Entry, now: Timestamp) -> Option<R> {
        match self.evaluate(entry, now) {
            Reuse::Serve(answer) | Reuse::ServeAndRevalidate(answer) => Some(answer),
            _ => None,
        }
    }

    /// Decodes the entry, if it may replace a failed fetch (stale-if-error).
    fn stale_answer(&self, entry: &Entry, now: Timestamp) -> Option<R> {
        self.allows_stale_on_error(entry, now).then(|| self.decode(entry, now))?
    }
}

/// The meaning of an entry, or of a shared value, for one caller. `A` is the answer, or `()` before it is decoded.
pub(crate) enum Reuse<A = ()> {
    Serve(A),
    ServeAndRevalidate(A),
    /// Lead, although an entry is stored. The fetch gets the entry, which may be served if the fetch fails.
    Revalidate,
    /// Treat the entry as absent.
    Miss,
    /// The answer for this caller has another cache key.
    Redirect(Redirect),
    /// The entry is for other callers and stays. This caller makes a call of its own.
    Bypass,
    /// A hit-for-pass marker applies to this caller, or it has to validate the entry for itself.
    HitForPass,
    /// A hit-for-pass marker applies to other callers only.
    HitForPassOfOthers,
    /// A do-not-store marker.
    DoNotStore,
}

impl<A> Reuse<A> {
    /// Replaces the answer. It is a miss if there is none.
    #[inline]
    pub(super) fn and_then<B>(self, answer: impl FnOnce(A) -> Option<B>) -> Reuse<B> {
        match self {
            Self::Serve(before) => answer(before).map_or(Reuse::Miss, Reuse::Serve),
            Self::ServeAndRevalidate(before) => answer(before).map_or(Reuse::Miss, Reuse::ServeAndRevalidate),
            Self::Redirect(redirect) => Reuse::Redirect(redirect),
            Self::Revalidate => Reuse::Revalidate,
            Self::Miss => Reuse::Miss,
            Self::Bypass => Reuse::Bypass,
            Self::HitForPass => Reuse::HitForPass,
            Self::HitForPassOfOthers => Reuse::HitForPassOfOthers,
            Self::DoNotStore => Reuse::DoNotStore,
        }
    }
}

/// A redirect to another cache key of the same resource.
pub(crate) struct Redirect {
    /// The id of the redirect entry.
    pub(crate) id: Token,
    /// The variant of that cache key.
    pub(crate) variant: Bytes,
    /// The content of the redirect entry, for the fetch.
    pub(crate) via: SharedValue,
}

/// A redirect on the way to a cache key.
#[derive(Clone)]
pub(crate) struct FollowedRedirect {
    /// The cache key of the redirect entry.
    pub(crate) key: CacheKey,
    pub(crate) id: Token,
    pub(crate) via: SharedValue,
}

/// The mode in which a fetch runs.
pub(crate) enum FetchMode {
    /// The fetch leads: its completion is awaited, and its head says how it may be shared.
    Lead {
        /// The id of the entry that will be filled.
        id: Token,
        /// The redirects that were followed, the first one first.
        redirects: Vec<FollowedRedirect>,
        /// The stored entry, if there is one.
        seen: Option<Entry>,
        /// When the fetch will be aborted.
        deadline: Instant,
        /// Orders the leaders of one key. `None` while the store is unavailable.
        fencing_token: Option<u64>,
        /// How the answer is reported: only a [`CacheStatus::Miss`] may be stored.
        status: CacheStatus,
    },
    /// The fetch runs under a hit-for-pass marker, for its own caller. Its completion is awaited, and if its head says
    /// that the response may be stored, the response replaces the marker. `seen` is the entry that takes the place of a
    /// marker, because each caller has to validate it.
    HitForPass { id: Token, redirects: Vec<FollowedRedirect>, seen: Option<Entry>, deadline: Instant },
    /// The fetch runs for its own caller only: nothing is shared or stored, and its completion is not awaited.
    Bypass { reason: BypassReason, deadline: Instant },
}

/// The head of a fetch: the first half of its result.
pub(crate) struct FetchHead<R> {
    /// The answer to the leader's own caller.
    pub(crate) response: R,
    pub(crate) sharing: Shareability,
    /// Whether the result may be due to this request alone. If a waiter can repeat the fetch, it is then neither shared
    /// nor stored, and leaves no marker that says that it is private.
    pub(crate) is_inconclusive: bool,
    pub(crate) completion: Option<Completion>,
}

impl<R> FetchHead<R> {
    /// Creates the head of a conclusive result without a completion.
    pub(crate) fn new(response: R, sharing: Shareability) -> Self {
        Self { response, sharing, is_inconclusive: false, completion: None }
    }

    /// Creates the head of a private response.
    pub(crate) fn private(response: R) -> Self {
        Self::new(response, Shareability::private(Audience::Everyone))
    }
}

/// The extent to which the response may be shared, decided at the head.
pub(crate) enum Shareability {
    /// Not shared through an entry.
    Unshared(Unshared),
    /// Shared with the current waiters in this process, but not stored.
    WaitersOnly(SharedValue),
    /// Shared as the entry with this payload, which is complete.
    Complete(Payload, StoreAs),
    /// Shared from now on: the value goes to the waiters, the payload at the end to the store.
    Cacheable(SharedValue, StoreAs),
    /// Shared, but not before the end: the response may still turn out too large. Waiters that the value redirects do
    /// not wait for the end.
    CacheableAtEnd(Option<SharedValue>, StoreAs),
}

impl Shareability {
    /// Returns the extent of a private response. For a time, callers of this audience do not wait for fetches of the
    /// key.
    pub(crate) fn private(audience: Audience) -> Self {
        Self::Unshared(Unshared::Private(audience))
    }

    /// Returns the kind of the failure, if the fetch failed.
    pub(crate) fn failure(&self) -> Option<FetchFailure> {
        match self {
            Self::Unshared(Unshared::Error(_, FailureClass::OriginDown)) => Some(FetchFailure::Origin),
            Self::Unshared(Unshared::Response(_, FailureClass::OriginDown)) => Some(FetchFailure::ServerError),
            _ => None,
        }
    }
}

/// The result of a fetch without an entry.
#[derive(Clone)]
pub(crate) enum Unshared {
    /// An error. The waiters get it.
    Error(Error, FailureClass),
    /// A response that reports an error, such as status 500. The waiters get it.
    Response(SharedValue, FailureClass),
    /// A response for the leader's own caller. Waiters of this audience make calls of their own.
    Private(Audience),
}

impl Unshared {
    /// Reports whether the origin has failed. The error of an origin that works is replaced by no stale entry, and blocks
    /// no caller.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Error(_, FailureClass::OriginDown) | Self::Response(_, FailureClass::OriginDown))
    }
}

/// The form in which the response is to be stored.
#[derive(Clone)]
pub(crate) struct StoreAs {
    pub(crate) lifetimes: Lifetimes,
    pub(crate) codec: u64,
    /// Whether the redirects on the way to the entry are kept as long as it.
    pub(crate) keeps_redirects: bool,
    /// Set if the entry belongs to a variant: the redirect entry that takes its place.
    pub(crate) index: Option<Box<RedirectEntry>>,
    /// Set if the origin says that the entry that the fetch got is still valid.
    pub(crate) renews: Option<Renewal>,
}

/// An entry that redirects to variants. It is followed while it is stored.
#[derive(Clone)]
pub(crate) struct RedirectEntry {
    /// The variant of the entry that is filled together with it.
    pub(crate) variant: Bytes,
    pub(crate) codec: u64,
    pub(crate) payload: Payload,
}

impl Redirect {
    /// Returns the cache key that the redirect leads to.
    pub(crate) fn target(&self, key: &CacheKey) -> CacheKey {
        key.to_variant(self.variant.clone())
    }
}

/// The second half of the result of a fetch.
///
/// Polled up to [`MAX_BODY_TIME`] fetch timeouts. What it completes with after the fetch timeout is not stored, so it
/// then completes as soon as no caller but the leader's depends on it. An aborted wait for it can be resumed.
pub(crate) type Completion = BoxFuture<'static, Completed>;

pub(crate) enum Completed {
    /// The payload to be stored.
    Payload(Payload),
    /// The payload turned out too large to be stored or shared.
    TooLarge,
    /// The body was truncated, and is never stored.
    Truncated,
}

/// Maximum time of a body, in fetch timeouts from the beginning of its fetch.
pub(crate) const MAX_BODY_TIME: u32 = 10;
/// Maximum number of redirects that are followed on the way to an entry.
pub(crate) const MAX_REDIRECTS: usize = 4;
