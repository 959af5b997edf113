//! `guard.fetch(key, fetch)` and its kin: any async function that returns a value serde knows.

mod typed;

pub(crate) use typed::Typed;

use crate::{
    clock::Timestamp,
    engine::Turn,
    error::{BoxError, Error},
    guard::StampedeGuard,
    key::Key,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

impl StampedeGuard {
    /// The value of the key: from the cache, or of one call of `fetch` in the whole fleet.
    ///
    /// ```
    /// # #[derive(Clone)] struct Db;
    /// # impl Db { async fn user(&self, id: u64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
    /// let user: String = guard.fetch("user:42", async move || db.user(42).await).await?;
    /// # assert_eq!(user, "user 42");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A call that others may wait for runs in a task of its own. If this future is dropped, the call goes on, and its
    /// value is stored: a client that goes away strands nobody. That is why `fetch` must own what it uses (`async move ||`, a clone of
    /// the pool); [`fetch_scoped`](Self::fetch_scoped) borrows.
    ///
    /// A `?` inside leaves the type of the error open; name it, as in `Ok::<_, io::Error>(x)`.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind). Everybody who waited for a call that failed gets its error; others are held off by the
    /// [tombstone](Self::tombstone) for a while.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. A panic of `fetch` is an [`ErrorKind::Panicked`](crate::ErrorKind::Panicked) for everybody who waits for it; where
    /// nobody can wait for it ([`private`](Fetched::private), or within a call for the same key), the call is part of
    /// this future, and so is its panic.
    pub async fn fetch<T, E, F, Fut>(&self, key: impl Into<Key>, fetch: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: Into<BoxError>,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.fetch_with(key, |_| async move { fetch().await.map(Fetched::new) }).await
    }

    /// Like [`fetch`](Self::fetch), for a call that has more to say: it sees the [stale value](Fetch::stale) and the
    /// [deadline](Fetch::deadline), and says for how long its answer holds, or that it is not to be stored or shared.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::{Fetch, Fetched};
    ///
    /// let rate: f64 = guard
    ///     .fetch_with("rate:eur", async |cx: Fetch<f64>| {
    ///         let rate = cx.stale().copied().unwrap_or(1.1);
    ///         Ok::<_, std::io::Error>(Fetched::new(rate).fresh_for(Duration::from_secs(5)))
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_with<T, E, F, Fut>(&self, key: impl Into<Key>, fetch: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: Into<BoxError>,
        F: FnOnce(Fetch<T>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Fetched<T>, E>> + Send + 'static,
    {
        let answer = {
            let (place, typed) = (self.place(key.into()), Typed::<T>::new(self.config()));
            if let Some(hit) = place.peek(&typed, Timestamp::now()) {
                return hit;
            }
            let here = place.clone();
            let fetch = async move |turn: Turn| {
                let fetched = fetch(typed.context(turn)).await;
                typed.head(&here, fetched, |value, payload| (value, payload))
            };
            place.resolve(typed, fetch)
        };
        answer.await.0
    }

    /// Like [`fetch`](Self::fetch), for values that are read more often than they are owned: hits within the process
    /// share the decoded value instead of decoding their own.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_arc<T, E, F, Fut>(&self, key: impl Into<Key>, fetch: F) -> Result<Arc<T>, Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: Into<BoxError>,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let answer = {
            let (place, typed) = (self.place(key.into()), Typed::<T>::new(self.config()));
            if let Some(hit) = place.peek(&typed, Timestamp::now()) {
                return hit;
            }
            let here = place.clone();
            let fetch = async move |_| {
                let fetched = fetch().await.map(Fetched::new);
                typed.head(&here, fetched, |value, payload| {
                    let value = Arc::new(value);
                    (value.clone(), payload.with_live(value))
                })
            };
            place.resolve(typed, fetch)
        };
        answer.await.0
    }

    /// Like [`fetch`](Self::fetch), for a call that borrows: it runs within this future.
    ///
    /// ```
    /// # struct Db;
    /// # impl Db { async fn user(&self, id: u64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
    /// let user = guard.fetch_scoped("user:42", || db.user(42)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If this future is dropped, so is its call; its lease is given back, and the next one who waits, in this process
    /// or another, makes its own. With stale-while-revalidate, the one caller that refreshes waits for it.
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_scoped<T, E, F, Fut>(&self, key: impl Into<Key>, fetch: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: Into<BoxError>,
        F: FnOnce() -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let answer = {
            let (place, typed) = (self.place(key.into()), Typed::<T>::new(self.config()));
            if let Some(hit) = place.peek(&typed, Timestamp::now()) {
                return hit;
            }
            let here = place.clone();
            let fetch = move |_| async move {
                let fetched = fetch().await.map(Fetched::new);
                typed.head(&here, fetched, |value, payload| (value, payload))
            };
            place.resolve_scoped(typed, fetch)
        };
        answer.await.0
    }
}

/// What a call of [`fetch_with`](StampedeGuard::fetch_with) is told.
pub struct Fetch<T> {
    stale: Option<T>,
    deadline: Option<Instant>,
    fencing_token: Option<u64>,
}

impl<T> Fetch<T> {
    /// The value that is no longer good enough, for instance to ask the origin whether it has changed.
    #[must_use]
    pub fn stale(&self) -> Option<&T> {
        self.stale.as_ref()
    }

    /// The same, to keep.
    #[must_use]
    pub fn into_stale(self) -> Option<T> {
        self.stale
    }

    /// When the call will be aborted. `None` if it runs for its own caller only, who can drop it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Grows from leader to leader of the key, as far as the clock of the Redis server does. Hand it to a resource
    /// that the call writes to, and let that refuse smaller ones. `None` if the call holds no lease.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }
}

impl<T> fmt::Debug for Fetch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("stale", &self.stale.is_some())
            .field("deadline", &self.deadline)
            .field("fencing_token", &self.fencing_token)
            .finish()
    }
}

/// What a call of [`fetch_with`](StampedeGuard::fetch_with) says: the value, and who may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<T> {
    value: T,
    sharing: Sharing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Everybody { fresh_for: Option<Duration> },
    Waiting,
    Nobody,
}

impl<T> Fetched<T> {
    /// A value for everybody, for as long as the [`Policy`](crate::Policy) says.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value, sharing: Sharing::Everybody { fresh_for: None } }
    }

    /// Fresh for this long, to the letter. The stale windows of the policy follow.
    #[must_use]
    pub fn fresh_for(mut self, lifetime: Duration) -> Self {
        self.sharing = Sharing::Everybody { fresh_for: Some(lifetime) };
        self
    }

    /// For those only who ask this process while the call is running. For a while every process calls by itself, and
    /// nobody waits for another process: see [`pass_for`](StampedeGuard::pass_for).
    #[must_use]
    pub fn do_not_store(mut self) -> Self {
        self.sharing = Sharing::Waiting;
        self
    }

    /// For the caller alone. For a while everybody makes a call of their own, at once: see
    /// [`pass_for`](StampedeGuard::pass_for).
    #[must_use]
    pub fn private(mut self) -> Self {
        self.sharing = Sharing::Nobody;
        self
    }
}
