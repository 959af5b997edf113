//! Cache-stampede protection as tower middleware.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
mod clock;
#[cfg(feature = "_typed")]
mod codec;
mod config;
mod engine;
mod entry;
mod error;
#[cfg(feature = "_typed")]
mod fetch;
mod guard;
#[cfg(feature = "http")]
pub mod http;
mod key;
#[cfg(feature = "_typed")]
pub mod keyed;
mod lease;
mod policy;
pub mod store;
mod telemetry;

#[cfg(feature = "_typed")]
pub use codec::Codec;
pub use engine::CacheVerdict;
pub use error::{BoxError, Error, ErrorKind};
#[cfg(feature = "_typed")]
pub use fetch::{Fetch, Fetched};
pub use guard::StampedeGuard;
pub use key::Key;
pub use policy::Policy;
#[cfg(feature = "redis")]
pub use redis;
#[cfg(feature = "redis")]
pub use store::RedisStore;
pub use store::{MemoryStore, Store};
pub use telemetry::Report;
