//! Tests of the HTTP layer with real axum routers, over the embedded store and over a real Redis.
#![allow(clippy::disallowed_methods, reason = "tests make their own randomness")]

mod anonymous;
mod attacks;
mod bodies;
mod changes;
mod clients;
mod contract;
mod credentials;
mod demands;
mod detached;
mod failed_fetches;
mod failures;
mod forwarded;
mod freshness;
mod heads;
mod herds;
mod invalidations;
mod keyed;
mod kit;
mod laws;
mod outage_cache;
mod ranges;
mod replay;
mod request_bodies;
mod requests;
mod rewrites;
mod second_opinion;
mod sharing;
mod slow_bodies;
mod sockets;
mod spans;
mod stored_errors;
mod storms;
mod suite;
mod targets;
mod uncacheable;
mod uncached;
mod validation;
mod variants;
mod vary;
mod vary_fleet;
mod vary_index;

use stampede_guard_support as support;
