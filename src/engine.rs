//! The engine resolves one key: from the store, from the flight of another caller, or by leading a flight.
//!
//! ```text
//! look up -> evaluate the entry: serve | serve, and refresh in the background | redirect: look up again |
//!            bypass: fetch for this caller only | otherwise enter a flight: join it, or open it and lead it
//! wait    -> for the outcome of the flight, at most until a limit of the caller
//! lead    -> get the lease and fetch | wait for the leader of another process | fetch without the store
//! ```

pub(crate) mod breaker;
mod call;
mod containment;
mod core;
mod erased;
mod fill_set;
mod flight;
pub(crate) mod frontend;
mod invalidation;
mod leader;
mod lookup;
mod nesting;
mod pending_invalidations;
mod permit;
mod recent_failures;
mod redirects;
pub(crate) mod resolve;
pub(crate) mod resource;
mod store_calls;

pub(crate) use self::core::Engine;
