//! What a caller gets: its own value, a shared one, or an [`Answer`] that says how it was obtained.

use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    codec::value_codec::ValueCodec,
    store::entry::{Entry, Lifetimes, Payload},
};
use std::{ops::Deref, sync::Arc, time::Duration};

/// A value, and how it was obtained. See [`CacheEntry::answer`](crate::CacheEntry::answer).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let guard = stampede_guard::StampedeGuard::in_memory();
/// # let prices = guard.cache::<String>("price").policy(stampede_guard::Policy::default().jitter(0.0));
/// use http::{Response, header};
/// use stampede_guard::{CacheStatus, FetchOutcome};
///
/// let load = async |_| Ok::<_, std::io::Error>(FetchOutcome::new("3 EUR".to_owned()));
/// let price = prices.entry("tea").answer(load).await?;
/// if price.status() == CacheStatus::Stale {
///     eprintln!("the price is {:?} old: {}", price.age(), price.value());
/// }
/// let response = Response::builder()
///     .header(header::AGE, price.age().as_secs())
///     .header(header::CACHE_CONTROL, format!("max-age={}", (price.age() + price.fresh_for()).as_secs()))
///     .body(price.into_value())?;
/// # assert_eq!(response.body(), "3 EUR");
/// # assert_eq!(response.headers()["cache-control"], "max-age=10");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Answer<V> {
    value: V,
    status: CacheStatus,
    times: Times,
}

impl<V> Answer<V> {
    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &V {
        &self.value
    }

    /// Returns the value by move.
    #[must_use]
    pub fn into_value(self) -> V {
        self.value
    }

    /// Returns how the call was answered.
    #[must_use]
    pub fn status(&self) -> CacheStatus {
        self.status
    }

    /// Returns the time since the fetch of the value had answered, when this call was answered. Zero for a value that
    /// this call has fetched, or that is not stored.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.times.age
    }

    /// Returns for how much longer the value was fresh when this call was answered. Zero for a stale value, and for one
    /// that is private, too large or otherwise not to be stored. While the store is unavailable or bypassed, it is what the
    /// policy says.
    #[must_use]
    pub fn fresh_for(&self) -> Duration {
        self.times.fresh_for
    }

    pub(super) fn with_status(self, status: CacheStatus) -> Self {
        Self { status, ..self }
    }
}

impl<V> Deref for Answer<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

/// The age of a value, and the rest of its freshness lifetime.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    age: Duration,
    fresh_for: Duration,
}

impl Times {
    /// Returns the times of a value that was fetched just now.
    pub(super) fn of_new(lifetimes: &Lifetimes) -> Self {
        Self { age: Duration::ZERO, fresh_for: lifetimes.fresh_for }
    }

    #[inline]
    pub(super) fn of(entry: &Entry, now: Timestamp) -> Self {
        let age = entry.age(now);
        Self { age, fresh_for: entry.meta().lifetimes.fresh_for.saturating_sub(age) }
    }
}

/// The form in which a caller gets a value of type `V`.
pub(crate) trait AnswerForm<V: 'static>: Sized + Send + 'static {
    /// Creates the answer of the caller that has fetched the value.
    fn new(value: V, times: Times) -> Self;

    fn decode(codec: &dyn ValueCodec<V>, payload: &Payload, times: Times) -> Option<Self> {
        codec.decode(payload.bytes()).ok().map(|value| Self::new(value, times))
    }

    /// Attaches the value to its payload, if callers share it.
    fn attached_to(&self, payload: Payload) -> Payload {
        payload
    }
}

impl<V: Send + 'static> AnswerForm<V> for V {
    fn new(value: V, _: Times) -> Self {
        value
    }
}

impl<V: Send + Sync + 'static> AnswerForm<V> for Arc<V> {
    fn new(value: V, _: Times) -> Self {
        Self::new(value)
    }

    fn decode(codec: &dyn ValueCodec<V>, payload: &Payload, _: Times) -> Option<Self> {
        payload.decoded(|bytes| codec.decode(bytes).ok())
    }

    fn attached_to(&self, payload: Payload) -> Payload {
        payload.with_decoded(self.clone())
    }
}

/// The status is set when the call ends. A hit in this process ends here.
impl<V: Send + 'static> AnswerForm<V> for Answer<V> {
    fn new(value: V, times: Times) -> Self {
        Self { value, status: CacheStatus::Hit, times }
    }
}
