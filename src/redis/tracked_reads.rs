//! Reads over a connection of their own, on which the server reports changes of the entries that were read.

use super::{
    batch::ReadBatcher,
    connection::{subscriber::Subscriber, tracked::TrackedConnection},
    entries::EntryDecoder,
    names::entry_name,
};
use crate::{
    key::CacheKey,
    store::{
        error::{Answer, StoreError},
        tracking::{TrackedRead, TrackedReader},
    },
};
use std::sync::Arc;

/// The reader of a server.
pub(super) struct TrackedReads {
    link: TrackedConnection,
    reads: ReadBatcher,
    decoder: Arc<EntryDecoder>,
    subscriber: Option<Arc<Subscriber>>,
}

impl TrackedReads {
    pub(super) fn over(
        link: TrackedConnection,
        decoder: Arc<EntryDecoder>,
        subscriber: Option<Arc<Subscriber>>,
    ) -> Self {
        Self { reads: ReadBatcher::over(link.link(), false), link, decoder, subscriber }
    }

    /// Reads entries. They are tracked if they were read over one connection that reports changes.
    async fn read(&self, keys: &[CacheKey]) -> Result<TrackedRead, StoreError> {
        if let Some(subscriber) = &self.subscriber {
            subscriber.start();
        }
        if !self.link.is_connected() {
            return Err(StoreError::new("the tracked connection is not made yet"));
        }
        let before = self.link.tracked();
        let names = keys.iter().map(entry_name).collect();
        let entries = self.decoder.decode_all(keys, &self.reads.get_all(names).await?, &*self.link.link()).await;
        // Another connection may have been made since, and the reads may have gone over it.
        Ok(TrackedRead { entries, is_tracked: before.is_some() && self.link.tracked() == before })
    }
}

impl TrackedReader for TrackedReads {
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(self.read(keys))
    }
}
