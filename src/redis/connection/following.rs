//! A connection to the server of another connection.

use super::{connect::Connect, reconnecting::CommandLink, source::Source};
use redis::{RedisResult, aio::MultiplexedConnection};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A source of connections that are replaced when the data connection was made again: the host name may have resolved
/// to another server by then.
pub(super) struct Following {
    source: Source,
    data: Arc<dyn CommandLink>,
    /// Generation of the data connection before the last connection was made.
    generation: AtomicU64,
}

impl Following {
    pub(super) fn new(source: Source, data: Arc<dyn CommandLink>) -> Self {
        Self { source, data, generation: AtomicU64::default() }
    }
}

impl Connect for Following {
    type Connection = MultiplexedConnection;
    const SELF_HEALING: bool = false;

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        self.generation.store(self.data.generation(), Relaxed);
        self.source.connect().await
    }

    fn connect_timeout(&self) -> Duration {
        self.source.connect_timeout()
    }

    fn is_superseded(&self) -> bool {
        let generation = self.data.generation();
        // Both are asked, because each answers once.
        self.source.is_superseded() | (self.generation.swap(generation, Relaxed) != generation)
    }
}
