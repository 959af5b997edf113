//! What several of our programs share: a Redis of their own, and what it was sent.

pub mod monitor;

mod redis_server;

pub use self::redis_server::RedisServer;

/// Whatever ends a program early: it is only ever printed.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
