//! The result of a fetch of a typed value.

use super::{
    answer::{AnswerForm, Times},
    context::{FetchContext, FetchOutcome, Sharing},
    encoding::Encoding,
};
use crate::{
    clock,
    codec::value_codec::ValueCodec,
    config::Config,
    engine::{
        frontend::{FetchHead, FetchMode, Shareability, StoreAs, Unshared},
        resource::Resource,
    },
    error::{BoxError, Error, into_cause},
    policy::Policy,
    store::entry::Payload,
    telemetry,
};
use std::{any::type_name, borrow::Borrow, sync::Arc};

/// What a fetch of one type needs before and after its call.
pub(super) struct TypedFetch<C> {
    pub(super) encoding: Encoding<C>,
    /// The policy of this call. `None`: that of its guard or cache.
    pub(super) policy: Option<Arc<Policy>>,
}

impl<C> TypedFetch<C> {
    pub(super) fn context<V: 'static>(&self, mode: FetchMode) -> FetchContext<V>
    where
        C: Borrow<dyn ValueCodec<V>>,
    {
        let (encoding, codec) = (&self.encoding, self.encoding.codec.borrow());
        match mode {
            FetchMode::Lead { seen, deadline, fencing_token, .. } => {
                let own = seen.filter(|entry| encoding.is_own_entry(entry));
                let stale = own.as_ref().and_then(|entry| codec.decode(entry.payload().bytes()).ok());
                let stored = own.filter(|_| stale.is_some());
                FetchContext { stale, stored, deadline: Some(deadline), fencing_token }
            }
            FetchMode::HitForPass { deadline, .. } | FetchMode::Bypass { deadline, .. } => {
                FetchContext { stale: None, stored: None, deadline: Some(deadline), fencing_token: None }
            }
        }
    }

    /// Turns the result of a fetch into its head. Encodes before the value is given away, so that `V` need not be
    /// `Clone`.
    pub(super) fn head<V, A, E>(
        &self,
        resource: &Resource,
        fetched: Result<FetchOutcome<V>, E>,
    ) -> FetchHead<Result<A, Error>>
    where
        V: 'static,
        C: Borrow<dyn ValueCodec<V>>,
        A: AnswerForm<V>,
        E: Into<BoxError> + 'static,
    {
        let (codec, Resource { config, key, .. }) = (self.encoding.codec.borrow(), resource);
        let outcome = match fetched {
            Ok(outcome) => outcome,
            Err(error) => return failed(config, into_cause(error)),
        };
        let fresh_for = match outcome.sharing {
            Sharing::Private => return FetchHead::private(Ok(A::new(outcome.value, Times::default()))),
            Sharing::WaitersOnly => None,
            Sharing::Cacheable { fresh_for } => Some(fresh_for),
        };
        let payload = match outcome.encode(&self.encoding) {
            Ok(payload) => payload,
            Err(error) => {
                let (name, way_out) = codec.describe();
                telemetry::codec_failed(&config.meter, key, &(type_name::<V>(), name), &error, way_out);
                // Private, although each waiter then calls the origin. If the waiters led one after the other, the last
                // waiter would wait for the fetches of all.
                return FetchHead::private(Ok(A::new(outcome.value, Times::default())));
            }
        };
        let renews = outcome.renewal();
        let policy = self.policy.as_deref().unwrap_or(&config.policy).of_result(codec.is_none(payload.bytes()));
        let lifetimes = fresh_for
            .filter(|_| fits::<V>(resource, &payload))
            .map(|given| given.map_or(policy, |given| policy.lifetime(given)).lifetimes(None, clock::random_unit()));
        let answer = A::new(outcome.value, lifetimes.as_ref().map_or_else(Times::default, Times::of_new));
        let payload = answer.attached_to(payload);
        let sharing = match lifetimes {
            Some(lifetimes) => {
                let layout = self.encoding.layout;
                let store_as = StoreAs { lifetimes, codec: layout, keeps_redirects: false, index: None, renews };
                Shareability::Complete(payload, store_as)
            }
            None => Shareability::WaitersOnly(Arc::new(payload)),
        };
        FetchHead::new(Ok(answer), sharing)
    }
}

/// Reports whether the payload of a value may be stored.
fn fits<V>(resource: &Resource, payload: &Payload) -> bool {
    let fits = payload.size() <= resource.config.max_payload;
    if !fits {
        telemetry::too_large_to_store(&resource.config.meter, type_name::<V>());
    }
    fits && resource.has_room_for(payload)
}

fn failed<A>(config: &Config, cause: BoxError) -> FetchHead<Result<A, Error>> {
    let class = (config.classifier.0)(&*cause);
    let error = Error::origin_failed(cause);
    FetchHead::new(Err(error.clone()), Shareability::Unshared(Unshared::Error(error, class)))
}
