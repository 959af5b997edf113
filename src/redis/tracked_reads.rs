//! Reads over a connection of their own, on which the server reports changes of the entries that were read.

use super::{
    batch::ReadBatcher,
    connection::{reconnecting::CommandLink, subscriber::Subscriber, tracked::TrackedConnection},
    names::entry_name,
    server_clock::ServerClock,
};
use crate::{
    key::CacheKey,
    store::{
        entry::Entry,
        error::{Answer, StoreError},
        tracking::{TrackedRead, TrackedReader},
    },
};
use bytes::Bytes;
use std::sync::Arc;

pub(super) struct TrackedReads {
    pub(super) link: TrackedConnection,
    pub(super) reads: ReadBatcher,
    pub(super) clock: Arc<ServerClock>,
    pub(super) subscriber: Option<Arc<Subscriber>>,
}

impl TrackedReader for TrackedReads {
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(async move {
            if let Some(subscriber) = &self.subscriber {
                subscriber.start();
            }
            if !self.link.is_connected() {
                return Err(StoreError::new("the tracked connection is not made yet"));
            }
            let feed = self.link.feed();
            let names: Vec<_> = keys.iter().map(entry_name).collect();
            let versions =
                feed.iter().flat_map(|feed| names.iter().map(|name| feed.version(name.as_bytes()))).collect();
            let entries = entries(keys, self.reads.get_all(&names).await?, &self.clock, &*self.link.link()).await;
            // Another connection may have been made since, and the reads may have gone over it.
            let is_unbroken =
                matches!((feed, self.link.feed()), (Some(before), Some(after)) if Arc::ptr_eq(&before, &after));
            Ok(TrackedRead { entries, versions: if is_unbroken { versions } else { Vec::new() } })
        })
    }
}

/// Decodes what was found under these cache keys. Bytes that cannot be read count as absent, and may be the reply to
/// another request.
pub(super) async fn entries(
    keys: &[CacheKey],
    found: Vec<Option<Bytes>>,
    clock: &ServerClock,
    link: &dyn CommandLink,
) -> Vec<Option<Entry>> {
    let (offset, present) = (clock.offset(), found.iter().flatten().count());
    let read = |(key, bytes): (&CacheKey, Option<Bytes>)| Entry::from_envelope(key, &bytes?, offset);
    let entries: Vec<_> = keys.iter().zip(found).map(read).collect();
    if entries.iter().flatten().count() < present {
        link.verify().await;
    }
    entries
}
