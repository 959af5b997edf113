//! Cache-stampede protection as tower middleware. When a cache entry expires and a thousand requests need it at once,
//! **one request in the whole fleet** computes the answer. All other requests wait for it.
//!
//! A layer for axum, or for any HTTP service ([http](guide::http)):
//!
//! ```
//! # #[cfg(all(feature = "axum", feature = "redis"))] {
//! use axum::{Router, routing::get};
//! use stampede_guard::StampedeGuard;
//!
//! # async fn report() -> &'static str { "expensive" }
//! let guard = StampedeGuard::connect("redis://127.0.0.1/")?; // or `in_memory()`, for one process
//! let app: Router = Router::new().route("/report/{id}", get(report)).layer(guard);
//! # }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Any async function ([`fetch`](StampedeGuard::fetch)), and a typed view of one kind of value ([`Cache`]):
//!
//! ```
//! # #[cfg(feature = "bincode")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), stampede_guard::Error> {
//! # #[derive(Clone)] struct Db;
//! # impl Db { async fn load_user(&self, id: u64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
//! # let (guard, db, other) = (stampede_guard::StampedeGuard::in_memory(), Db, Db);
//! use stampede_guard::{Cache, Policy};
//! use std::time::Duration;
//!
//! let user: String = guard.fetch("user:42", async move || db.load_user(42).await).await?;
//!
//! let minute = Policy::fresh_for(Duration::from_secs(60));
//! let users: Cache<String> = guard.cache("user").policy(minute);
//! # let db = other;
//! let user = users.fetch(42, async move || db.load_user(42).await).await?;
//! users.invalidate(42).await?; // after a write
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "bincode"))] fn main() {}
//! ```
//!
//! Any tower service, with [`keyed`](StampedeGuard::keyed):
//!
//! ```
//! # #[cfg(feature = "bincode")] {
//! # use stampede_guard::{Key, StampedeGuard};
//! # let guard = StampedeGuard::in_memory();
//! # struct GetUser { id: u64 }
//! let layer = guard.keyed(|request: &GetUser| Some(Key::new(("user", request.id))));
//! # }
//! ```
//!
//! The guard looks into a cache that is shared through Redis. On a miss it requests a *lease* for that one key. The
//! process with the lease *leads*: it runs the fetch and stores the result. Waiters in other processes are notified by a
//! message. Leases expire, late writes are refused, and while Redis is down each process asks the origin once per key and
//! second. The lease is an efficiency lock whose writes are fenced: a duplicate fetch costs work, and a late result never
//! overwrites a newer one. [What it guarantees](guide::guarantees).
//!
//! # Guide
//!
//! [Start](guide::start) · [which front end](guide::front_ends) · [policies](guide::policies) · [keys and
//! values](guide::values) · [deploys](guide::deploys) · [the HTTP layer](guide::http) · [why is my page not
//! cached?](guide::uncached) · [Redis](guide::redis) · [observing](guide::observing) · [testing](guide::testing) ·
//! [locks](guide::locks) · [troubleshooting](guide::troubleshooting) · [checklist](guide::checklist) ·
//! [migration](guide::migration). [All pages](guide).
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `redis` | yes | [`RedisStore`]; the guard over redis-rs clients and connections, [`RedisEndpoint`] |
//! | `lock` | yes | [`lock`]: distributed locks over Redis |
//! | `http` | yes | the guard as a [`Layer`](tower_layer::Layer) over HTTP services |
//! | `axum` | yes | keys from the URI as the client sent it, also under `Router::nest`; [`Error`] as a response |
//! | `bincode` | yes | typed values (`fetch`, `cache`, `keyed`, `ValueCodec`), encoded with bincode |
//! | `json` | yes | the same, encoded as JSON if bincode cannot read them back; [`Codec::Json`] |
//! | `anyhow` | yes | [`Error::origin`] finds the error that an `anyhow::Error` was made from |
//! | `tracing` | yes | events under the target `stampede_guard`, and the span `stampede_guard.fetch` of a request that is no hit |
//! | `metrics` | | counters, gauges and histograms for the recorder of the `metrics` facade |
//! | `postcard` | | the same, encoded with postcard |
//! | `uuid` | | [`ToKey`] for `Uuid` |
//! | `serde` | | `Settings` and [`Policy`] from a file, with durations such as `"30s"` |
//! | `unstable` | | `store` and `lock::recipe`: stores and lock recipes of your own. Any release may change both |
//! | `testing` | | [`testing`]: scripted faults of the store, counted fetches; for dev-dependencies |
//! | `tls-rustls` | | `rediss://` through rustls, with ring unless the application installs another provider |
//! | `cluster` | | [`RedisEndpoint::cluster`]: the nodes of a Redis Cluster |
//! | `sentinel` | | [`RedisEndpoint::sentinel`]; the clients of Redis Sentinel, whose master the guard follows |
//! | `connection-manager` | | redis-rs' `ConnectionManager` as a connection of the guard |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(all(feature = "unstable", feature = "lock")), allow(unreachable_pub, reason = "the two open it"))]
#![cfg_attr(
    not(all(feature = "http", feature = "redis", feature = "_typed")),
    allow(dead_code, reason = "what only the HTTP layer, typed values or a store outside of the process need")
)]

mod backoff;
pub(crate) mod cache_status;
mod clock;
#[cfg(feature = "_typed")]
pub(crate) mod codec;
mod config;
mod engine;
mod error;
#[cfg(feature = "serde")]
mod file_values;
#[cfg(feature = "_typed")]
mod fingerprint;
#[cfg(feature = "_fuzz")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
pub mod guide;
mod health;
pub(crate) mod hot_keys;
#[cfg(feature = "http")]
pub mod http;
mod key;
mod layout;
#[cfg(feature = "lock")]
pub mod lock;
pub(crate) mod near_cache;
pub(crate) mod outage_cache;
mod policy;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "unstable")]
pub mod store;
#[cfg(not(feature = "unstable"))]
pub(crate) mod store;
mod sync;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "_typed")]
mod typed;
#[cfg(feature = "http")]
mod uncached;
mod versions;

// rustdoc lists the methods of `StampedeGuard` in the order of the modules: settings after what they are for.
mod operations;
mod settings;

/// The snippets of the README are doctests.
#[cfg(all(doctest, feature = "axum", feature = "bincode", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "redis")]
pub use self::redis::{
    connection::{
        endpoint::{IntoEndpoint, RedisEndpoint},
        source::Connection,
    },
    store::RedisStore,
};
pub use cache_status::CacheStatus;
#[cfg(feature = "_typed")]
pub use codec::{Codec, value_codec::ValueCodec};
pub use config::{FailureClass, StoreFailure};
pub use error::{BoxError, Error, ErrorKind};
pub use guard::StampedeGuard;
pub use health::{Health, LastError};
pub use hot_keys::HotKey;
pub use key::{
    Key,
    to_key::{KeyWriter, ToKey},
};
#[cfg(feature = "lock")]
pub use lock::{error::LockError, guard::LockGuard, handle::Lock};
pub use near_cache::NearCacheConfig;
pub use outage_cache::OutageCacheConfig;
pub use policy::Policy;
#[cfg(feature = "serde")]
pub use settings::file::Settings;
#[cfg(feature = "unstable")]
pub use store::port::Store;
pub use store::{memory::MemoryStore, port::IntoStore};
#[cfg(feature = "metrics")]
pub use telemetry::HISTOGRAM_BUCKETS;
pub use telemetry::Stats;
#[cfg(feature = "_typed")]
pub use typed::{
    answer::Answer,
    cache::Cache,
    context::{FetchContext, FetchOutcome},
    entry::CacheEntry,
    keyed,
};
