//! Answers and fetches whose types the engine does not know, so that it is compiled once for all of them.

use super::{
    frontend::{Answers, FetchHead, FetchMode, Reuse, ReusePolicy},
    resource::Resource,
};
use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    store::{
        entry::{Entry, SharedValue},
        error::BoxFuture,
    },
    sync::mutex::Mutex,
};
use std::{any::Any, future::Future, marker::PhantomData, ops::Deref, sync::Arc};

/// An answer of the front end of one caller.
pub(crate) type AnyAnswer = Box<dyn Any + Send>;

/// The policy of one caller, which its leader shares.
pub(super) type Policy = Arc<dyn AnyAnswers>;

/// A fetch that has not begun.
type BoxFetch<'a> = Box<dyn FnOnce(FetchMode, Resource) -> BoxFuture<'a, FetchHead<AnyAnswer>> + Send + 'a>;

/// The place of the fetch of one caller. It is emptied when the fetch begins: by the leader, or by the caller itself for
/// a call of its own.
#[derive(Clone)]
pub(super) struct FetchSlot<'a>(Arc<Mutex<Option<BoxFetch<'a>>>>);

impl<'a> FetchSlot<'a> {
    pub(super) fn new<R, F, Fut>(fetch: F) -> Self
    where
        R: Send + 'static,
        F: FnOnce(FetchMode, Resource) -> Fut + Send + 'a,
        Fut: Future<Output = FetchHead<R>> + Send + 'a,
    {
        let fetch: BoxFetch<'a> = Box::new(move |mode, resource| {
            let fetched = fetch(mode, resource);
            Box::pin(async move {
                let FetchHead { response, sharing, completion } = fetched.await;
                FetchHead { response: Box::new(response) as AnyAnswer, sharing, completion }
            })
        });
        Self(Arc::new(Mutex::new(Some(fetch))))
    }

    /// Runs the fetch of the resource, unless it has begun. It begins when this future is first polled.
    pub(super) async fn run(&self, mode: FetchMode, resource: &Resource) -> Option<FetchHead<AnyAnswer>> {
        let fetch = self.0.lock().take()?;
        Some(fetch(mode, resource.clone()).await)
    }

    /// Moves the fetch to a new place, where no leader finds it. `None` if it has begun.
    pub(super) fn take_back(&self) -> Option<Self> {
        let fetch = self.0.lock().take()?;
        Some(Self(Arc::new(Mutex::new(Some(fetch)))))
    }

    pub(super) fn has_begun(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// The [`Answers`] of any front end, boxed.
pub(super) trait AnyAnswers: Send + Sync {
    fn reuse(&self) -> &(dyn ReusePolicy + 'static);
    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<AnyAnswer>;
    fn accept_shared(&self, value: &SharedValue) -> Reuse<AnyAnswer>;
    fn reject(&self, error: Error) -> AnyAnswer;
}

impl dyn AnyAnswers {
    /// Decides what the entry means for this caller.
    pub(super) fn evaluate(&self, entry: &Entry, now: Timestamp) -> Reuse<AnyAnswer> {
        self.class_of(entry, now).and_then(|()| self.decode(entry, now))
    }

    /// Decodes the entry, if it may be served without a fetch.
    pub(super) fn servable(&self, entry: &Entry, now: Timestamp) -> Option<AnyAnswer> {
        match self.evaluate(entry, now) {
            Reuse::Serve(answer) | Reuse::ServeAndRevalidate(answer) => Some(answer),
            _ => None,
        }
    }

    /// Decodes the entry, if it may replace a failed fetch (stale-if-error).
    pub(super) fn stale_answer(&self, entry: &Entry, now: Timestamp) -> Option<AnyAnswer> {
        self.allows_stale_on_error(entry, now).then(|| self.decode(entry, now))?
    }
}

impl Deref for dyn AnyAnswers {
    type Target = dyn ReusePolicy;

    fn deref(&self) -> &Self::Target {
        self.reuse()
    }
}

/// A policy whose answers are boxed.
pub(super) struct Erased<P, R> {
    policy: P,
    answer: PhantomData<fn() -> R>,
}

impl<P: Answers<R>, R: Send + 'static> Erased<P, R> {
    pub(super) fn new(policy: P) -> Arc<Self> {
        Arc::new(Self { policy, answer: PhantomData })
    }

    /// Returns an answer of this policy, or of the fetch beside it, with its type.
    pub(super) fn restore(&self, answer: AnyAnswer) -> R {
        match answer.downcast() {
            Ok(answer) => *answer,
            Err(_) => self.policy.reject(Error::new(ErrorKind::Panicked, "the answer has another type")),
        }
    }
}

impl<P: Answers<R> + 'static, R: Send + 'static> AnyAnswers for Erased<P, R> {
    fn reuse(&self) -> &(dyn ReusePolicy + 'static) {
        &self.policy
    }

    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<AnyAnswer> {
        self.policy.decode(entry, now).map(|answer| Box::new(answer) as AnyAnswer)
    }

    fn accept_shared(&self, value: &SharedValue) -> Reuse<AnyAnswer> {
        self.policy.accept_shared(value).and_then(|answer| Some(Box::new(answer) as AnyAnswer))
    }

    fn reject(&self, error: Error) -> AnyAnswer {
        Box::new(self.policy.reject(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when the fetch stays in its place.
    #[test]
    fn caller_takes_its_fetch_back_from_an_earlier_leader() {
        let slot = FetchSlot::new(|_, _| async { FetchHead::private(()) });
        let leader = slot.clone();
        let own = slot.take_back().expect("it has not begun");
        assert!(leader.has_begun() && !own.has_begun());
        assert!(leader.take_back().is_none() && own.take_back().is_some());
    }
}
