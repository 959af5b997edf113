//! Entries of one type, as they are encoded, shared and judged.

use super::{Fetch, Fetched, Sharing};
use crate::{
    clock::{self, Timestamp},
    codec::Codec,
    config::Config,
    engine::{EVERYBODY, End, Failure, Head, Judge, Keep, Offer, Place, Share, Turn, Verdict},
    entry::{Entry, Kind, Live, Payload},
    error::{BoxError, Error, ErrorKind},
    policy::{self, Early, Freshness},
    telemetry,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{any::type_name, marker::PhantomData, sync::Arc};

/// Judges entries of one type.
pub(crate) struct Typed<T> {
    codec: Codec,
    id: u64,
    early: Early,
    of: PhantomData<fn() -> T>,
}

/// What the waiters of a process share.
struct Shared {
    codec: u64,
    payload: Payload,
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Typed<T> {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            codec: config.codec,
            id: config.codec.id::<T>(),
            early: config.policy.early(clock::draw),
            of: PhantomData,
        }
    }

    pub(super) fn context(self, turn: Turn) -> Fetch<T> {
        match turn {
            Turn::Lead { seen, deadline, fencing_token, .. } => {
                let stale = seen.filter(|entry| self.knows(entry)).and_then(|entry| self.decode(entry.payload()));
                Fetch { stale, deadline: Some(deadline), fencing_token }
            }
            Turn::Pass { .. } | Turn::Alone => Fetch { stale: None, deadline: None, fencing_token: None },
        }
    }

    /// Encoded before the value is given away: that is what it costs that `T` need not be `Clone`.
    pub(crate) fn head<A, E: Into<BoxError>>(
        self,
        here: &Place,
        fetched: Result<Fetched<T>, E>,
        own: impl FnOnce(T, Payload) -> (A, Payload),
    ) -> Head<Result<A, Error>> {
        let Fetched { value, sharing } = match fetched {
            Ok(fetched) => fetched,
            Err(error) => return failed(Error::origin_failed(error.into())),
        };
        let payload = match self.codec.encode(&value) {
            Ok(bytes) => Payload::from(bytes),
            Err(error) => {
                let what = format!(
                    "`{}` does not survive {:?}: it is encoded, but does not decode; use `Codec::Json`, or change its \
                     serde attributes",
                    type_name::<T>(),
                    self.codec
                );
                telemetry::codec_failed(&here.at, type_name::<T>(), &what);
                return failed(Error::with_source(ErrorKind::Codec, what, error));
            }
        };
        let (value, payload) = own(value, payload);
        let over_cap = payload.bytes().len() > here.config.max_payload;
        let live = || -> Live { Arc::new(Shared { codec: self.id, payload: payload.clone() }) };
        let (share, end) = match sharing {
            Sharing::Nobody => (Share::Nobody(EVERYBODY), End::Nothing),
            Sharing::Waiting => (Share::Waiting(live()), End::Nothing),
            Sharing::Everybody { .. } if over_cap => (Share::Waiting(live()), End::Nothing),
            Sharing::Everybody { fresh_for } => {
                let lifetimes = here.config.policy.lifetimes(fresh_for, clock::draw());
                (Share::Everybody(live(), Keep { lifetimes, codec: self.id, index: None }), End::Now(payload))
            }
        };
        Head { own: Ok(value), share, end }
    }

    fn knows(self, entry: &Entry) -> bool {
        entry.meta().kind == Kind::Value && entry.meta().codec == self.id
    }

    fn decode(self, payload: &Payload) -> Option<T> {
        self.codec.decode(payload.bytes()).ok()
    }

    fn decode_shared(self, payload: &Payload) -> Option<Arc<T>> {
        payload.live(|bytes| self.codec.decode(bytes).ok())
    }

    fn verdict(self, entry: &Entry, now: Timestamp) -> Verdict {
        if !self.knows(entry) {
            return Verdict::Ignore;
        }
        match policy::freshness(entry, now) {
            Freshness::Fresh if self.early.is_due(entry, now) => Verdict::ServeAndRefresh,
            Freshness::Fresh => Verdict::Serve,
            Freshness::Revalidate => Verdict::ServeAndRefresh,
            Freshness::Grace => Verdict::Validate,
            Freshness::Dead => Verdict::Ignore,
        }
    }

    fn shared(self, live: &Live) -> Option<&Payload> {
        let shared: &Shared = live.downcast_ref()?;
        (shared.codec == self.id).then_some(&shared.payload)
    }
}

fn failed<A>(error: Error) -> Head<Result<A, Error>> {
    Head { own: Err(error.clone()), share: Share::Failed(Failure::Error(error), Some(0)), end: End::Nothing }
}

/// The value is everybody's own, or shared: all else is the same.
macro_rules! judges {
    ($answer:ty, $decode:ident) => {
        impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Judge<Result<$answer, Error>> for Typed<T> {
            fn judge(&self, entry: &Entry, now: Timestamp) -> Verdict {
                self.verdict(entry, now)
            }

            fn forgives(&self, entry: &Entry, now: Timestamp) -> bool {
                self.knows(entry) && policy::forgives(entry, now)
            }

            fn read(&self, entry: &Entry, _: Timestamp) -> Option<Result<$answer, Error>> {
                self.knows(entry).then(|| self.$decode(entry.payload()))?.map(Ok)
            }

            fn share(&self, live: &Live) -> Offer<Result<$answer, Error>> {
                let value = self.shared(live).and_then(|payload| self.$decode(payload));
                value.map_or(Offer::Declined, |value| Offer::Taken(Ok(value)))
            }

            fn refuse(&self, error: Error) -> Result<$answer, Error> {
                Err(error)
            }
        }
    };
}

judges!(T, decode);
judges!(Arc<T>, decode_shared);

/// By hand: not only where `T` is.
impl<T> Clone for Typed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Typed<T> {}
