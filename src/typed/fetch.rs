//! `StampedeGuard::fetch`: any async function that returns a value serde can encode.

use super::{
    answer::AnswerForm,
    call::{CallOptions, Outcome, hit_or_miss},
    encoding::Encoding,
};
use crate::{
    codec::serde_codec::SerdeCodec,
    engine::resolve::IN_A_TASK,
    error::{BoxError, Error},
    guard::StampedeGuard,
    key::to_key::{KeyText, ToKey},
    telemetry::FrontEnd,
};
use futures_util::future::Either;
use serde::{Serialize, de::DeserializeOwned};
use std::future::Future;

impl StampedeGuard {
    /// Returns the value of the key: from the cache, or from one call of `fetch` in the whole fleet.
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
    /// Cancel safe: a call that others may wait for runs in a task of its own. If this future is dropped, the call
    /// continues and its value is stored, unless [`max_detached`](Self::max_detached) calls that no request waits for
    /// are running already. `fetch` must therefore own what it uses (`async move ||`, a clone of the
    /// pool); [`fetch_scoped`](crate::CacheEntry::fetch_scoped) borrows.
    ///
    /// For keys of one kind, a [policy](crate::Cache::policy) or [codec](crate::Cache::codec) of their own, a deadline
    /// or [more control](crate::CacheEntry::fetch_with) over a call, create a view with [`cache`](Self::cache).
    ///
    /// A `?` inside `fetch` leaves its error type open; name it, as in `Ok::<_, io::Error>(x)`.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind). All waiters of a call that fails get its error. Later requests are held off
    /// for a while by the [failure marker](Self::failure_ttl).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. A panic of `fetch` becomes [`ErrorKind::Panicked`](crate::ErrorKind::Panicked) for
    /// the caller and all waiters. A call without possible waiters (after [`private`](crate::FetchOutcome::private), or inside
    /// a call for the same key) is part of this future, and so is its panic.
    pub async fn fetch<T, E, F, Fut>(&self, key: impl ToKey, fetch: F) -> Result<T, Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let answer = match self.hit_or_miss(FrontEnd::Fetch, &key) {
            Either::Left(hit) => return hit,
            Either::Right(miss) => miss.resolve(IN_A_TASK, fetch),
        };
        answer.await.0
    }

    /// Returns the answer that this process has, otherwise what resolves the key.
    pub(super) fn hit_or_miss<T, A>(&self, front_end: FrontEnd, key: &impl ToKey) -> Outcome<T, A, SerdeCodec>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        A: AnswerForm<T>,
    {
        let encoding = Encoding::new::<T>(self.config.codec.of_type::<T>(self.config.fingerprint), &self.config);
        hit_or_miss(self, front_end, &encoding, &KeyText::new("", key), &CallOptions::default())
    }
}
