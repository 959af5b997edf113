//! One attempt of a caller to resolve its key.

use crate::{
    cache_status::{BypassReason, CacheStatus},
    engine::{
        flight::state::Found,
        frontend::{BoxFetch, Redirect},
    },
    store::error::BoxFuture,
};
use futures_util::future::Either;
use std::future::{self, Future, Ready};

/// The result of one attempt.
pub(super) enum RequestAttempt<'a, R> {
    Done(R, CacheStatus),
    /// Likewise, and this caller's own fetch has called the origin or may do so yet.
    Fetched(R, CacheStatus),
    /// Not resolved: make a call for this caller only.
    Bypass(BypassReason, BoxFetch<'a, R>),
    /// Not resolved: try again with the unused fetch.
    Retry(BoxFetch<'a, R>),
    /// Like `Retry`, after a result that may be due to the request of its leader alone.
    SecondOpinion(BoxFetch<'a, R>),
    /// The flight that the caller joined has ended with its lookup.
    LookedUp(Found, BoxFetch<'a, R>),
    /// Like `Retry`, after a result that this caller cannot use: accept only one that is not there yet.
    Unusable(BoxFetch<'a, R>),
    /// Like `Unusable`, but in a local flight only: the flight of the fleet is of no use to this caller, as in
    /// [`LeadMode::Local`](crate::engine::leader::LeadMode::Local).
    Locally(BoxFetch<'a, R>),
    /// Like `Retry`, but follow a redirect first.
    Redirect(Redirect, BoxFetch<'a, R>),
}

/// The slow rest of an attempt. Boxed, because otherwise the future of every hit would reserve room for it: ten times
/// what the hit itself needs. A waiter would also hold room for all later steps.
pub(super) type SlowPath<'s, 'a, R> = BoxFuture<'s, RequestAttempt<'a, R>>;

/// The rest of an attempt, which may be ready already.
pub(super) type Step<'s, 'a, R> = Either<Ready<RequestAttempt<'a, R>>, SlowPath<'s, 'a, R>>;

pub(super) fn ready<'a, R>(attempt: RequestAttempt<'a, R>) -> Step<'a, 'a, R> {
    Either::Left(future::ready(attempt))
}

pub(super) fn boxed<'s, 'a, R>(rest: impl Future<Output = RequestAttempt<'a, R>> + Send + 's) -> Step<'s, 'a, R> {
    Either::Right(Box::pin(rest))
}
