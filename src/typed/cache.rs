//! A view of a guard: one kind of value.

use super::{
    answer::AnswerForm,
    call::{self, CallOptions, Miss, Outcome},
    context::FetchOutcome,
    encoding::{CodecHandle, Encoding},
    head::TypedFetch,
};
use crate::{
    codec::value_codec::ValueCodec,
    engine::{frontend::Shareability, resolve::IN_A_TASK},
    error::{BoxError, Error},
    guard::StampedeGuard,
    key::to_key::{self, KeyText, ToKey},
    policy::Policy,
    telemetry::FrontEnd,
};
use futures_util::future::Either;
use serde::{Serialize, de::DeserializeOwned};
use std::{convert::Infallible, fmt, future::Future, sync::Arc};

impl StampedeGuard {
    /// Returns a view of one kind of value: its type, its name, and settings of its own.
    ///
    /// The name is the beginning of the keys, with `:` and `%` escaped: key 42 of the cache `user` is the key `user:42` of
    /// the guard. It is the [name](Self::named) of the view in metrics and statistics as well. Two views of one
    /// type with the same name have the same entries; of types with different structures each has its own: a `put` of one
    /// drops the other, and an invalidation drops both. The settings are the present ones of this guard.
    ///
    /// ```
    /// # #[derive(Clone)] struct Db;
    /// # impl Db { async fn user(&self, id: i64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
    /// use stampede_guard::{Cache, Policy};
    /// use std::time::Duration;
    ///
    /// let users: Cache<String> = guard.cache("user").policy(Policy::fresh_for(Duration::from_secs(300)));
    /// let user = users.fetch(42, async move || db.user(42).await).await?;
    /// users.invalidate(42).await?;
    /// # assert_eq!(user, "user 42");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Create a view once, when the application starts, and clone it: its settings are a copy, and its name takes about
    /// 8 KiB and a label of each metric until the last clone of the guard is dropped. So no name should come from a
    /// request: a tenant is a part of the key. `Deserialize` of `V` is called with invented values here, for the first view
    /// of `V` in a process, unless the [fingerprint](Self::fingerprint) is off. A request of a view with an empty name is refused, with
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey).
    #[must_use]
    pub fn cache<V>(&self, name: impl AsRef<str>) -> Cache<V>
    where
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.cache_with(name, self.config.codec)
    }

    /// Returns a view as [`cache`](Self::cache) does, whose values have a codec of their own. They need not implement
    /// serde's traits. For a codec of your own see [`ValueCodec`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::Codec;
    ///
    /// let documents = guard.cache_with::<serde_json::Value>("document", Codec::Json);
    /// let load = async || serde_json::from_str(r#"{ "title": "Tea" }"#);
    /// assert_eq!(documents.fetch(42, load).await?["title"], "Tea");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cache_with<V>(&self, name: impl AsRef<str>, codec: impl ValueCodec<V>) -> Cache<V>
    where
        V: Send + Sync + 'static,
    {
        let guard = self.clone().named(&name);
        let encoding = Encoding::of_cache(codec, &guard.config);
        Cache { prefix: to_key::prefix(name.as_ref()).into(), encoding, guard }
    }
}

/// A view of a guard: one kind of value, with a name, a [`Policy`] and a codec. See [`StampedeGuard::cache`].
///
/// Clones are cheap, and share everything with the guard. [`entry`](Self::entry) gives one call options of its own.
///
/// ```
/// # #[derive(Clone)] struct Db;
/// # impl Db {
/// #     async fn user(&self, id: i64) -> Result<User, std::io::Error> { Ok(User { id, name: "Ann".to_owned() }) }
/// #     async fn rename(&self, _: i64, _: &str) -> Result<(), std::io::Error> { Ok(()) }
/// # }
/// use serde::{Deserialize, Serialize};
/// use stampede_guard::{Cache, Codec, Policy};
/// use std::time::Duration;
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
/// struct User {
///     id: i64,
///     name: String,
/// }
///
/// /// The users of the database, each read once in the fleet and then from the cache for five minutes.
/// #[derive(Clone)]
/// struct Users {
///     db: Db,
///     cache: Cache<User>,
/// }
///
/// impl Users {
///     async fn get(&self, id: i64) -> Result<User, stampede_guard::Error> {
///         let db = self.db.clone();
///         self.cache.fetch(id, async move || db.user(id).await).await
///     }
///
///     async fn rename(&self, id: i64, name: &str) -> std::io::Result<()> {
///         self.db.rename(id, name).await?;
///         if let Err(error) = self.cache.invalidate(id).await {
///             eprintln!("the invalidation is sent again: {error}"); // no error of the caller: the name has changed
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
/// let cache = guard
///     .cache("user")
///     .policy(Policy::fresh_for(Duration::from_secs(300)))
///     .codec(Codec::Json)  // readable in Redis
///     .schema_version(2);  // names are in another order since version 1
/// let users = Users { db, cache };
/// assert_eq!(users.get(42).await?.name, "Ann");
/// users.rename(42, "Bob").await?;
/// # Ok(())
/// # }
/// ```
///
/// Values can say how long they are fresh, and keys can have parts:
///
/// ```
/// # #[derive(Clone)] struct Db;
/// # impl Db { async fn page(&self, _: &str) -> Result<(String, u64), std::io::Error> { Ok(("<h1>".to_owned(), 60)) } }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
/// use stampede_guard::{FetchContext, FetchOutcome};
/// use std::time::Duration;
///
/// let pages = guard.cache::<String>("page");
/// // The value says how long it is fresh.
/// let load = async move |_: FetchContext<String>| {
///     let (html, seconds) = db.page("tea").await?;
///     Ok::<_, std::io::Error>(FetchOutcome::new(html).fresh_for(Duration::from_secs(seconds)))
/// };
/// let page = pages.entry(("acme", "tea")).timeout(Duration::from_millis(50)).answer(load).await?;
/// let (html, age) = (page.value(), page.age().as_secs()); // for the field `Age` of a response
/// // After a write. The key has two parts: tenant and page.
/// pages.invalidate(("acme", "tea")).await?;
/// # assert_eq!((html.as_str(), age), ("<h1>", 0));
/// # Ok(())
/// # }
/// ```
pub struct Cache<V> {
    guard: StampedeGuard,
    /// The beginning of the keys.
    prefix: Arc<str>,
    encoding: Encoding<CodecHandle<V>>,
}

impl<V: Send + Sync + 'static> Cache<V> {
    /// Sets how long a value is used. Default: the policy of the guard.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.guard = self.guard.policy(policy);
        self
    }

    /// Sets the encoding of the values. Each encoding has entries of its own. Default: the codec of the guard.
    #[must_use]
    pub fn codec(mut self, codec: impl ValueCodec<V>) -> Self {
        self.encoding = Encoding::of_cache(codec, &self.guard.config);
        self
    }

    /// Sets the version of the type: see [`StampedeGuard::schema_version`]. Default: that of the guard.
    #[must_use]
    pub fn schema_version(mut self, number: u32) -> Self {
        self.guard = self.guard.schema_version(number);
        self.encoding = Encoding::new(self.encoding.codec, &self.guard.config);
        self
    }

    /// Returns the value of the key: from the cache, or from one call of `fetch` in the whole fleet.
    ///
    /// As [`StampedeGuard::fetch`]: errors, panics and cancellation included. A hit in this process allocates nothing for
    /// a key of up to 96 bytes.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    pub async fn fetch<E, F, Fut>(&self, key: impl ToKey, fetch: F) -> Result<V, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        let answer = match self.hit_or_miss(&self.text(&key), &CallOptions::default()) {
            Either::Left(hit) => return hit,
            Either::Right(miss) => miss.resolve(IN_A_TASK, fetch),
        };
        answer.await.0
    }

    /// Returns the stored value: a fresh one, or a stale one that the policy serves while it is refreshed. Begins
    /// nothing: no fetch and no refresh. It waits for no fetch either, so that a value that was fetched a moment ago may
    /// not be there yet.
    ///
    /// While the store is unavailable, the value may come from the [outage cache](StampedeGuard::outage_cache), otherwise
    /// there is none. A call that finds nothing counts in no statistic. Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// let rates = guard.cache::<f64>("rate");
    /// assert_eq!(rates.get("eur").await?, None);
    /// rates.fetch("eur", async || Ok::<_, std::io::Error>(1.1)).await?;
    /// # guard.drain().await;
    /// assert_eq!(rates.get("eur").await?, Some(1.1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if the store is unavailable under
    /// [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed), and
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) for an empty key.
    pub async fn get(&self, key: impl ToKey) -> Result<Option<V>, Error> {
        let found = match self.hit_or_miss(&self.text(&key), &CallOptions::default()) {
            Either::Left(hit) => return hit.map(Some),
            Either::Right(miss) => miss.in_store(),
        };
        found.await
    }

    /// Returns a newly fetched value: its fetch begins after this call, in this process or in another. Calls that
    /// come before a fetch begins share it, in the whole fleet. Until it is stored, readers get the value that the
    /// cache has. It is stored in the background, so that a read just after this call may get the earlier value.
    ///
    /// ```
    /// # #[derive(Clone)] struct Db;
    /// # impl Db {
    /// #     async fn rename(&self, _: i64, _: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// #     async fn user(&self, _: i64) -> Result<String, std::io::Error> { Ok("Ada".to_owned()) }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (guard, db, id) = (stampede_guard::StampedeGuard::in_memory(), Db, 42);
    /// let users = guard.cache::<String>("user");
    /// # users.put(id, "A.".to_owned()).await?;
    /// db.rename(id, "Ada").await?;
    /// // The answer to this request has the new name, and no reader waits for it.
    /// let user = users.refresh(id, async move || db.user(id).await).await?;
    /// # guard.drain().await;
    /// # assert_eq!((user, users.get(id).await?), ("Ada".to_owned(), Some("Ada".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A process that keeps a value warm calls it from time to time. If all processes do so, they share fetches only while
    /// their calls overlap:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// let rates = guard.cache::<f64>("rate");
    /// let warm = async move {
    ///     let mut every = tokio::time::interval(Duration::from_secs(30));
    ///     loop {
    ///         every.tick().await;
    ///         if let Err(error) = rates.refresh("eur", async || Ok::<_, std::io::Error>(1.1)).await {
    ///             eprintln!("{error}");
    ///         }
    ///     }
    /// };
    /// # let _ = tokio::time::timeout(Duration::from_secs(100), warm).await;
    /// # assert_eq!(guard.stats().misses, 3 + 1);
    /// # }
    /// ```
    ///
    /// A fetch that is running when this is called does not count: this waits for its end, and fetches then. The value is
    /// not stored if an invalidation, an expiry or a put overtakes the fetch, and if the store is unavailable: readers then
    /// keep what the store has. A writer after which no reader may get the old value calls [`invalidate`](Self::invalidate)
    /// or [`put`](Self::put). A value that is [private](crate::FetchOutcome::private) is fetched for each call.
    ///
    /// Cancellation as [`fetch`](Self::fetch): the fetch goes on.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch). The error of the fetch is the answer, and no stale value takes its place. While a fetch
    /// that failed blocks the key for its [`failure_ttl`](StampedeGuard::failure_ttl), its error is the answer, too. Readers
    /// keep the value.
    pub async fn refresh<E, F, Fut>(&self, key: impl ToKey, fetch: F) -> Result<V, Error>
    where
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        self.entry(key).refresh(fetch).await
    }

    /// Stores this value. Calls that begin after this has returned `Ok` get no value of an earlier fetch, put or
    /// invalidation. Another guard, in this process or another, may share a read that it has sent before, at most for its
    /// [`store_timeout`](StampedeGuard::store_timeout), and a [near cache](StampedeGuard::near_cache) is late by at most a
    /// round trip, or its [`max_age`](crate::NearCacheConfig::max_age). A fetch that is running is not interrupted: its
    /// callers get its result, or its error, and the result is not stored.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::FetchOutcome;
    /// use std::time::Duration;
    ///
    /// let rates = guard.cache::<f64>("rate");
    /// rates.put("eur", 1.1).await?;
    /// rates.put("usd", FetchOutcome::new(1.2).fresh_for(Duration::from_secs(5))).await?;
    /// assert_eq!(rates.get("eur").await?, Some(1.1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Of puts that overlap, the one is stored whose first request the store has executed last. Of others, the last one
    /// counts, even if its value was read from the database first. A writer that cannot order its writes calls
    /// [`invalidate`](Self::invalidate). `Ok` does not mean that the value is stored now: an invalidation or another put
    /// that comes later counts.
    ///
    /// Once polled, the future can be dropped without stopping the put. It reaches the store under
    /// [`bypass`](StampedeGuard::bypass), too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if the store has not acknowledged the put. The value may be stored or
    /// not. The key is invalidated, as after an [`invalidate`](Self::invalidate) that fails: the invalidation is sent again
    /// until it is acknowledged, and the value is not. [`ErrorKind::Uncacheable`](crate::ErrorKind::Uncacheable) if the
    /// outcome is private or not to be stored, the value is too large, or its codec refuses it (the log names the reason): the
    /// key is invalidated.
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) for an empty key.
    pub async fn put(&self, key: impl ToKey, value: impl Into<FetchOutcome<V>>) -> Result<(), Error> {
        let key = self.text(&key);
        key.check()?;
        let resource = self.guard.resource_in(FrontEnd::Fetch, self.encoding.layout, key.to_key());
        let typed = TypedFetch { encoding: self.encoding.clone(), policy: None };
        let head = typed.head::<V, Arc<V>, Infallible>(&resource, Ok(value.into()));
        match head.sharing {
            Shareability::Complete(payload, store_as) => resource.put(payload, store_as).await,
            _ => resource.invalidate().await.and(Err(Error::uncacheable())),
        }
    }

    /// Makes the value of the key stale at once. The stale windows of its policy go on working: callers get it while one
    /// of them refreshes it, or if that fails. Without such windows the next caller fetches, as after
    /// [`invalidate`](Self::invalidate). A fetch that has begun before does not make the value fresh again. The callers of
    /// such a fetch get its result or its error, not the stale value.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::Policy;
    /// use std::time::Duration;
    ///
    /// let minute = Duration::from_secs(60);
    /// let prices = guard.cache::<u64>("price").policy(Policy::fresh_for(minute).stale_while_revalidate(minute));
    /// prices.put("apple", 3).await?;
    /// prices.expire("apple").await?;
    /// let price = prices.fetch("apple", async || Ok::<_, std::io::Error>(4)).await?;
    /// assert_eq!(price, 3); // 4 once it is refreshed
    /// # guard.drain().await;
    /// # assert_eq!(prices.get("apple").await?, Some(4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Once polled, the future can be dropped without stopping the expiry. Redis drops the value if its memory is full or the user
    /// has no right to `SETRANGE`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) for an empty key, and
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if the store did not acknowledge it. The value is then dropped as soon
    /// as the store answers, as after [`StampedeGuard::invalidate`]. It is dropped, too, if an invalidation of the key is not
    /// acknowledged yet.
    pub async fn expire(&self, key: impl ToKey) -> Result<(), Error> {
        self.guard.resource_of(&self.text(&key))?.expire().await
    }

    /// Drops the entry of the key, as [`StampedeGuard::invalidate`] does.
    ///
    /// # Errors
    ///
    /// As [`StampedeGuard::invalidate`].
    pub async fn invalidate(&self, key: impl ToKey) -> Result<(), Error> {
        self.guard.resource_of(&self.text(&key))?.invalidate().await
    }

    /// Drops the entries of all these keys, each as [`invalidate`](Self::invalidate) does. `Ok` if the store has
    /// acknowledged all of them. They share round trips, so that a thousand keys take little longer than one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// let users = guard.cache::<String>("user");
    /// users.invalidate_many([("acme", 1), ("acme", 2)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Once polled, the future can be dropped without stopping the invalidations.
    ///
    /// # Errors
    ///
    /// The first error of an invalidation. The other invalidations go on, and what the store does not acknowledge is
    /// sent again until it does, as after [`StampedeGuard::invalidate`].
    /// With [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey), for an empty key, nothing is invalidated.
    pub async fn invalidate_many(&self, keys: impl IntoIterator<Item = impl ToKey>) -> Result<(), Error> {
        let resources: Result<Vec<_>, Error> =
            keys.into_iter().map(|key| self.guard.resource_of(&self.text(&key))).collect();
        self.guard.engine.invalidate_all(resources?).await
    }

    pub(super) fn text(&self, key: &impl ToKey) -> KeyText {
        KeyText::new(&self.prefix, key)
    }

    pub(super) fn miss(&self, key: &KeyText, options: &CallOptions) -> Result<Miss<V, CodecHandle<V>>, Error> {
        key.check()?;
        Ok(call::miss(&self.guard, FrontEnd::Fetch, &self.encoding, key, options, None))
    }

    pub(super) fn hit_or_miss<A: AnswerForm<V>>(
        &self,
        key: &KeyText,
        options: &CallOptions,
    ) -> Outcome<V, A, CodecHandle<V>> {
        call::hit_or_miss(&self.guard, FrontEnd::Fetch, &self.encoding, key, options)
    }
}

/// Written by hand, because a derived implementation would require `V: Clone`.
impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { guard: self.guard.clone(), prefix: self.prefix.clone(), encoding: self.encoding.clone() }
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("prefix", &self.prefix).field("guard", &self.guard).finish_non_exhaustive()
    }
}
