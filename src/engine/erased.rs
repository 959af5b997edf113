//! Answers and fetches whose types the engine does not know, so that it is compiled once for all of them.

use super::{
    frontend::{Answers, FetchHead, FetchMode, Reuse, ReusePolicy},
    resource::Resource,
};
use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    store::{
        entry::{Audience, Entry, SharedValue},
        error::BoxFuture,
    },
    sync::mutex::Mutex,
};
use futures_util::FutureExt;
use std::{any::Any, future::Future, marker::PhantomData, sync::Arc};

/// An answer of the front end of one caller.
pub(crate) type AnyAnswer = Box<dyn Any + Send>;

/// The policy of one caller, which its leader shares. Its answers are boxed.
pub(super) type Policy = Arc<dyn Answers<AnyAnswer>>;

/// A fetch that has not begun. PERF: its head is boxed, because each future around it has room for its result.
type BoxFetch<'a> = Box<dyn FnOnce(FetchMode, Arc<Resource>) -> BoxFuture<'a, Box<FetchHead<AnyAnswer>>> + Send + 'a>;

/// The place of the fetch of one caller. It is emptied when the fetch begins: by the leader, or by the caller itself for
/// a call of its own.
#[derive(Clone)]
pub(super) struct FetchSlot<'a>(Arc<Mutex<Option<BoxFetch<'a>>>>);

impl<'a> FetchSlot<'a> {
    pub(super) fn new<R, F, Fut>(fetch: F) -> Self
    where
        R: Send + 'static,
        F: FnOnce(FetchMode, Arc<Resource>) -> Fut + Send + 'a,
        Fut: Future<Output = FetchHead<R>> + Send + 'a,
    {
        let fetch: BoxFetch<'a> = Box::new(move |mode, resource| Box::pin(fetch(mode, resource).map(boxed)));
        Self(Arc::new(Mutex::new(Some(fetch))))
    }

    /// Begins the fetch of the resource, unless it has begun.
    pub(super) fn begin(
        &self,
        mode: FetchMode,
        resource: &Arc<Resource>,
    ) -> Option<BoxFuture<'a, Box<FetchHead<AnyAnswer>>>> {
        let fetch = self.0.lock().take()?;
        Some(fetch(mode, resource.clone()))
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

fn boxed<R: Send + 'static>(head: FetchHead<R>) -> Box<FetchHead<AnyAnswer>> {
    let FetchHead { response, sharing, is_inconclusive, completion } = head;
    Box::new(FetchHead { response: Box::new(response), sharing, is_inconclusive, completion })
}

/// A policy whose answers are boxed. If its caller refreshes, no stored value answers it, not even if the fetch fails.
pub(super) struct Erased<P, R> {
    policy: P,
    /// See [`ReusePolicy::since`].
    since: u64,
    answer: PhantomData<fn() -> R>,
}

impl<P: Answers<R>, R: Send + 'static> Erased<P, R> {
    pub(super) fn new(policy: P, since: u64) -> Arc<Self> {
        Arc::new(Self { policy, since, answer: PhantomData })
    }

    /// Returns an answer of this policy, or of the fetch beside it, with its type.
    pub(super) fn restore(&self, answer: AnyAnswer) -> R {
        match answer.downcast() {
            Ok(answer) => *answer,
            Err(_) => self.policy.reject(Error::new(ErrorKind::Panicked, "the answer has another type")),
        }
    }
}

impl<P: Answers<R>, R> ReusePolicy for Erased<P, R> {
    fn classify(&self, entry: &Entry, now: Timestamp) -> Reuse {
        if self.since > 0 { Reuse::Revalidate } else { self.policy.classify(entry, now) }
    }

    fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool {
        self.since == 0 && self.policy.allows_stale_on_error(entry, now)
    }

    fn is_covered_by(&self, audience: Audience) -> bool {
        self.policy.is_covered_by(audience)
    }

    fn request_hash(&self) -> Option<u64> {
        self.policy.request_hash()
    }

    fn since(&self) -> u64 {
        self.since
    }
}

impl<P: Answers<R>, R: Send + 'static> Answers<AnyAnswer> for Erased<P, R> {
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
