//! The context of a fetch, and its outcome.

use super::encoding::Encoding;
use crate::{
    codec::value_codec::ValueCodec,
    error::BoxError,
    store::{
        entry::{Entry, Payload},
        port::Renewal,
    },
};
use bytes::Bytes;
use std::{
    borrow::Borrow,
    fmt,
    time::{Duration, Instant},
};

/// The context of a call of [`fetch_with`](crate::CacheEntry::fetch_with).
///
/// The stored value, once it is too old, saves work: the call begins where the last one ended. With a
/// [validator](FetchOutcome::validator) it can be renewed unchanged.
///
/// ```
/// # #[derive(Clone)] struct Db;
/// # impl Db {
/// #     async fn orders_since(&self, at: u64, _: Option<std::time::Instant>) -> Result<Vec<u64>, std::io::Error> {
/// #         Ok((at..3).collect())
/// #     }
/// #     async fn save(&self, _: u64, _: u64) -> Result<(), std::io::Error> { Ok(()) }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
/// use stampede_guard::{FetchContext, FetchOutcome, Policy};
/// use std::{io, time::Duration};
///
/// let policy = Policy::fresh_for(Duration::from_secs(60)).keep_for_validation(Duration::from_secs(3600));
/// let totals = guard.cache::<(u64, u64)>("total").policy(policy); // orders counted, and their sum
/// let total = totals
///     .entry("orders")
///     .fetch_with(async move |cx: FetchContext<(u64, u64)>| {
///         let (fence, deadline) = (cx.fencing_token(), cx.deadline());
///         if let Some((count, sum)) = cx.stale() {
///             println!("{count} orders are in the sum of {sum} already");
///         }
///         let (count, sum) = cx.into_stale().unwrap_or_default();
///         let new = db.orders_since(count, deadline).await?;
///         let total = (count + new.len() as u64, sum + new.iter().sum::<u64>());
///         if let Some(fence) = fence {
///             db.save(fence, total.1).await?; // refuses smaller numbers than the largest one it has seen
///         }
///         Ok::<_, io::Error>(FetchOutcome::new(total))
///     })
///     .await?;
/// assert_eq!(total, (3, 3));
/// # Ok(())
/// # }
/// ```
pub struct FetchContext<T> {
    pub(super) stale: Option<T>,
    /// The entry of the stale value.
    pub(super) stored: Option<Entry>,
    pub(super) deadline: Option<Instant>,
    pub(super) fencing_token: Option<u64>,
}

impl<T> FetchContext<T> {
    /// Returns the stored value that is no longer fresh enough, for example to ask the origin whether it has changed.
    #[must_use]
    pub fn stale(&self) -> Option<&T> {
        self.stale.as_ref()
    }

    /// Returns the stored value by move: see [`stale`](Self::stale).
    #[must_use]
    pub fn into_stale(self) -> Option<T> {
        self.stale
    }

    /// Returns the [validator](FetchOutcome::validator) of the stored value that is no longer fresh enough, to ask the
    /// origin whether the value has changed. `None` if there is no such value, if it has no validator, and in a call for
    /// its own caller only. [`FetchOutcome::validator`] has an example.
    #[must_use]
    pub fn validator(&self) -> Option<&[u8]> {
        let validator = self.stored.as_ref()?.payload().validator();
        (!validator.is_empty()).then_some(&**validator)
    }

    /// Returns the stored value and its validator as the result of this call, because the origin says that the value has
    /// not changed. It is then fresh again in all processes, for as long as the [`Policy`](crate::Policy) says. The value
    /// is not sent to the store if the store still has it: to renew 1 MiB, Redis gets 700 bytes in all. `None` if there is
    /// no stored value. There is one whenever there was a [validator](Self::validator).
    ///
    /// An invalidation during the call ends the value even so: the caller gets it, and it is not stored again.
    /// [`FetchOutcome::validator`] has an example.
    #[must_use]
    pub fn unchanged(self) -> Option<FetchOutcome<T>> {
        let outcome = FetchOutcome::new(self.stale?).validator(self.stored.as_ref()?.payload().validator().clone());
        Some(FetchOutcome { unchanged: self.stored, ..outcome })
    }

    /// Returns when the call will be aborted. If it runs for its own caller only, the caller may drop it earlier.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns a number that grows from leader to leader of the key, as long as the clock of the Redis server does not
    /// go back. Pass it to a resource that the call writes to, and let that resource refuse smaller numbers. `None` if
    /// the call holds no lease.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }
}

impl<T> fmt::Debug for FetchContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchContext")
            .field("stale", &self.stale.is_some())
            .field("validator", &self.validator().is_some())
            .field("deadline", &self.deadline)
            .field("fencing_token", &self.fencing_token)
            .finish()
    }
}

/// The result of a call of [`fetch_with`](crate::CacheEntry::fetch_with): a value, and how it may be shared.
///
/// ```
/// # struct Page { html: String, cache_control: &'static str }
/// # async fn render(_: u32) -> Result<Page, std::io::Error> { Ok(Page { html: "<h1>".into(), cache_control: "private" }) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// # let guard = stampede_guard::StampedeGuard::in_memory();
/// use stampede_guard::{FetchContext, FetchOutcome};
/// use std::{io, time::Duration};
///
/// let pages = guard.cache::<String>("page");
/// let load = async |_: FetchContext<String>| {
///     let page = render(7).await?;
///     let outcome = FetchOutcome::new(page.html); // fresh for as long as the policy says
///     Ok::<_, io::Error>(match page.cache_control {
///         "private" => outcome.private(),       // for this caller
///         "no-store" => outcome.do_not_store(), // for all that wait for it now
///         "max-age=60" => outcome.fresh_for(Duration::from_secs(60)),
///         _ => outcome,
///     })
/// };
/// let page = pages.entry(7).fetch_with(load).await?;
/// # guard.drain().await;
/// # assert_eq!((page.as_str(), pages.get(7).await?), ("<h1>", None));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FetchOutcome<T> {
    pub(super) value: T,
    pub(super) sharing: Sharing,
    pub(super) validator: Bytes,
    /// The stored entry of the value.
    pub(super) unchanged: Option<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Cacheable { fresh_for: Option<Duration> },
    WaitersOnly,
    Private,
}

impl<T> From<T> for FetchOutcome<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> FetchOutcome<T> {
    /// Creates a result that is stored and shared, fresh for as long as the [`Policy`](crate::Policy) says.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value, sharing: Sharing::Cacheable { fresh_for: None }, validator: Bytes::new(), unchanged: None }
    }

    /// Stores a validator with the value: whatever the origin compares to tell whether the value has changed, such as an
    /// `ETag`, a date, or the number of a row. The next call gets it from [`FetchContext::validator`]. An empty one is
    /// none. Its bytes count as bytes of the value ([`max_payload`](crate::StampedeGuard::max_payload)).
    ///
    /// ```
    /// # enum Response { NotModified, New(f64, String) }
    /// # struct Api;
    /// # impl Api {
    /// #     async fn rates(&self, seen: Option<&[u8]>) -> Result<Response, std::io::Error> {
    /// #         Ok(if seen.is_some() { Response::NotModified } else { Response::New(1.1, "v1".to_owned()) })
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, api) = (stampede_guard::StampedeGuard::in_memory(), std::sync::Arc::new(Api));
    /// use Response::{New, NotModified};
    /// use stampede_guard::{FetchContext, FetchOutcome, Policy};
    /// use std::{io, time::Duration};
    ///
    /// let policy = Policy::fresh_for(Duration::from_secs(60)).keep_for_validation(Duration::from_secs(3600));
    /// let feed = guard.cache::<f64>("feed").policy(policy);
    /// # for _ in 0..2 {
    /// # let (api, policy) = (api.clone(), Policy::fresh_for(Duration::ZERO).keep_for_validation(Duration::from_secs(9)));
    /// let rate = feed
    ///     .entry("eur")
    /// #   .policy(policy)
    ///     .fetch_with(async move |cx: FetchContext<f64>| match api.rates(cx.validator()).await? {
    ///         NotModified => cx.unchanged().ok_or(io::Error::other("the origin was not asked for a change")),
    ///         New(rate, etag) => Ok(FetchOutcome::new(rate).validator(etag)),
    ///     })
    ///     .await?;
    /// # assert_eq!(rate, 1.1);
    /// # guard.drain().await;
    /// # }
    /// # assert_eq!(guard.stats().misses, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn validator(mut self, validator: impl Into<Bytes>) -> Self {
        self.validator = validator.into();
        self
    }

    /// Stores and shares the value, fresh for this time, shortened by the [jitter](crate::Policy::jitter) of the policy.
    /// The stale windows of the policy follow.
    #[must_use]
    pub fn fresh_for(mut self, lifetime: Duration) -> Self {
        self.sharing = Sharing::Cacheable { fresh_for: Some(lifetime) };
        self
    }

    /// Shares the value with requests that wait in this process now, and does not store it. For a while each process
    /// makes calls of its own and does not wait for other processes: see
    /// [`uncacheable_ttl`](crate::StampedeGuard::uncacheable_ttl).
    #[must_use]
    pub fn do_not_store(mut self) -> Self {
        self.sharing = Sharing::WaitersOnly;
        self
    }

    /// Returns the value to the caller only. For a while each request makes a call of its own at once: see
    /// [`uncacheable_ttl`](crate::StampedeGuard::uncacheable_ttl).
    #[must_use]
    pub fn private(mut self) -> Self {
        self.sharing = Sharing::Private;
        self
    }

    /// Encodes the value. An unchanged one keeps its bytes, because another encoding of it may have other ones. If it came
    /// from a fetch of a cache with another codec, it is encoded again.
    pub(super) fn encode<C>(&self, encoding: &Encoding<C>) -> Result<Payload, BoxError>
    where
        T: 'static,
        C: Borrow<dyn ValueCodec<T>>,
    {
        let bytes = match self.unchanged.as_ref().filter(|entry| encoding.is_own_entry(entry)) {
            Some(entry) => entry.payload().bytes().clone(),
            None => encoding.codec.borrow().encode(&self.value)?,
        };
        Ok(Payload::from(bytes).with_validator(self.validator.clone()))
    }

    /// Returns the renewal of the stored entry, if it has the value and the validator of this result.
    pub(super) fn renewal(&self) -> Option<Renewal> {
        let entry = self.unchanged.as_ref().filter(|entry| entry.payload().validator() == &self.validator)?;
        Some(Renewal { id: entry.meta().id, changed: 0 })
    }
}
