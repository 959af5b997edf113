//! Decodes the entries that the server returns.

use super::{connection::reconnecting::CommandLink, server_clock::ServerClock};
use crate::{
    key::CacheKey,
    store::{entry::Entry, envelope::EnvelopeError},
    telemetry,
};
use bytes::Bytes;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// The decoder of one store, which all its connections share.
pub(super) struct EntryDecoder {
    pub(super) clock: Arc<ServerClock>,
    corrupt: AtomicU64,
}

impl EntryDecoder {
    pub(super) fn new(clock: Arc<ServerClock>) -> Self {
        Self { clock, corrupt: AtomicU64::new(0) }
    }

    /// Decodes what `link` has returned for the cache key. Bytes that cannot be read count as absent. They may be the
    /// reply to another request, so the link is verified.
    pub(super) async fn decode(&self, key: &CacheKey, bytes: &Bytes, link: &dyn CommandLink) -> Option<Entry> {
        match Entry::from_envelope(key, bytes, self.clock.offset()) {
            Ok(entry) => Some(entry),
            Err(error) => {
                if error != EnvelopeError::OtherKey {
                    self.corrupt.fetch_add(1, Relaxed);
                    telemetry::corrupt_entry(key, error);
                }
                link.verify().await;
                None
            }
        }
    }

    /// Decodes what was found under these cache keys.
    pub(super) async fn decode_all(
        &self,
        keys: &[CacheKey],
        found: &[Option<Bytes>],
        link: &dyn CommandLink,
    ) -> Vec<Option<Entry>> {
        let mut entries = Vec::with_capacity(keys.len());
        for (key, bytes) in keys.iter().zip(found) {
            entries.push(match bytes {
                Some(bytes) => self.decode(key, bytes, link).await,
                None => None,
            });
        }
        entries
    }

    /// Returns the number of entries that were corrupt.
    pub(super) fn corrupt_entries(&self) -> u64 {
        self.corrupt.load(Relaxed)
    }
}
