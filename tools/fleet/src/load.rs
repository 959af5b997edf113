//! The load on a fleet, its parts, and the measured costs of these parts.

use crate::args::{not_negative, positive};
use clap::Args;
use std::fmt;

/// Nanoseconds since the start of the simulation.
pub(crate) type Time = i64;

pub(crate) const MICROSECOND: f64 = 1e3;
pub(crate) const MILLISECOND: f64 = 1e6;
pub(crate) const SECOND: f64 = 1e9;

#[derive(Clone, Args)]
pub(crate) struct Load {
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) keys: u32,

    /// Exponent of the popularity of keys (Zipf); 0: all keys are equally popular
    #[arg(long, value_name = "EXPONENT", default_value_t = 1.0, value_parser = not_negative)]
    pub(crate) zipf: f64,

    /// Requests per second of one process
    #[arg(long, value_name = "PER_SECOND", default_value_t = 20.0, value_parser = positive)]
    pub(crate) rate: f64,

    /// Freshness lifetime of an entry, in seconds
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = positive)]
    pub(crate) ttl: f64,

    /// Largest part of the freshness lifetime that is subtracted at random, as the policy does by default
    #[arg(long, value_name = "PART", default_value_t = 0.1, value_parser = not_negative)]
    pub(crate) jitter: f64,

    /// Mean duration of a fetch, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = positive)]
    pub(crate) compute: f64,

    /// Standard deviation of the logarithm of the duration of a fetch; 0: constant
    #[arg(long, value_name = "SIGMA", default_value_t = 0.5, value_parser = not_negative)]
    pub(crate) spread: f64,

    /// Concurrent fetches of the origin: a database with its usual hundred connections
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workers: u32,

    /// With the near cache
    #[arg(long)]
    pub(crate) near: bool,

    /// `max_age` of the near cache, in seconds; each process checks its connection three times in this time
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = positive)]
    pub(crate) max_age: f64,

    /// `Policy::early_refresh`; 0: off
    #[arg(long, value_name = "BETA", default_value_t = 0.0, value_parser = not_negative)]
    pub(crate) early: f64,

    /// Number of primaries of a cluster; with more than one, near caches receive no invalidations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) shards: u32,

    /// Round trip without the work of the server, in microseconds; the default was measured on the loopback interface
    #[arg(long, value_name = "US", default_value_t = ROUND_TRIP, value_parser = positive)]
    pub(crate) rtt: f64,

    /// Start with an empty Redis
    #[arg(long)]
    pub(crate) cold: bool,

    /// Seed of the randomness; the same seed repeats the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Load {
    /// Reports whether the server sends invalidations to near caches. A cluster does not, so a copy is served until its
    /// `max_age` ends.
    pub(crate) fn is_told(&self) -> bool {
        self.near && self.shards == 1
    }

    /// Returns the number of connections of each process to each server: for data, for messages, for near copies.
    pub(crate) fn connections(&self) -> u32 {
        2 + u32::from(self.is_told())
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, zipf, rate, ttl, compute, workers, shards, rtt, .. } = self;
        write!(f, "{rate} requests/s per process for {keys} keys (Zipf {zipf}), fresh for {ttl} s; ")?;
        write!(f, "{compute} ms to compute, {workers} at once; ")?;
        write!(f, "{shards} Redis, {rtt} µs away; near cache {}", if self.near { "on" } else { "off" })?;
        write!(f, ", early refresh {}", if self.early > 0.0 { "on" } else { "off" })
    }
}
// Measured by `cargo bench --bench scale -- costs`, medians of three runs, in microseconds: docs/lab/scale.md. The cost
// of a command is the processor time of the server, by `INFO cpu`, with 50 connections.

/// A sequential raw `GET` over the loopback interface, without the work of the server.
const ROUND_TRIP: f64 = 65.0;
/// Reading the commands that have arrived on one connection and writing the replies, for any number of commands.
pub(crate) const READ: f64 = 12.7;
/// In addition, the command itself. Values have 1 KiB.
pub(crate) const GET: f64 = 1.3;
pub(crate) const PING: f64 = 2.5;
/// `get_or_lease` that is granted.
pub(crate) const GRANT: f64 = 26.0;
/// `get_or_lease` that is answered with the entry or with the holder of the lease.
pub(crate) const LEAD: f64 = 17.0;
pub(crate) const FILL: f64 = 20.0;
pub(crate) const EXTEND: f64 = 8.0;
/// A wake-up to one process.
pub(crate) const WAKE: f64 = 7.6;
/// An invalidation to one near cache.
pub(crate) const INVALIDATION: f64 = 8.5;
/// Time that a hit takes longer than a raw `GET`.
pub(crate) const CLIENT: f64 = 18.0;
/// A near hit: the median under the real loads of the same bench.
pub(crate) const NEAR_HIT: f64 = 5.0;

// The defaults of the crate.

/// `lease`. A leader extends it every third of it.
pub(crate) const LEASE: f64 = 3.0 * SECOND;
/// `store_timeout`
pub(crate) const STORE_TIMEOUT: f64 = 250.0 * MILLISECOND;
/// The largest window of an open circuit breaker. It is probed after half of it to all of it.
pub(crate) const WINDOW: f64 = 1.0 * SECOND;
/// `wait`
pub(crate) const WAIT: f64 = 10.0 * SECOND;
/// `max_fallback_fetches`
pub(crate) const MAX_FALLBACK_FETCHES: u32 = 64;
pub(crate) const INBOXES: usize = 128;
/// Time during which a refresh that another process already does is not tried again.
pub(crate) const REFRESH_SLOT_TIME: f64 = 50.0 * MILLISECOND;
/// The default `maxclients` of Redis.
pub(crate) const MAXCLIENTS: u32 = 10_000;
