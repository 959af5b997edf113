//! The reuse policy of typed values: how entries of one type are encoded, shared and evaluated.

use super::context::{FetchContext, FetchOutcome, Sharing};
use crate::{
    clock::{self, Timestamp},
    codec::Codec,
    config::Config,
    engine::{
        frontend::{
            Completion, Failure, FailureCause, FetchHead, FetchMode, ReuseClass, ReusePolicy, Shareability,
            SharedReuse, StoreAs,
        },
        resource::Resource,
    },
    error::{BoxError, Error, ErrorKind},
    policy::{self, EarlyRefresh, Freshness},
    store::entry::{Audience, Entry, Kind, Payload, SharedValue},
    telemetry::{self, FrontEnd},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{any::type_name, marker::PhantomData, sync::Arc};

/// The reuse policy of one type.
pub(crate) struct TypedPolicy<T> {
    codec: Codec,
    id: u64,
    early_refresh: EarlyRefresh,
    front_end: FrontEnd,
    of: PhantomData<fn() -> T>,
}

/// The value that the waiters of a process share.
struct SharedPayload {
    codec: u64,
    payload: Payload,
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> TypedPolicy<T> {
    pub(crate) fn new(config: &Config, front_end: FrontEnd) -> Self {
        Self {
            codec: config.codec,
            id: config.codec.id::<T>(),
            early_refresh: config.policy.sample_early_refresh(clock::random_unit),
            front_end,
            of: PhantomData,
        }
    }

    pub(super) fn context(self, mode: FetchMode) -> FetchContext<T> {
        match mode {
            FetchMode::Lead { seen, deadline, fencing_token, .. } => {
                let stale =
                    seen.filter(|entry| self.is_own_entry(entry)).and_then(|entry| self.decode_owned(entry.payload()));
                FetchContext { stale, deadline: Some(deadline), fencing_token }
            }
            FetchMode::HitForPass { .. } | FetchMode::Bypass(_) => {
                FetchContext { stale: None, deadline: None, fencing_token: None }
            }
        }
    }

    /// Turns the result of a fetch into its head. Encodes before the value is given away, so that `T` need not be
    /// `Clone`.
    pub(crate) fn head<A, E: Into<BoxError>>(
        self,
        resource: &Resource,
        fetched: Result<FetchOutcome<T>, E>,
        into_answer: impl FnOnce(T, Payload) -> (A, Payload),
    ) -> FetchHead<Result<A, Error>> {
        let FetchOutcome { value, sharing } = match fetched {
            Ok(fetched) => fetched,
            Err(error) => return failed(Error::origin_failed(error.into())),
        };
        let payload = match self.codec.encode(&value) {
            Ok(bytes) => Payload::from(bytes),
            Err(error) => {
                let what = format!(
                    "`{}` cannot be stored with {:?}: it does not encode and decode again; use `Codec::Json`, or change its \
                     serde attributes",
                    type_name::<T>(),
                    self.codec
                );
                telemetry::codec_failed(&resource.config.meter, &resource.key, type_name::<T>(), &what);
                return failed(Error::with_source(ErrorKind::Codec, what, error));
            }
        };
        let (value, payload) = into_answer(value, payload);
        let is_too_large = payload.bytes().len() > resource.config.max_payload;
        let value_to_share = || -> SharedValue { Arc::new(SharedPayload { codec: self.id, payload: payload.clone() }) };
        let (sharing, completion) = match sharing {
            Sharing::Private => (Shareability::Private(Audience::Everyone), Completion::None),
            Sharing::WaitersOnly => (Shareability::WaitersOnly(value_to_share()), Completion::None),
            Sharing::Cacheable { .. } if is_too_large => {
                (Shareability::WaitersOnly(value_to_share()), Completion::None)
            }
            Sharing::Cacheable { fresh_for } => {
                let lifetimes = resource.config.policy.lifetimes(fresh_for, clock::random_unit());
                (
                    Shareability::Cacheable(
                        value_to_share(),
                        StoreAs { lifetimes, codec: self.id, keeps_redirects: false, index: None },
                    ),
                    Completion::Ready(payload),
                )
            }
        };
        FetchHead { response: Ok(value), sharing, completion }
    }

    fn is_own_entry(self, entry: &Entry) -> bool {
        entry.meta().kind == Kind::Value && entry.meta().codec == self.id
    }

    fn decode_owned(self, payload: &Payload) -> Option<T> {
        self.codec.decode(payload.bytes()).ok()
    }

    fn decode_shared(self, payload: &Payload) -> Option<Arc<T>> {
        payload.decoded(|bytes| self.codec.decode(bytes).ok())
    }

    fn class_of(self, entry: &Entry, now: Timestamp) -> ReuseClass {
        if !self.is_own_entry(entry) {
            return ReuseClass::Miss;
        }
        match policy::freshness(entry, now) {
            Freshness::Fresh if self.early_refresh.is_due(entry, now) => ReuseClass::ServeAndRevalidate,
            Freshness::Fresh => ReuseClass::Serve,
            Freshness::Revalidate => ReuseClass::ServeAndRevalidate,
            Freshness::Grace => ReuseClass::Revalidate,
            Freshness::Dead => ReuseClass::Miss,
        }
    }

    fn shared(self, value: &SharedValue) -> Option<&Payload> {
        let shared: &SharedPayload = value.downcast_ref()?;
        (shared.codec == self.id).then_some(&shared.payload)
    }
}

fn failed<A>(error: Error) -> FetchHead<Result<A, Error>> {
    FetchHead {
        response: Err(error.clone()),
        sharing: Shareability::Failed(Failure::Error(error), FailureCause::Origin, 0),
        completion: Completion::None,
    }
}

/// Implements the policy for owned (`T`) and for shared (`Arc<T>`) answers, which differ only in decoding.
macro_rules! reuse_policy {
    ($answer:ty, $decode:ident) => {
        impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> ReusePolicy<Result<$answer, Error>>
            for TypedPolicy<T>
        {
            fn classify(&self, entry: &Entry, now: Timestamp) -> ReuseClass {
                self.class_of(entry, now)
            }

            fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool {
                self.is_own_entry(entry) && policy::allows_stale_on_error(entry, now)
            }

            fn decode(&self, entry: &Entry, _: Timestamp) -> Option<Result<$answer, Error>> {
                self.is_own_entry(entry).then(|| self.$decode(entry.payload()))?.map(Ok)
            }

            fn accept_shared(&self, shared: &SharedValue) -> SharedReuse<Result<$answer, Error>> {
                let value = self.shared(shared).and_then(|payload| self.$decode(payload));
                value.map_or(SharedReuse::Bypass, |value| SharedReuse::Use(Ok(value)))
            }

            fn front_end(&self) -> FrontEnd {
                self.front_end
            }

            fn reject(&self, error: Error) -> Result<$answer, Error> {
                Err(error)
            }
        }
    };
}

reuse_policy!(T, decode_owned);
reuse_policy!(Arc<T>, decode_shared);

/// Written by hand, because a derived implementation would require `T: Clone`.
impl<T> Clone for TypedPolicy<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TypedPolicy<T> {}
