//! Black-box HTTP tests: proxy processes, an origin server, one Redis, and clients that may misbehave.
#![cfg(all(feature = "axum", feature = "bincode", feature = "redis"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own randomness")]

mod client;
mod fleet;
mod site;

mod clients;
mod conditional;
mod credentials;
mod directives;
mod herds;
mod malformed;
mod methods;
mod outage;
mod poisoning;
mod stale;
mod stop;
mod streaming;
mod vary;

use stampede_guard_support as support;
