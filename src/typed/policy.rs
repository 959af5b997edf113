//! The reuse policy of typed values: how entries of one type are shared and evaluated.

use super::{
    answer::{AnswerForm, Times},
    encoding::Encoding,
};
use crate::{
    clock::Timestamp,
    codec::value_codec::ValueCodec,
    engine::frontend::{Answers, Reuse, ReusePolicy},
    error::Error,
    policy::{self, EarlyRefresh, Freshness},
    store::entry::{Entry, SharedValue},
};
use std::{borrow::Borrow, marker::PhantomData};

/// The reuse policy of one type. PERF: a hit borrows the codec, because a clone of a handle writes to memory that threads
/// share.
pub(crate) struct TypedPolicy<V, C> {
    encoding: Encoding<C>,
    early_refresh: Option<EarlyRefresh>,
    of: PhantomData<fn() -> V>,
}

impl<V: 'static, C: Borrow<dyn ValueCodec<V>>> TypedPolicy<V, C> {
    pub(super) fn new(encoding: Encoding<C>, early_refresh: Option<EarlyRefresh>) -> Self {
        Self { encoding, early_refresh, of: PhantomData }
    }

    fn codec(&self) -> &dyn ValueCodec<V> {
        self.encoding.codec.borrow()
    }
}

impl<V, C> ReusePolicy for TypedPolicy<V, C>
where
    V: Send + Sync + 'static,
    C: Borrow<dyn ValueCodec<V>> + Send + Sync,
{
    fn classify(&self, entry: &Entry, now: Timestamp) -> Reuse {
        if !self.encoding.is_own_entry(entry) {
            return Reuse::Miss;
        }
        match policy::freshness(entry, now) {
            Freshness::Fresh if self.early_refresh.is_none_or(|early| !early.is_due(entry, now)) => Reuse::Serve(()),
            Freshness::Fresh | Freshness::Revalidate => Reuse::ServeAndRevalidate(()),
            Freshness::Grace => Reuse::Revalidate,
            Freshness::Dead => Reuse::Miss,
        }
    }

    fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool {
        self.encoding.is_own_entry(entry) && policy::allows_stale_on_error(entry, now)
    }
}

impl<V, C, A> Answers<Result<A, Error>> for TypedPolicy<V, C>
where
    V: Send + Sync + 'static,
    C: Borrow<dyn ValueCodec<V>> + Send + Sync,
    A: AnswerForm<V>,
{
    fn decode(&self, entry: &Entry, now: Timestamp) -> Option<Result<A, Error>> {
        let decode = || A::decode(self.codec(), entry.payload(), Times::of(entry, now));
        self.encoding.is_own_entry(entry).then(decode)?.map(Ok)
    }

    fn accept_shared(&self, shared: &SharedValue) -> Reuse<Result<A, Error>> {
        // All callers of a flight have its layout.
        let payload = shared.downcast_ref();
        let value = payload.and_then(|payload| A::decode(self.codec(), payload, Times::default()));
        value.map_or(Reuse::Bypass, |value| Reuse::Serve(Ok(value)))
    }

    fn reject(&self, error: Error) -> Result<A, Error> {
        Err(error)
    }
}
