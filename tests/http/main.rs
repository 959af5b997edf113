//! What the HTTP layer promises, with real axum routers, over the embedded store and over a real Redis.
#![allow(clippy::disallowed_methods, reason = "tests make their own randomness")]

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod bodies;
mod contract;
mod failures;
mod freshness;
mod herds;
mod keyed;
mod kit;
mod replay;
mod requests;
mod sockets;
mod suite;
mod uncacheable;
