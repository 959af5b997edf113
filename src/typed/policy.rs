//! The reuse policy of typed values: how entries of one type are encoded, shared and evaluated.

use super::context::{FetchContext, FetchOutcome, Sharing};
use crate::{
    clock::{self, Timestamp},
    codec::Codec,
    config::Config,
    engine::{
        frontend::{Answers, FetchHead, FetchMode, Reuse, ReusePolicy, Shareability, StoreAs, Unshared},
        resource::Resource,
    },
    error::{BoxError, Error, into_cause},
    layout::layout,
    policy::{self, EarlyRefresh, Freshness},
    store::entry::{Entry, Kind, Payload, SharedValue},
    telemetry,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{any::type_name, marker::PhantomData, sync::Arc};

/// The reuse policy of one type.
pub(crate) struct TypedPolicy<T> {
    codec: Codec,
    /// The layout of the entries of the type: another type or codec is a miss.
    pub(super) layout: u64,
    early_refresh: EarlyRefresh,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> TypedPolicy<T> {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            codec: config.codec,
            layout: layout(config.codec.id::<T>(config.fingerprint), config.schema_version),
            early_refresh: config.policy.sample_early_refresh(clock::random_unit),
            of: PhantomData,
        }
    }

    pub(super) fn context(self, mode: FetchMode) -> FetchContext<T> {
        match mode {
            FetchMode::Lead { seen, deadline, fencing_token, .. } => {
                let own = seen.filter(|entry| self.is_own_entry(entry));
                let stale = own.and_then(|entry| T::decode(self.codec, entry.payload()));
                FetchContext { stale, deadline: Some(deadline), fencing_token }
            }
            FetchMode::HitForPass { .. } | FetchMode::Bypass(_) => {
                FetchContext { stale: None, deadline: None, fencing_token: None }
            }
        }
    }

    /// Turns the result of a fetch into its head. Encodes before the value is given away, so that `T` need not be
    /// `Clone`.
    pub(crate) fn head<A: Answer<T>, E: Into<BoxError> + 'static>(
        self,
        resource: &Resource,
        fetched: Result<FetchOutcome<T>, E>,
    ) -> FetchHead<Result<A, Error>> {
        let FetchOutcome { value, sharing } = match fetched {
            Ok(fetched) => fetched,
            Err(error) => return failed(&resource.config, into_cause(error)),
        };
        let fresh_for = match sharing {
            Sharing::Private => return FetchHead::private(Ok(A::from(value))),
            Sharing::WaitersOnly => None,
            Sharing::Cacheable { fresh_for } => Some(fresh_for),
        };
        let payload = match self.codec.encode(&value) {
            Ok(bytes) => Payload::from(bytes),
            Err(error) => {
                let Resource { config, key, .. } = resource;
                let of = (type_name::<T>(), format!("{:?}", self.codec));
                telemetry::codec_failed(&config.meter, key, &of, &error, self.codec.way_out());
                // Private, although each waiter then calls the origin. If the waiters led one after the other, the last
                // waiter would wait for the fetches of all.
                return FetchHead::private(Ok(A::from(value)));
            }
        };
        let answer = A::from(value);
        let payload = answer.attached_to(payload);
        let sharing = match fresh_for {
            Some(fresh_for) if payload.bytes().len() <= resource.config.max_payload => {
                let lifetimes = resource.config.policy.lifetimes(fresh_for, clock::random_unit());
                let store_as = StoreAs { lifetimes, codec: self.layout, keeps_redirects: false, index: None };
                Shareability::Complete(payload, store_as)
            }
            _ => Shareability::WaitersOnly(Arc::new(payload)),
        };
        FetchHead::new(Ok(answer), sharing)
    }

    fn is_own_entry(self, entry: &Entry) -> bool {
        entry.meta().kind == Kind::Value && entry.meta().codec == self.layout
    }
}

fn failed<A>(config: &Config, cause: BoxError) -> FetchHead<Result<A, Error>> {
    let class = (config.classifier.0)(&*cause);
    let error = Error::origin_failed(cause);
    FetchHead::new(Err(error.clone()), Shareability::Unshared(Unshared::Error(error, class)))
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> ReusePolicy for TypedPolicy<T> {
    fn classify(&self, entry: &Entry, now: Timestamp) -> Reuse {
        if !self.is_own_entry(entry) {
            return Reuse::Miss;
        }
        match policy::freshness(entry, now) {
            Freshness::Fresh if self.early_refresh.is_due(entry, now) => Reuse::ServeAndRevalidate(()),
            Freshness::Fresh => Reuse::Serve(()),
            Freshness::Revalidate => Reuse::ServeAndRevalidate(()),
            Freshness::Grace => Reuse::Revalidate,
            Freshness::Dead => Reuse::Miss,
        }
    }

    fn allows_stale_on_error(&self, entry: &Entry, now: Timestamp) -> bool {
        self.is_own_entry(entry) && policy::allows_stale_on_error(entry, now)
    }
}

impl<T, A> Answers<Result<A, Error>> for TypedPolicy<T>
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
    A: Answer<T>,
{
    fn decode(&self, entry: &Entry, _: Timestamp) -> Option<Result<A, Error>> {
        self.is_own_entry(entry).then(|| A::decode(self.codec, entry.payload()))?.map(Ok)
    }

    fn accept_shared(&self, shared: &SharedValue) -> Reuse<Result<A, Error>> {
        // All callers of a flight have its layout.
        let value = shared.downcast_ref().and_then(|payload| A::decode(self.codec, payload));
        value.map_or(Reuse::Bypass, |value| Reuse::Serve(Ok(value)))
    }

    fn reject(&self, error: Error) -> Result<A, Error> {
        Err(error)
    }
}

/// Written by hand, because a derived implementation would require `T: Clone`.
impl<T> Clone for TypedPolicy<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TypedPolicy<T> {}

/// The form in which a caller gets a value of type `T`: as its own, or shared with other callers.
pub(crate) trait Answer<T>: From<T> + Send {
    fn decode(codec: Codec, payload: &Payload) -> Option<Self>;
    /// Attaches the value to its payload, if callers share it.
    fn attached_to(&self, payload: Payload) -> Payload {
        payload
    }
}

impl<T: DeserializeOwned + Send + 'static> Answer<T> for T {
    fn decode(codec: Codec, payload: &Payload) -> Option<Self> {
        codec.decode(payload.bytes()).ok()
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Answer<T> for Arc<T> {
    fn decode(codec: Codec, payload: &Payload) -> Option<Self> {
        payload.decoded(|bytes| codec.decode(bytes).ok())
    }

    fn attached_to(&self, payload: Payload) -> Payload {
        payload.with_decoded(self.clone())
    }
}
