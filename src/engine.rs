//! The engine resolves one key: from the store, from an in-flight fetch, or by leading a new fetch.
//!
//! ```text
//! fetch in flight?      -> join it (unless the entry that it refreshes can be served)
//! lookup (shared)       -> evaluate: serve | serve and refresh in the background | hit-for-pass: bypass | miss
//! miss                  -> open a flight (`leader`): lead, wait for the leader, or fetch locally
//! ```

mod active_fetch;
pub(crate) mod breaker;
mod breakers;
mod caller;
mod containment;
mod core;
mod execution;
mod fill_set;
mod flight;
pub(crate) mod frontend;
mod heartbeat;
mod invalidation;
mod leader;
mod lookup;
mod outage;
mod peek;
mod pending_invalidations;
mod permit;
mod redirects;
mod resolve;
pub(crate) mod resource;
mod store_calls;
mod wait_graph;

pub(crate) use self::{core::Engine, invalidation::replay_invalidations};
