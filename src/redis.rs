//! The adapter to Redis: the store, the connections under it, and the crate [`redis`] itself, re-exported.
//!
//! Clients and connections of [`redis`] turn into a store with
//! [`StampedeGuard::new`](crate::StampedeGuard::new); [`RedisStore`](crate::RedisStore) names that store. Use the crate
//! through this module, so that its version is that of the guard.

mod batch;
pub(crate) mod connection;
mod entries;
mod fill;
pub(crate) mod names;
pub(crate) mod scripts;
pub(crate) mod store;
mod tracked;
mod wakes;

pub use ::redis::*;
