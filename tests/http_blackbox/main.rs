//! HTTP from outside: proxies that are processes, an origin that is a server, one Redis, and clients that may misbehave.
#![allow(clippy::disallowed_methods, reason = "tests make their own randomness")]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod fleet;
mod site;

mod clients;
mod herds;
mod malformed;
mod outage;
mod poisoning;
mod stop;
mod streaming;
