//! What several of our programs share: a log, a signal to stop, a Redis of their own, and what it was sent.

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

/// Waits for Ctrl-C, or for SIGTERM from a supervisor. Listens from the moment of the call.
///
/// # Panics
///
/// No handler of a signal can be installed.
pub fn told_to_stop() -> impl Future<Output = ()> + Send {
    #[cfg(unix)]
    let [mut interrupt, mut terminate] = {
        use tokio::signal::unix::{SignalKind, signal};
        [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).expect("a handler of a signal"))
    };
    async move {
        #[cfg(unix)]
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        {
            _ = tokio::signal::ctrl_c().await;
        }
    }
}
