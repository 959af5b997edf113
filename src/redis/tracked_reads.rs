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

/// The reader of a single server.
pub(super) struct TrackedReads {
    pub(super) server: TrackedServer,
    pub(super) subscriber: Option<Arc<Subscriber>>,
}

impl TrackedReader for TrackedReads {
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(async move {
            if let Some(subscriber) = &self.subscriber {
                subscriber.start();
            }
            self.server.get_all(keys, |_| true).await
        })
    }
}

/// A server, or one node of a cluster, with its tracked connection.
pub(super) struct TrackedServer {
    link: TrackedConnection,
    reads: ReadBatcher,
    decoder: Arc<EntryDecoder>,
}

impl TrackedServer {
    pub(super) fn over(link: TrackedConnection, is_cluster: bool, decoder: Arc<EntryDecoder>) -> Self {
        Self { reads: ReadBatcher::over(link.link(), is_cluster), link, decoder }
    }

    /// Reports whether there is a tracked connection. Otherwise begins to make it, in the background.
    pub(super) fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Reads entries, with versions if their changes will be reported. Asks `may_read` about the first name before it
    /// is read, and after the versions were taken.
    pub(super) async fn get_all(
        &self,
        keys: &[CacheKey],
        may_read: impl FnOnce(&str) -> bool,
    ) -> Result<TrackedRead, StoreError> {
        if !self.is_connected() {
            return Err(StoreError::new("the tracked connection is not made yet"));
        }
        let feed = self.link.feed();
        let names: Vec<_> = keys.iter().map(entry_name).collect();
        let versions = feed.iter().flat_map(|feed| names.iter().map(|name| feed.version(name.as_bytes()))).collect();
        if !names.first().is_some_and(|name| may_read(name)) {
            self.link.check_soon();
            return Err(StoreError::new("the node does not have the slot of these names"));
        }
        let entries = self.decoder.decode_all(keys, &self.reads.get_all(names).await?, &*self.link.link()).await;
        // Another connection may have been made since, and the reads may have gone over it.
        let is_unbroken =
            matches!((feed, self.link.feed()), (Some(before), Some(after)) if Arc::ptr_eq(&before, &after));
        Ok(TrackedRead { entries, versions: if is_unbroken { versions } else { Vec::new() } })
    }
}
