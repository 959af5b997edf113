//! What one round of a question comes to, now or later.

use crate::{
    engine::{BoxFetch, CacheVerdict, Hop, flight::Scope},
    store::BoxFuture,
};
use futures_util::future::Either;
use std::future::{Future, Ready, ready};

/// What one round came to.
pub(super) enum Round<'a, R> {
    Answer(R, CacheVerdict),
    /// Not answered: ask again, with the fetch that was not used.
    Again(BoxFetch<'a, R>),
    /// As above, for an answer that is not there yet.
    Newer(Scope, BoxFetch<'a, R>),
    /// As above, but elsewhere.
    Beneath(Hop, BoxFetch<'a, R>),
}

/// The rest of a round that takes its time. In a box: else the future of every hit would have room for it, ten times
/// what the hit itself needs, and would be moved with it; and whoever waits would hold room for all that may come after.
pub(super) type Aside<'s, 'a, R> = BoxFuture<'s, Round<'a, R>>;

/// The rest of a round, which may be there already.
pub(super) type Step<'s, 'a, R> = Either<Ready<Round<'a, R>>, Aside<'s, 'a, R>>;

pub(super) fn done<'a, R>(round: Round<'a, R>) -> Step<'a, 'a, R> {
    Either::Left(ready(round))
}

pub(super) fn aside<'s, 'a, R>(rest: impl Future<Output = Round<'a, R>> + Send + 's) -> Step<'s, 'a, R> {
    Either::Right(Box::pin(rest))
}
