//! What several of our programs share: a log, a Redis of their own, and what it was sent.

pub mod monitor;

mod redis_server;

pub use self::redis_server::RedisServer;

use std::{env, io};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Whatever ends a program early: it is only ever printed.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Writes log lines to stderr. The variable `RUST_LOG` sets what is shown, for example `info,stampede_guard=debug`.
/// Default: level `INFO`.
pub fn log() {
    let named = env::var("RUST_LOG").ok().and_then(|names| names.parse().ok());
    let filter = named.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    tracing_subscriber::registry().with(fmt::layer().with_writer(io::stderr)).with(filter).init();
}
