//! What is asked of a fleet, what it is made of, and what was measured of the parts.

use crate::args::{not_negative, positive};
use clap::Args;
use std::fmt;

/// In nanoseconds since the beginning of what is simulated.
pub(crate) type Time = i64;

pub(crate) const MICROSECOND: f64 = 1e3;
pub(crate) const MILLISECOND: f64 = 1e6;
pub(crate) const SECOND: f64 = 1e9;

#[derive(Clone, Args)]
pub(crate) struct Load {
    /// How many keys there are
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) keys: u32,

    /// How much more popular one key is than the next; 0: all alike
    #[arg(long, value_name = "EXPONENT", default_value_t = 1.0, value_parser = not_negative)]
    pub(crate) zipf: f64,

    /// Requests per second that one process gets
    #[arg(long, value_name = "PER_SECOND", default_value_t = 20.0, value_parser = positive)]
    pub(crate) rate: f64,

    /// How long an entry is fresh, in seconds
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = positive)]
    pub(crate) ttl: f64,

    /// Up to this part of it is taken off at random, as the policy does by default
    #[arg(long, value_name = "PART", default_value_t = 0.1, value_parser = not_negative)]
    pub(crate) jitter: f64,

    /// What a computation takes on average, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = positive)]
    pub(crate) compute: f64,

    /// The standard deviation of the logarithm of that; 0: always the same
    #[arg(long, value_name = "SIGMA", default_value_t = 0.5, value_parser = not_negative)]
    pub(crate) spread: f64,

    /// How many computations the origin does at once: a database with its usual hundred connections
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workers: u32,

    /// With the near cache
    #[arg(long)]
    pub(crate) near: bool,

    /// Its `max_age`, in seconds: each process asks three times in it whether it still hears everything
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = positive)]
    pub(crate) max_age: f64,

    /// `Policy::early_refresh`; 0: off
    #[arg(long, value_name = "BETA", default_value_t = 0.0, value_parser = not_negative)]
    pub(crate) early: f64,

    /// On how many primaries of a cluster the keys are; more than one tell near caches nothing
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) shards: u32,

    /// A round trip without the work at its end, in microseconds; the default was measured on the loopback interface
    #[arg(long, value_name = "US", default_value_t = ROUND_TRIP, value_parser = positive)]
    pub(crate) rtt: f64,

    /// Begin with an empty Redis
    #[arg(long)]
    pub(crate) cold: bool,

    /// Of the randomness: the same is the same simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Load {
    /// Whether the server tells near caches what has changed. In a cluster it does not, and a copy is as good as its
    /// `max_age` is short.
    pub(crate) fn is_told(&self) -> bool {
        self.near && self.shards == 1
    }

    /// Of each process to each server: for data, for messages, for near copies.
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

// Measured by `cargo bench --bench scale -- costs`, medians of three runs, in microseconds: docs/scale.md. What a command
// costs is the server's own processor time, by `INFO cpu`, with 50 connections.

/// A raw `GET` in turn over the loopback interface, less what the server does for it.
const ROUND_TRIP: f64 = 65.0;
/// To read what has come on one connection and to write the answers, however many commands that are.
pub(crate) const READ: f64 = 12.7;
/// Beyond that the command itself; values have 1 KiB.
pub(crate) const GET: f64 = 1.3;
pub(crate) const PING: f64 = 2.5;
/// `lead` that is granted,
pub(crate) const GRANT: f64 = 26.0;
/// or answered with the entry or with who has it.
pub(crate) const LEAD: f64 = 17.0;
pub(crate) const FILL: f64 = 20.0;
pub(crate) const EXTEND: f64 = 8.0;
/// A wake-up to one process.
pub(crate) const WAKE: f64 = 7.6;
/// An invalidation to one near cache.
pub(crate) const INVALIDATION: f64 = 8.5;
/// What a hit takes longer than a raw `GET`.
pub(crate) const CLIENT: f64 = 18.0;
/// A near hit: the median under the real loads of the same bench.
pub(crate) const NEAR_HIT: f64 = 5.0;

// As in the crate.

/// `lease`, extended every third of it.
pub(crate) const LEASE: f64 = 3.0 * SECOND;
/// `op_timeout`
pub(crate) const OP_TIMEOUT: f64 = 250.0 * MILLISECOND;
/// A breaker that has opened is tried after half of this to all of it.
pub(crate) const WINDOW: f64 = 1.0 * SECOND;
/// `wait`
pub(crate) const WAIT: f64 = 10.0 * SECOND;
/// `bulkhead`
pub(crate) const BULKHEAD: u32 = 64;
pub(crate) const INBOXES: usize = 64;
/// How long a refresh that somebody else does already is not tried again.
pub(crate) const LINGER: f64 = 50.0 * MILLISECOND;
/// What a Redis accepts if nobody tells it otherwise.
pub(crate) const MAXCLIENTS: u32 = 10_000;
