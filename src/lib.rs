//! Cache-stampede protection as tower middleware: when a cache entry expires and a thousand requests fall on one
//! database, **one request in the whole fleet** computes the answer, and the others wait for it.
//!
//! A [`StampedeGuard`] looks into a cache that is shared through Redis. On a miss it takes a *lease* for that one
//! resource; who gets it leads, everybody else is woken by a message when the answer is there. Leases end by
//! themselves, late writers are refused, and while Redis is away the origin is asked directly, once per process.
//!
//! ```
//! # #[cfg(all(feature = "axum", feature = "redis"))] {
//! use axum::{Router, routing::get};
//! use stampede_guard::{StampedeGuard, redis};
//!
//! # async fn report() -> &'static str { "expensive" }
//! let redis = redis::Client::open("redis://127.0.0.1/")?;
//! let app: Router = Router::new()
//!     .route("/report/{id}", get(report))
//!     .layer(StampedeGuard::new(redis));
//! # }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Around any async function, with [`fetch`](StampedeGuard::fetch) and its kin:
//!
//! ```
//! # #[cfg(feature = "bincode")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), stampede_guard::Error> {
//! # #[derive(Clone)] struct Db;
//! # impl Db { async fn load_user(&self, id: u64) -> Result<String, std::io::Error> { Ok(format!("user {id}")) } }
//! # let (guard, db) = (stampede_guard::StampedeGuard::in_memory(), Db);
//! let user: String = guard.fetch("user:42", async move || db.load_user(42).await).await?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "bincode"))] fn main() {}
//! ```
//!
//! And around any tower service, with [`keyed`](StampedeGuard::keyed).
//!
//! The lock by itself, for what is not a cache, is [`Lock`].
//!
//! # What it guarantees
//!
//! It is an *efficiency* lock whose *writes are fenced*. One computation per key holds while the lease lives and there
//! is no invalidation, eviction or failover in between: duplicated work is a cost, not corruption. What always holds
//! is that a stale or late result never overwrites a newer one, and that no computation which began before an
//! [`invalidate`](StampedeGuard::invalidate) lands after it (without a failover that loses the invalidation).
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `redis` | yes | [`RedisStore`]; the guard over redis-rs clients and connections; [`lock`] |
//! | `http` | yes | the guard as a [`Layer`](tower_layer::Layer) over HTTP services |
//! | `axum` | yes | keys from the URI as the client sent it, under `Router::nest` too |
//! | `bincode` | yes | typed values, encoded with bincode |
//! | `postcard`, `json` | | other codecs |
//! | `tracing` | | events under the target `stampede_guard` |
//! | `testing` | | [`testing`]: scripted faults of the store, counted fetches; for dev-dependencies |
//! | `tls-rustls` | | `rediss://`, with rustls and, unless the application chooses, ring |
//! | `cluster` | | Redis Cluster clients and connections |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "http", feature = "redis")),
    allow(dead_code, reason = "what only the HTTP layer or only a store outside of the process needs")
)]

mod backoff;
mod breaker;
mod clock;
#[cfg(feature = "_typed")]
mod codec;
mod config;
mod engine;
mod entry;
mod error;
#[cfg(feature = "_typed")]
mod fetch;
#[cfg(feature = "_fuzz")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
#[cfg(feature = "http")]
pub mod http;
mod key;
#[cfg(feature = "_typed")]
pub mod keyed;
mod lease;
#[cfg(feature = "redis")]
pub mod lock;
mod near;
mod policy;
pub mod store;
mod sync;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;
#[cfg(feature = "redis")]
mod wire;

#[cfg(feature = "_typed")]
pub use codec::Codec;
pub use config::{AfterWait, Outage};
pub use engine::CacheVerdict;
pub use error::{BoxError, Error, ErrorKind};
#[cfg(feature = "_typed")]
pub use fetch::{Fetch, Fetched};
pub use guard::StampedeGuard;
pub use key::Key;
#[cfg(feature = "redis")]
pub use lock::{Lock, LockError, LockGuard};
pub use near::NearCache;
pub use policy::Policy;
#[cfg(feature = "redis")]
pub use redis;
#[cfg(feature = "redis")]
pub use store::RedisStore;
pub use store::{MemoryStore, Store};
pub use telemetry::Report;
