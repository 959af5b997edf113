//! Tests of the HTTP layer with real axum routers, over the embedded store and over a real Redis.
//!
//! | what | modules |
//! |---|---|
//! | how each kind of request is answered | `requests`, `heads`, `ranges`, `request_bodies` |
//! | which responses are stored or shared, for how long, and why not | `freshness`, `uncacheable`, `uncached`, `targets`, `stored_errors` |
//! | directives and fields of clients | `demands`, `clients` |
//! | validation by the origin | `validation` |
//! | invalidation by unsafe requests | `changes`, `invalidations` |
//! | `Vary`, variants, and their index in the store | `vary`, `variants`, `vary_fleet`, `vary_index` |
//! | users: credentials, and responses that may be for one user | `credentials`, `anonymous`, `sharing` |
//! | clients that attack, fields of proxies, rewritten URIs | `attacks`, `forwarded`, `rewrites` |
//! | bodies: streamed, slow, replayed to the byte | `bodies`, `slow_bodies`, `replay` |
//! | herds, and clients that leave | `herds`, `detached` |
//! | failures of the origin | `failures`, `failed_fetches`, `second_opinion` |
//! | failures of the store | `outage_cache`, `storms` |
//! | the layer as a tower service, around a hyper server and client, over other protocols | `contract`, `sockets`, `keyed`, `spans` |
//! | laws for random sites; cases of a public suite for caches | `laws`, `suite` |
//! | helpers of these tests | `kit` |
#![cfg(all(feature = "axum", feature = "bincode", feature = "redis", feature = "testing", feature = "tracing"))]
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

/// Seen to fail without the row of `vary`.
#[test]
fn index_names_each_module_once() {
    let text = include_str!("main.rs");
    let index = text.lines().filter(|line| line.starts_with("//! | "));
    let mut named: Vec<_> =
        index.flat_map(|row| row.rsplit('|').nth(1)).flat_map(|names| names.split('`').skip(1).step_by(2)).collect();
    named.sort_unstable();
    let modules: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    assert_eq!(named, modules);
}
