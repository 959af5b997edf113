//! The settings of a guard, the most used ones first.

#[cfg(feature = "serde")]
pub(crate) mod file;

use crate::{
    config::{Classifier, FailureClass, StoreFailure},
    guard::StampedeGuard,
    hot_keys::HotKeys,
    key,
    near_cache::NearCacheConfig,
    outage_cache::{OutageCache, OutageCacheConfig},
    policy::Policy,
    sync::newest_first::NewestFirst,
};
use std::{sync::Arc, time::Duration};

impl StampedeGuard {
    /// Sets how long an answer is used. Default: [`Policy::default`].
    pub fn policy(self, policy: Policy) -> Self {
        self.set(|config| config.policy = policy)
    }

    /// Sets the encoding of typed values. Each codec has entries of its own, as each
    /// [`schema_version`](Self::schema_version) has. Default: [`Codec::default`](crate::Codec).
    ///
    /// ```
    /// use stampede_guard::{Codec, StampedeGuard};
    ///
    /// let guard = StampedeGuard::in_memory().codec(Codec::Json); // readable in Redis, and larger
    /// ```
    #[cfg(feature = "_typed")]
    pub fn codec(self, codec: crate::codec::Codec) -> Self {
        self.set(|config| config.codec = codec)
    }

    /// Sets the version of the stored types and pages. Each version has entries of its own, so that old and new processes
    /// of a rolling deploy do not overwrite each other; an invalidation drops all of them. All versions share leases.
    /// Default: 0.
    ///
    /// So has each [structure](Self::fingerprint) of a type: the names, order and kinds of fields and variants, as
    /// `Deserialize` asks for them. Raise the version
    /// - when a type changes in a way that its structure does not show:
    ///   - the meaning or the unit of a field, or two elements of one kind in a tuple;
    ///   - the inside of a type that validates and accepts no sample, and in a tuple the elements after it, or after a
    ///     struct that has an `alias`;
    ///   - the inside of a type with `flatten`, `tag` or `untagged`, which is encoded as JSON;
    ///   - values nested more than 48 deep, what comes after 2,000 values without a field name between them, or after
    ///     20,000 values that the library tries;
    ///   - what hand-written code decides by values, or reads of a map after a key that it has refused;
    /// - when any of it changes, in programs that do not take the [fingerprint](Self::fingerprint) of types.
    ///
    /// ```
    /// use serde::{Deserialize, Serialize};
    /// use stampede_guard::StampedeGuard;
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Offer {
    ///     price: u64, // in cents since version 1, in euros before
    /// }
    ///
    /// let guard = StampedeGuard::in_memory().schema_version(1);
    /// let offers = guard.cache::<Offer>("offer");
    /// ```
    pub fn schema_version(self, number: u32) -> Self {
        self.set(|config| config.schema_version = number)
    }

    /// Sets whether stored types are told apart by their structure. Default: `true`.
    ///
    /// Before the first request for a type, its `Deserialize` is called with invented values, such as 1 and `"a"`, and
    /// what it asks for is hashed. This happens once in a process, in at most 20,000 requests for values. Hand-written
    /// code that trusts its data may panic then. The panic is caught, and costs nothing but a line that the panic hook
    /// prints: the field that it comes from does not count. **In programs built with `panic = "abort"`** a panic would end
    /// the process, so there types are told apart by their name in Rust and the [`schema_version`](Self::schema_version)
    /// alone, as with `false`. Then raise the version with each change of a type. An event of level `DEBUG` names each
    /// such type.
    ///
    /// Set it to `false` for types whose `Deserialize` must not run on invented values, for example because it has
    /// effects. A clone can do so for one kind of value. It does not reach a [`Codec`](crate::Codec) within a
    /// [`ValueCodec`](crate::ValueCodec) of your own.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory();
    /// // Now each change of the type needs another number.
    /// let rates = guard.clone().fingerprint(false).schema_version(3).cache::<f64>("rate");
    /// ```
    #[cfg(feature = "_typed")]
    pub fn fingerprint(self, on: bool) -> Self {
        self.set(|config| config.fingerprint = on)
    }

    /// Sets the namespace, which separates the keys of different applications or tests. Default: `sg`.
    ///
    /// It is a part of key names: at most 64 characters of `[A-Za-z0-9_.-]`. Other characters are replaced by `_`,
    /// further ones are cut off, and an empty name is replaced by the default.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let (shop, blog) = (guard.clone().namespace("shop"), guard.namespace("blog"));
    /// let count = |n: u32| async move || Ok::<_, std::io::Error>(n);
    /// assert_eq!((shop.fetch("visitors", count(1)).await?, blog.fetch("visitors", count(2)).await?), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn namespace(self, name: impl AsRef<str>) -> Self {
        let name = key::namespace(name.as_ref(), DEFAULT_NAMESPACE);
        self.set(|config| {
            config.meter.set_namespace(&name);
            config.namespace = name;
        })
    }

    /// Names this clone, and clones made from it afterwards. The name is the key in
    /// [`stats_by_name`](Self::stats_by_name), and a label of metrics and spans. Default, also for an empty name:
    /// `default`.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    ///
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// let guard = StampedeGuard::in_memory();
    /// let reports = guard.clone().named("reports");
    /// let report: u32 = reports.fetch("report:7", async || Ok::<_, std::io::Error>(7)).await?;
    /// assert_eq!(guard.stats_by_name()["reports"].misses, 1);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    ///
    /// A name takes about 8 KiB, and stays until the last clone of the guard is dropped. It should come from the code,
    /// one for each kind of request, and never from a request. Set it once, when the application starts.
    pub fn named(self, name: impl AsRef<str>) -> Self {
        let engine = Arc::clone(&self.engine);
        self.set(|config| config.meter.rename(name.as_ref(), &engine.counters, &config.namespace))
    }

    /// Sets the fetch timeout, after which a fetch is aborted and counts as failed
    /// ([`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut)), also one for its own caller only. Default: 60 s.
    ///
    /// An HTTP response whose body takes longer is not stored, and new requests fetch again. Requests that read the body
    /// already share it to its end, for up to ten times `limit`.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    /// use std::time::Duration;
    ///
    /// // Reports that take up to two minutes, over a Redis in another building.
    /// let guard = StampedeGuard::in_memory()
    ///     .fetch_timeout(Duration::from_secs(150))  // the slowest report, and some more
    ///     .wait_timeout(Duration::from_secs(20))    // clients give up then: a 503 is better than no answer
    ///     .store_timeout(Duration::from_millis(500))
    ///     .lease_ttl(Duration::from_secs(5));       // a crash of the leader costs its waiters five seconds
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[track_caller]
    pub fn fetch_timeout(self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "fetch_timeout must be greater than zero");
        self.set(|config| config.fetch_timeout = limit)
    }

    /// Sets the wait timeout: how long a request waits for a fetch that another request leads. Afterwards it gets the
    /// stale value, if the policy permits that on errors, otherwise
    /// [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response 503 with `Retry-After: 1`. Default:
    /// [`fetch_timeout`](Self::fetch_timeout) and [`lease_ttl`](Self::lease_ttl) of this clone together, because no
    /// leader holds a key longer. Zero means that no request waits for a fetch.
    ///
    /// It does not limit a request's own fetch, nor lookups. Until then a request stays with a leader that is alive, even
    /// if the store does not answer for up to one lease.
    ///
    /// A request within a fetch that has waited for half of the time left to that fetch logs one `WARN`: two fetches of
    /// different processes or guards that need each other wait until both are aborted.
    pub fn wait_timeout(self, span: Duration) -> Self {
        self.set(|config| config.wait_timeout = Some(span))
    }

    /// Sets the lease time-to-live. If the leader crashes, other processes wait this long, and a quarter of a second,
    /// before one of them takes over. A living leader extends its lease every third of this time. Keep it above three
    /// times the [`store_timeout`](Self::store_timeout), so that the lease survives an extension that is not answered.
    /// Default: 3 s. Redis counts whole milliseconds. See the example of [`fetch_timeout`](Self::fetch_timeout).
    ///
    /// # Panics
    ///
    /// Panics if `span` is less than 10 ms. Such a lease ends before its leader can extend it, so that no fetch would
    /// be stored.
    #[track_caller]
    pub fn lease_ttl(self, span: Duration) -> Self {
        assert!(span >= Duration::from_millis(10), "lease_ttl must be at least 10 ms");
        self.set(|config| config.lease_ttl = span)
    }

    /// Sets the timeout of one store operation, after which the guard goes on without the store. Over Redis a request
    /// joins a read of its entry for at most this time after the read was sent, unless this process has invalidated the
    /// resource meanwhile. Default: 250 ms. See the example of [`fetch_timeout`](Self::fetch_timeout).
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[track_caller]
    pub fn store_timeout(self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "store_timeout must be greater than zero");
        self.set(|config| config.store_timeout = limit)
    }

    /// Sets how long the marker of a failed fetch blocks its key in the store. Meanwhile the key is not fetched again.
    /// Requests get the stale value, if the policy permits that on errors. Otherwise they get the error of that fetch
    /// at once, with [`retry_in`](crate::Error::retry_in). The time doubles with each further failure, up to ten times
    /// this value. [`invalidate`](Self::invalidate) removes the marker. Zero: the guard leaves no markers, and obeys
    /// the markers of other guards. Default: 1 s. While the store is unavailable there is no marker.
    ///
    /// While the marker blocks the key, callers of the guard that fetched, and of its clones, get the error with its
    /// cause. The causes of up to 1,024 keys are kept at a time. The memory of an error is released at the next failure
    /// of any key after its block. Callers of other guards get the kind of the error.
    ///
    /// [`classify`](Self::classify) names errors that need no marker, because the request is their reason and not the
    /// origin.
    ///
    /// HTTP requests without a stored response are blocked for at most 100 ms, and only if a second request has failed as
    /// well, because another request may succeed. They get a 503. Then one of them tries, and all other requests wait.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    /// use std::time::Duration;
    ///
    /// // An origin that fails now and then, and recovers at once: one more attempt is cheap.
    /// let flaky = StampedeGuard::in_memory().failure_ttl(Duration::from_millis(100));
    /// // An origin that recovers in minutes. A page that was private is asked about again after ten seconds.
    /// let slow = StampedeGuard::in_memory().failure_ttl(Duration::from_secs(10)).uncacheable_ttl(Duration::from_secs(10));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `first` is longer than 99 s. The marker in Redis has six digits for ten times this value in
    /// milliseconds.
    #[track_caller]
    pub fn failure_ttl(self, first: Duration) -> Self {
        assert!(first <= LONGEST_FAILURE_TTL, "failure_ttl must be at most {LONGEST_FAILURE_TTL:?}");
        self.set(|config| config.failure_ttl = first)
    }

    /// Sets which errors of a fetch are answers of an origin that works. Default: none, every error is
    /// [`FailureClass::OriginDown`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use stampede_guard::{Error, FailureClass, StampedeGuard};
    /// use std::io;
    ///
    /// let guard = StampedeGuard::in_memory().classify(|error| match Error::find::<io::Error>(error) {
    ///     Some(error) if error.kind() == io::ErrorKind::NotFound => FailureClass::Answer,
    ///     _ => FailureClass::OriginDown,
    /// });
    /// let missing = async || Err::<String, _>(io::Error::from(io::ErrorKind::NotFound));
    /// let error = guard.fetch("user:0", missing).await.unwrap_err();
    /// assert!(error.origin::<io::Error>().is_some());
    /// // No failure marker blocks the key:
    /// assert_eq!(guard.fetch("user:0", async || Ok::<_, io::Error>("Ann".to_owned())).await.unwrap(), "Ann");
    /// # }
    /// ```
    ///
    /// The guard calls `classify` once per failed fetch, as a part of the fetch, so that a panic is a panic of the fetch.
    /// Its argument is the outermost error; [`Error::find`](crate::Error::find) searches the sources too. HTTP responses
    /// are classified by their status. A fetch that panics or times out is always `OriginDown`.
    ///
    /// To cache "there is none" as well, let the fetch return an `Option`.
    pub fn classify(
        self,
        classify: impl Fn(&(dyn std::error::Error + 'static)) -> FailureClass + Send + Sync + 'static,
    ) -> Self {
        self.set(|config| config.classifier = Classifier(Arc::new(classify)))
    }

    /// Sets how long the hit-for-pass marker lives. It records that the answer for a key may not be shared, so that no
    /// request waits for it. Zero turns the marker off. Default: 60 s. See the example of
    /// [`failure_ttl`](Self::failure_ttl).
    pub fn uncacheable_ttl(self, span: Duration) -> Self {
        self.set(|config| config.uncacheable_ttl = span)
    }

    /// Sets what happens while the store is unavailable. Default: [`StoreFailure::FailOpen`].
    ///
    /// A circuit breaker opens after one operation that exceeds [`store_timeout`](Self::store_timeout), or after five
    /// errors in a row. Errors within 20 ms count as one, because all operations in flight fail when their connection
    /// breaks. So errors open the breaker 80 ms after the first one at the earliest. A refusal is a reply and no such
    /// error; `LOADING`, `BUSY`, `MASTERDOWN` and `CLUSTERDOWN` are.
    /// Requests then probe the store in the background: at once, and again after each `store_timeout`, or 0.5 s if that is
    /// shorter. A reply closes the breaker; without requests, pending invalidations and fills it stays open. For half of a `store_timeout` after a timeout,
    /// requests wait for the probe, and a read that has timed out is sent once more when the probe is answered. Afterwards
    /// no request waits for the store. [`invalidate`](Self::invalidate) bypasses the breaker. Clones with different
    /// `store_timeout`s have separate breakers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use stampede_guard::{ErrorKind, StampedeGuard, StoreFailure};
    ///
    /// let guard = StampedeGuard::connect("redis://127.0.0.1:1/")?; // no server there
    /// let count = || async || Ok::<_, std::io::Error>(7);
    /// assert_eq!(guard.fetch("visitors", count()).await?, 7);
    /// // For an origin that must not be asked by each process on its own.
    /// let closed = guard.on_store_failure(StoreFailure::FailClosed);
    /// assert_eq!(closed.fetch("visitors", count()).await.unwrap_err().kind(), ErrorKind::Store);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_store_failure(self, then: StoreFailure) -> Self {
        self.set(|config| config.on_store_failure = then)
    }

    /// Keeps copies in this process of entries read from an external store. A hit on a copy costs no round trip, and no
    /// decoding if the value is shared. Default: none.
    ///
    /// ```
    /// # fn example(redis: stampede_guard::redis::Client) {
    /// use stampede_guard::{NearCacheConfig, StampedeGuard};
    /// use std::time::Duration;
    ///
    /// let guard = StampedeGuard::new(redis).near_cache(NearCacheConfig::max_bytes(64 << 20).max_age(Duration::from_secs(1)));
    /// # }
    /// ```
    ///
    /// Over a `redis::Client` or a `RedisEndpoint` that names a server or sentinels, each process drops its copy as soon
    /// as any client fills the entry again, invalidates, deletes or evicts it. The server notifies every process that has
    /// read the entry (`CLIENT TRACKING`, Redis 6.0 or later). Until the connection for these messages is made, requests
    /// read from the server and no copies are kept. If the server cannot notify, in a cluster, and over an existing
    /// connection, a copy lives for [`max_age`](crate::NearCacheConfig::max_age) after it was read. In both cases no
    /// process serves a copy for longer than `max_age` after an invalidation.
    ///
    /// [`invalidate`](Self::invalidate) drops the copies of this guard and its clones before it returns. Only fresh
    /// copies are served; everything else goes to the store. Memory and connection belong to this clone and to clones
    /// made from it afterwards. Over a [`MemoryStore`](crate::MemoryStore) this setting has no effect.
    pub fn near_cache(self, settings: NearCacheConfig) -> Self {
        let near = self.engine.near_cache(settings);
        self.set(|config| config.near = near)
    }

    /// Keeps results of this process that could not be stored: while the store is unavailable or refuses writes, each
    /// key is fetched about once per [`ttl`](OutageCacheConfig::ttl) and process, instead of without a pause. Default:
    /// on, with the defaults of [`OutageCacheConfig`].
    ///
    /// ```
    /// use stampede_guard::{OutageCacheConfig, StampedeGuard};
    ///
    /// let without = StampedeGuard::in_memory().outage_cache(OutageCacheConfig::max_bytes(0));
    /// ```
    ///
    /// A kept result is used in two cases: the store does not answer, or the store has refused to store this result and
    /// has no usable entry for the key. It is used while it is fresh, for at most `ttl` after its response, under the
    /// same rules as a stored entry, and it is never stored later. [`invalidate`](Self::invalidate) ends it for this
    /// guard and its clones before it returns. An invalidation by another process may go unnoticed until `ttl` is over,
    /// and for about a lease while a fill is [sent again](crate::guide::outages). A failed fetch is not kept.
    /// [`StoreFailure::FailClosed`] turns the cache off. Memory belongs to this clone and to clones made from it
    /// afterwards, and is allocated with the first result that is kept.
    pub fn outage_cache(self, settings: OutageCacheConfig) -> Self {
        self.set(|config| config.outage = Arc::new(OutageCache::new(settings)))
    }

    /// Sets how the HTTP layer treats what the RFCs leave to a cache. Default: see
    /// [`HttpOptions`](crate::http::HttpOptions).
    ///
    /// ```
    /// use stampede_guard::{StampedeGuard, http::HttpOptions};
    ///
    /// // An API that answers every `Host` alike, and says `max-age` where a response may be cached.
    /// let options = HttpOptions::default().ignore_host().require_explicit_freshness();
    /// let guard = StampedeGuard::in_memory().http(options);
    /// ```
    #[cfg(feature = "http")]
    pub fn http(self, options: crate::config::http::HttpOptions) -> Self {
        self.set(|config| config.http = options)
    }

    /// Sets the maximum number of requests in one process that wait for one fetch. Further requests are rejected at
    /// once, with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response 503, unless the policy permits
    /// the stale value on errors. Default: 10,000.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::{StampedeGuard, testing::Origin};
    ///
    /// let (guard, origin) = (StampedeGuard::in_memory().max_waiters(1), Origin::gated());
    /// let ask = || {
    ///     let (guard, fetch) = (guard.clone(), origin.fetch(7));
    ///     tokio::spawn(async move { guard.fetch("report", fetch).await })
    /// };
    /// let [first, second, third] = [ask(), ask(), ask()];
    /// let rejected = third.await.unwrap().unwrap_err();
    /// assert!(rejected.is_overloaded());
    /// origin.open();
    /// assert_eq!((first.await.unwrap()?, second.await.unwrap()?), (7, 7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `number` is zero.
    #[track_caller]
    pub fn max_waiters(self, number: usize) -> Self {
        assert!(number > 0, "max_waiters must be greater than zero");
        self.set(|config| config.max_waiters = number)
    }

    /// Sets the maximum number of concurrent fetches while the store is unavailable. Further fetches queue for at most
    /// one second, and are then rejected with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded), over HTTP with a
    /// 503. The newest in the queue is served first, and a fetch that no request waits for leaves the queue. So under a
    /// load above the limit the permits go to requests whose clients are still there. A fetch inside another fetch
    /// does not queue, because the outer fetch may hold the last permit. Default: 64.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    ///
    /// // A database that bears twenty queries at a time, from four processes.
    /// let guard = StampedeGuard::in_memory()
    ///     .max_fallback_fetches(5) // while Redis is down; otherwise each key is fetched once in the fleet
    ///     .max_detached(2);        // queries that no client waits for any more
    /// ```
    ///
    /// The permits belong to this clone and to clones made from it afterwards.
    ///
    /// # Panics
    ///
    /// Panics if `permits` is zero.
    #[track_caller]
    pub fn max_fallback_fetches(self, permits: usize) -> Self {
        assert!(permits > 0, "max_fallback_fetches must be greater than zero");
        self.set(|config| config.max_fallback_fetches = NewestFirst::new(permits))
    }

    /// Sets the maximum number of detached fetches: running fetches that no request of this process waits for any more,
    /// because their clients have left or were answered at their deadline. A fetch that would be
    /// one more is dropped, as it would be without the guard. Its lease is released, so that the next request for the
    /// key leads at once, in any process. A fetch that a request joins again is not detached any more. Zero ends each
    /// fetch with its last client. Default: 64. See the example of [`max_fallback_fetches`](Self::max_fallback_fetches).
    ///
    /// A limit above the guard, for example a [`ConcurrencyLimit`] of 10, does not see detached fetches. Clients that
    /// leave early make room for others, so up to 74 handlers run at once.
    ///
    /// The limit is about handlers. A fetch whose response head has arrived does not count while its body is collected,
    /// and a refresh in the background does not count either, because its request was answered.
    ///
    /// The permits belong to this clone and to clones made from it afterwards.
    ///
    /// [`ConcurrencyLimit`]: https://docs.rs/tower/latest/tower/limit/struct.ConcurrencyLimit.html
    pub fn max_detached(self, fetches: usize) -> Self {
        self.set(|config| config.max_detached = NewestFirst::new(fetches))
    }

    /// Sets the maximum payload that is stored, in bytes: of a value what its codec makes of it, with its
    /// [validator](crate::FetchOutcome::validator), and of a response its body. The head of a response is limited likewise,
    /// and does not count toward the body. Larger answers are passed through, and a `WARN` names the type or the route, at
    /// most once a minute. Default: 1 MiB. A large payload delays all operations that follow on its connection, so that they
    /// may exceed [`store_timeout`](Self::store_timeout).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory().max_payload(100 << 10); // 100 KiB
    /// let scans = guard.cache::<Vec<u8>>("scan");
    /// let load = async || Ok::<_, std::io::Error>(vec![0; 200 << 10]);
    /// assert_eq!(scans.fetch(7, load).await?.len(), 200 << 10); // passed through
    /// # guard.drain().await;
    /// assert_eq!(scans.get(7).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `bytes` is more than 512,000,000, because a string in Redis has at most 512 MiB.
    #[track_caller]
    pub fn max_payload(self, bytes: usize) -> Self {
        assert!(bytes <= LARGEST_PAYLOAD, "max_payload must be at most {LARGEST_PAYLOAD} bytes");
        self.set(|config| config.max_payload = bytes)
    }

    /// Shows keys in the events and spans of this clone, instead of their hashes only, and the errors of codecs, which
    /// may quote values. Default: `false`.
    ///
    /// Over HTTP a key is the URL of the page with its query. Clients and handlers put there what a log must not have:
    /// names, addresses, search terms, tokens of links that were sent by mail. Keys of typed values are what the
    /// application makes them. Turn it on for tests, or if no key contains personal data or secrets.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory().log_keys(cfg!(debug_assertions));
    /// ```
    pub fn log_keys(self, show: bool) -> Self {
        self.set(|config| config.meter.log_keys = show)
    }

    /// Tracks the busiest keys: how often each is requested, how many calls of the origin the guard has saved, and what
    /// a call takes. [`Stats::hot_keys`](crate::Stats::hot_keys) has them. Zero turns it off. Default: off.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory().track_hot_keys(100);
    /// for _ in 0..3 {
    ///     guard.fetch("user:42", async || Ok::<_, std::io::Error>("Ada".to_owned())).await?;
    /// }
    /// let busiest = &guard.stats().hot_keys[0];
    /// assert_eq!((busiest.key.as_str(), busiest.requests, busiest.saved_calls), ("user:42", 3, 2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All variants of a key count together. A key with more than 1/`keys` of all requests is always
    /// found; [`HotKey::max_uncounted`](crate::HotKey::max_uncounted) bounds the error of the count. Keys are shown as
    /// text, and may contain what must not be public.
    ///
    /// The memory is bounded: up to 1 KiB per key in each of the first 32 threads that serve requests. It belongs to
    /// this clone and to clones made from it afterwards.
    pub fn track_hot_keys(self, keys: usize) -> Self {
        let hot_keys = (keys > 0).then(|| Arc::new(HotKeys::new(keys)));
        self.set(|config| config.meter.hot_keys = hot_keys)
    }

    /// Makes every fetch and every HTTP request call the origin, for its own caller: nothing is read, shared or stored.
    /// For tests and feature flags. [`invalidate`](Self::invalidate) still reaches the store, so that other processes
    /// see the changes of this one. Each call is part of its caller's future, and ends with it, at the caller's deadline
    /// or at the [`fetch_timeout`](Self::fetch_timeout). Default: `false`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory().bypass(true); // a feature flag
    /// for n in 1..=3 {
    ///     assert_eq!(guard.fetch("count", async move || Ok::<_, std::io::Error>(n)).await?, n);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn bypass(self, on: bool) -> Self {
        self.set(|config| config.bypass = on)
    }
}

const DEFAULT_NAMESPACE: &str = "sg";
/// Ten times this value, in milliseconds, fits the six digits of a failure marker in Redis.
const LONGEST_FAILURE_TTL: Duration = Duration::from_secs(99);
/// A string in Redis has at most 512 MiB, and the metadata of an entry need some of them.
const LARGEST_PAYLOAD: usize = 512_000_000;
