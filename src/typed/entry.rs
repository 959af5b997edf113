//! One call on one key of a view.

use super::{
    answer::{Answer, AnswerForm},
    cache::Cache,
    call::{CallOptions, Outcome},
    context::{FetchContext, FetchOutcome},
    encoding::CodecHandle,
};
use crate::{
    clock,
    engine::resolve::IN_A_TASK,
    error::{BoxError, Error},
    key::to_key::{KeyText, ToKey},
    policy::Policy,
};
use futures_util::future::Either;
use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

impl<V: Send + Sync + 'static> Cache<V> {
    /// Returns one call on this key, for options of its own. It does nothing before it is completed by
    /// [`fetch`](CacheEntry::fetch) or another method.
    pub fn entry(&self, key: impl ToKey) -> CacheEntry<'_, V> {
        CacheEntry { cache: self, key: self.text(&key), options: CallOptions::default() }
    }
}

/// One call on one key of a [`Cache`], with options of its own. See [`Cache::entry`].
///
/// A service that has 200 ms for its response:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// # let guard = stampede_guard::StampedeGuard::in_memory();
/// use std::time::Duration;
///
/// let reports = guard.cache::<String>("report");
/// let render = async || Ok::<_, std::io::Error>("a report".to_owned());
/// let report = reports.entry(("acme", 7)).timeout(Duration::from_millis(200)).fetch(render).await?;
/// # assert_eq!(report, "a report");
/// # Ok(())
/// # }
/// ```
#[must_use = "a call does nothing before it is completed by `fetch` or another method"]
pub struct CacheEntry<'a, V> {
    cache: &'a Cache<V>,
    key: KeyText,
    options: CallOptions,
}

impl<V: Send + Sync + 'static> CacheEntry<'_, V> {
    /// Sets the time by which this call needs an answer. It does not wait longer for a fetch. It does not wait at all for
    /// the fetch of another call if the last fetch of the key took longer than the time left. It then gets the stale
    /// value, if the policy permits that on errors, otherwise [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). A
    /// fetch that it leads continues for others, within the limit of
    /// [`max_detached`](crate::StampedeGuard::max_detached); that of [`fetch_scoped`](Self::fetch_scoped) is dropped, and
    /// so is one for this caller alone: of a private value, or under [`bypass`](crate::StampedeGuard::bypass). With two
    /// deadlines the earlier one counts. Default: none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// # let (users, prices) = (guard.cache::<String>("user"), guard.cache::<u32>("price"));
    /// use std::{io, time::{Duration, Instant}};
    ///
    /// // One deadline for all that a request needs.
    /// let deadline = Instant::now() + Duration::from_millis(500);
    /// let user = async || Ok::<_, io::Error>("Ann".to_owned());
    /// let price = async || Ok::<_, io::Error>(3);
    /// let (user, price) = tokio::try_join!(
    ///     users.entry(42).deadline(deadline).fetch(user),
    ///     prices.entry("tea").deadline(deadline).fetch(price),
    /// )?;
    /// # assert_eq!((user.as_str(), price), ("Ann", 3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn deadline(self, at: Instant) -> Self {
        self.earlier(at.into())
    }

    /// Sets the [deadline](Self::deadline) this long after now, when the option is set.
    pub fn timeout(self, limit: Duration) -> Self {
        self.earlier(clock::deadline_after(limit))
    }

    /// Sets for how long after now this call waits for a refresh while there is a stale value that may replace a failed one:
    /// see [`Policy::soft_timeout`]. Default: that of the policy.
    ///
    /// ```
    /// # #[derive(Clone)] struct Db;
    /// # impl Db { async fn user(&self, id: u64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, db, id) = (stampede_guard::StampedeGuard::in_memory(), Db, 42);
    /// # let mut res = axum::http::Response::new(());
    /// # const MS: Duration = Duration::from_millis(1);
    /// use stampede_guard::{FetchContext, FetchOutcome, Policy};
    /// use std::time::Duration;
    ///
    /// let policy = Policy::fresh_for(Duration::from_secs(60)).stale_if_error(Duration::from_secs(3600));
    /// let users = guard.cache::<String>("user").policy(policy);
    /// let load = async move |_: FetchContext<String>| db.user(id).await.map(FetchOutcome::new);
    /// let a = users.entry(id).soft_timeout(50 * MS).answer(load).await?;
    /// res.headers_mut().insert("age", a.age().as_secs().into());
    /// # assert_eq!((a.value().as_str(), res.headers()["age"].as_bytes()), ("user 42", &b"0"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn soft_timeout(mut self, limit: Duration) -> Self {
        self.options.soft_until = Some(clock::deadline_after(limit));
        self
    }

    /// Sets the policy of this call: how long the value is used if this call fetches it, and whether this call refreshes
    /// it early. A stored value is used as the call that fetched it said. Default: the policy of the cache.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, is_yesterday) = (stampede_guard::StampedeGuard::in_memory(), true);
    /// use stampede_guard::Policy;
    /// use std::{io, time::Duration};
    ///
    /// let reports = guard.cache::<String>("report");
    /// // The numbers of a day that is over do not change.
    /// let lifetime = Duration::from_secs(if is_yesterday { 86_400 } else { 60 });
    /// let render = async || Ok::<_, io::Error>("a report".to_owned());
    /// let report = reports.entry("2026-11-26").policy(Policy::fresh_for(lifetime)).fetch(render).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = Some(Arc::new(policy));
        self
    }

    /// Returns the value of the key, as [`Cache::fetch`] does.
    ///
    /// # Errors
    ///
    /// As [`Cache::fetch`], panics and cancellation included.
    pub fn fetch<E, F, Fut>(self, fetch: F) -> impl Future<Output = Result<V, Error>> + Send
    where
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        self.in_a_task(fetch)
    }

    /// Like [`fetch`](Self::fetch), for a call that needs more control. It sees the [stale value](FetchContext::stale)
    /// and the [deadline](FetchContext::deadline), and decides how long its answer is fresh and whether it is stored or
    /// shared.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::{FetchContext, FetchOutcome};
    ///
    /// let rates = guard.cache::<f64>("rate");
    /// let rate = rates
    ///     .entry("eur")
    ///     .fetch_with(async |cx: FetchContext<f64>| {
    ///         let rate = cx.stale().copied().unwrap_or(1.1);
    ///         Ok::<_, std::io::Error>(FetchOutcome::new(rate).fresh_for(Duration::from_secs(5)))
    ///     })
    ///     .await?;
    /// # assert_eq!(rate, 1.1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cache::fetch`], panics and cancellation included.
    pub async fn fetch_with<E, F, Fut>(self, fetch: F) -> Result<V, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce(FetchContext<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<FetchOutcome<V>, E>> + Send + 'static,
    {
        let answer = match self.hit_or_miss() {
            Either::Left(hit) => return hit,
            Either::Right(miss) => miss.with_context(fetch),
        };
        answer.await.0
    }

    /// Like [`fetch`](Self::fetch), for values that are read more often than they are owned: hits within the process
    /// share one decoded value.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use std::{io, sync::Arc};
    ///
    /// let catalogues = guard.cache::<Vec<String>>("catalogue");
    /// let load = async || Ok::<_, io::Error>(vec!["tea".to_owned(); 10_000]);
    /// let first: Arc<Vec<String>> = catalogues.entry("de").fetch_arc(load).await?;
    /// # guard.drain().await;
    /// let second = catalogues.entry("de").fetch_arc(load).await?;
    /// assert!(Arc::ptr_eq(&first, &second)); // neither decoded nor copied
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cache::fetch`], panics and cancellation included.
    pub fn fetch_arc<E, F, Fut>(self, fetch: F) -> impl Future<Output = Result<Arc<V>, Error>> + Send
    where
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        self.in_a_task(fetch)
    }

    /// Like [`fetch`](Self::fetch), for a call that borrows: it runs within this future.
    ///
    /// ```
    /// # struct Db;
    /// # impl Db { async fn user(&self, id: u64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
    /// let users = guard.cache::<String>("user");
    /// let user = users.entry(42).fetch_scoped(|| db.user(42)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If this future is dropped, its call is dropped and its lease released. The next waiter, in this process or
    /// another, then makes a call of its own. With stale-while-revalidate, the caller that refreshes waits for the
    /// refresh.
    ///
    /// # Errors
    ///
    /// As [`Cache::fetch`].
    pub async fn fetch_scoped<E, F, Fut>(self, fetch: F) -> Result<V, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send,
        Fut: Future<Output = Result<V, E>> + Send,
    {
        let answer = match self.hit_or_miss() {
            Either::Left(hit) => return hit,
            Either::Right(miss) => miss.resolve(None, fetch),
        };
        answer.await.0
    }

    /// Returns the value as [`fetch_with`](Self::fetch_with) does, and how it was obtained.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::{CacheStatus, FetchOutcome};
    ///
    /// let rates = guard.cache::<f64>("rate");
    /// let rate = rates.entry("eur").answer(async |_| Ok::<_, std::io::Error>(FetchOutcome::new(1.1))).await?;
    /// assert_eq!((*rate, rate.status(), rate.age().as_secs()), (1.1, CacheStatus::Miss, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cache::fetch`], panics and cancellation included.
    pub async fn answer<E, F, Fut>(self, fetch: F) -> Result<Answer<V>, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce(FetchContext<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<FetchOutcome<V>, E>> + Send + 'static,
    {
        let answer = match self.hit_or_miss() {
            Either::Left(hit) => return hit,
            Either::Right(miss) => miss.with_context(fetch),
        };
        let (answer, status) = answer.await;
        answer.map(|answer: Answer<V>| answer.with_status(status))
    }

    /// Returns a newly fetched value, as [`Cache::refresh`] does. A [soft timeout](Self::soft_timeout) has no effect.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use std::time::Duration;
    ///
    /// let rates = guard.cache::<f64>("rate");
    /// let call = rates.entry("eur").timeout(Duration::from_secs(2));
    /// assert_eq!(call.refresh(async || Ok::<_, std::io::Error>(1.1)).await?, 1.1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cache::refresh`], cancellation included.
    pub async fn refresh<E, F, Fut>(self, fetch: F) -> Result<V, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let miss = self.cache.miss(&self.key, &self.options)?;
        miss.refresh(|_, _| async move { fetch().await.map(FetchOutcome::new) }).await.0
    }

    /// Like [`refresh`](Self::refresh), for a fetch that needs the context. If the origin says that the stored value has
    /// not changed, that value is stored again as of now.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::{FetchContext, FetchOutcome};
    ///
    /// let pages = guard.cache::<String>("page");
    /// pages.put("tea", FetchOutcome::new("<h1>".to_owned()).validator("v1")).await?;
    /// let load = async |cx: FetchContext<String>| {
    ///     assert_eq!(cx.validator(), Some(&b"v1"[..])); // sent to the origin, which answers "not modified"
    ///     Ok::<_, std::io::Error>(cx.unchanged().expect("there is a validator"))
    /// };
    /// assert_eq!(pages.entry("tea").refresh_with(load).await?, "<h1>");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cache::refresh`], cancellation included.
    pub async fn refresh_with<E, F, Fut>(self, fetch: F) -> Result<V, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce(FetchContext<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<FetchOutcome<V>, E>> + Send + 'static,
    {
        let miss = self.cache.miss(&self.key, &self.options)?;
        miss.refresh(|typed, mode| fetch(typed.context(mode))).await.0
    }

    #[allow(clippy::manual_async_fn, reason = "an `async fn` would move the key and the options once more")]
    fn in_a_task<A, E, F, Fut>(self, fetch: F) -> impl Future<Output = Result<A, Error>> + Send
    where
        A: AnswerForm<V>,
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        async move {
            let answer = match self.hit_or_miss() {
                Either::Left(hit) => return hit,
                Either::Right(miss) => miss.resolve(IN_A_TASK, fetch),
            };
            answer.await.0
        }
    }

    fn hit_or_miss<A: AnswerForm<V>>(&self) -> Outcome<V, A, CodecHandle<V>> {
        self.cache.hit_or_miss(&self.key, &self.options)
    }

    fn earlier(mut self, at: tokio::time::Instant) -> Self {
        self.options.deadline = Some(self.options.deadline.map_or(at, |other| other.min(at)));
        self
    }
}

impl<V> fmt::Debug for CacheEntry<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheEntry").field("options", &self.options).finish_non_exhaustive()
    }
}
