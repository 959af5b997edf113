//! `guard.fetch(key, fetch)` and its kin: any async function that returns a value serde knows.

use crate::{
    clock::{self, Timestamp},
    codec::Codec,
    config::Config,
    engine::{End, Failure, Head, Judge, Keep, Share, Turn, Verdict},
    entry::{Entry, Kind, Live, Payload},
    error::{BoxError, Error, ErrorKind},
    guard::StampedeGuard,
    key::Key,
    policy::{self, Freshness},
    telemetry,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    any::type_name,
    fmt,
    future::Future,
    marker::PhantomData,
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
    /// See [`ErrorKind`]. Everybody who waited for a call that failed gets its error; others are held off by the
    /// [tombstone](Self::tombstone) for a while.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. A panic of `fetch` is an [`ErrorKind::Panicked`] for everybody who waits for it; where
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
        let (place, typed) = (self.place(key.into()), Typed::<T>::new(self.config()));
        if let Some(hit) = place.peek(&typed) {
            return hit;
        }
        let terms = Terms::new(&place);
        let fetch = async move |turn| {
            let fetched = fetch(typed.context(turn)).await;
            typed.head(&terms, fetched, |value, payload| (value, payload))
        };
        place.resolve(typed, fetch).await.0
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
        let (place, typed) = (self.place(key.into()), Typed::<T>::new(self.config()));
        if let Some(hit) = place.peek(&typed) {
            return hit;
        }
        let terms = Terms::new(&place);
        let fetch = async move |_| {
            let fetched = fetch().await.map(Fetched::new);
            typed.head(&terms, fetched, |value, payload| {
                let value = Arc::new(value);
                (value.clone(), payload.with_live(value))
            })
        };
        place.resolve(typed, fetch).await.0
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
        let (place, typed) = (self.place(key.into()), Typed::<T>::new(self.config()));
        if let Some(hit) = place.peek(&typed) {
            return hit;
        }
        let terms = Terms::new(&place);
        let fetch = move |_| async move {
            let fetched = fetch().await.map(Fetched::new);
            typed.head(&terms, fetched, |value, payload| (value, payload))
        };
        place.resolve_scoped(typed, fetch).await.0
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

/// Judges entries of one type.
pub(crate) struct Typed<T> {
    codec: Codec,
    id: u64,
    of: PhantomData<fn() -> T>,
}

/// What a fetch needs to know of the guard that it runs under.
pub(crate) struct Terms {
    config: Arc<Config>,
    at: crate::key::Address,
}

impl Terms {
    pub(crate) fn new(place: &crate::engine::Place) -> Self {
        Self { config: place.config.clone(), at: place.at.clone() }
    }
}

/// What the waiters of a process share.
struct Shared {
    codec: u64,
    payload: Payload,
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Typed<T> {
    pub(crate) fn new(config: &Config) -> Self {
        Self { codec: config.codec, id: config.codec.id::<T>(), of: PhantomData }
    }

    fn context(self, turn: Turn) -> Fetch<T> {
        match turn {
            Turn::Lead { seen, deadline, fencing_token } => {
                let stale = seen.filter(|entry| self.knows(entry)).and_then(|entry| self.decode(entry.payload()));
                Fetch { stale, deadline, fencing_token }
            }
            Turn::Alone => Fetch { stale: None, deadline: None, fencing_token: None },
        }
    }

    /// Encoded before the value is given away: that is what it costs that `T` need not be `Clone`.
    pub(crate) fn head<A, E: Into<BoxError>>(
        self,
        terms: &Terms,
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
                telemetry::codec_failed(&terms.at, type_name::<T>(), &what);
                return failed(Error::with_source(ErrorKind::Codec, what, error));
            }
        };
        let (value, payload) = own(value, payload);
        let over_cap = payload.bytes().len() > terms.config.max_payload;
        let live = || -> Live { Arc::new(Shared { codec: self.id, payload: payload.clone() }) };
        let (share, end) = match sharing {
            Sharing::Nobody => (Share::Nobody, End::Nothing),
            Sharing::Waiting => (Share::Waiting(live()), End::Nothing),
            Sharing::Everybody { .. } if over_cap => (Share::Waiting(live()), End::Nothing),
            Sharing::Everybody { fresh_for } => {
                let lifetimes = terms.config.policy.lifetimes(fresh_for, clock::draw());
                (Share::Everybody(live(), Keep { lifetimes, codec: self.id }), End::Now(payload))
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
    Head { own: Err(error.clone()), share: Share::Failed(Failure::Error(error), 0), end: End::Nothing }
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

            fn read(&self, entry: &Entry) -> Option<Result<$answer, Error>> {
                self.knows(entry).then(|| self.$decode(entry.payload()))?.map(Ok)
            }

            fn share(&self, live: &Live) -> Option<Result<$answer, Error>> {
                self.$decode(self.shared(live)?).map(Ok)
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
