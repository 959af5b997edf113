//! Decodes the entries that the server returns, by the clock of that server.

use super::{
    batch::{ReadAnswer, ReadBatcher},
    connection::reconnecting::CommandLink,
    names::{NamesInUse, lease_name},
};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        entry::Entry,
        envelope::{EnvelopeError, layout_of},
        error::StoreError,
    },
    telemetry,
};
use bytes::Bytes;
use futures_util::future::OptionFuture;
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The decoder of one store, which all its connections share.
#[derive(Default)]
pub(super) struct EntryDecoder {
    pub(super) names: NamesInUse,
    /// The number of entries that were corrupt.
    pub(super) corrupt: AtomicU64,
}

impl EntryDecoder {
    /// Decodes what `link` has returned for the cache key. Bytes that cannot be read count as absent. They may be the
    /// reply to another request, so the link is verified.
    ///
    /// An entry from the future counts as absent too. After a failover to a server whose clock is slower it would stay
    /// fresh until that clock has caught up.
    pub(super) async fn decode(&self, key: &CacheKey, bytes: &Bytes, link: &dyn CommandLink) -> Option<Entry> {
        let offset = link.clock(&|| lease_name(key)).offset();
        match Entry::from_envelope(key, bytes, offset) {
            Ok(entry) => Some(entry).filter(|entry| entry.meta().response_time <= Timestamp::now().after(MAX_AHEAD)),
            Err(EnvelopeError::OtherLayout) => {
                self.names.meet(key);
                None
            }
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

    /// Decodes the answer to a read as [`decode`](Self::decode) does, but once for all its readers. They share the
    /// entry, and so the value that one of them has decoded. An entry that cannot be read is decoded again.
    ///
    /// Readers of one name differ at most in their layouts, so each reader compares that of the envelope with its own.
    pub(super) async fn decode_once(
        &self,
        key: &CacheKey,
        answer: &ReadAnswer,
        link: &dyn CommandLink,
    ) -> Option<Entry> {
        let bytes = answer.bytes()?;
        if let Some(entry) = answer.decoded().and_then(OnceLock::get)
            && layout_of(bytes) == Some(key.layout())
        {
            return Some(entry.clone());
        }
        let entry = self.decode(key, bytes, link).await?;
        if let Some(decoded) = answer.decoded() {
            let _ = decoded.set(entry.clone());
        }
        Some(entry)
    }

    /// Reads the entries of these cache keys as they are at one moment.
    pub(super) async fn read_all(
        &self,
        keys: &[CacheKey],
        reads: &ReadBatcher,
    ) -> Result<Vec<Option<Entry>>, StoreError> {
        let found = reads.get_all(keys.iter().map(|key| self.names.entry(key)).collect()).await?;
        let mut entries = Vec::with_capacity(keys.len());
        for (key, bytes) in keys.iter().zip(&found) {
            let entry = bytes.as_ref().map(|bytes| self.decode(key, bytes, &*reads.link));
            entries.push(OptionFuture::from(entry).await.flatten());
        }
        Ok(entries)
    }
}

/// Maximum time that the response time of an entry may lie ahead of the server's clock. Offsets are exact up to half of
/// a round trip.
const MAX_AHEAD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{
        batch::Stored,
        connection::{clock::ServerClock, reconnecting::Request},
    };
    use crate::store::{
        entry::{Kind, Lifetimes, Meta},
        error::BoxFuture,
        token::{Inbox, Token},
    };
    use redis::{RedisResult, Value};
    use std::sync::Arc;

    /// Two nodes of a cluster, whose clocks are ten seconds apart.
    struct TwoNodes([Arc<ServerClock>; 2]);

    const CLOCKS: [i64; 2] = [1_000_000_000, 1_010_000_000];

    impl Default for TwoNodes {
        fn default() -> Self {
            let now = Timestamp::now();
            Self(CLOCKS.map(|ahead| {
                let clock = ServerClock::default();
                clock.learn((now.as_micros() + ahead) as u64, now, now);
                Arc::new(clock)
            }))
        }
    }

    impl CommandLink for TwoNodes {
        fn execute<'a>(&'a self, _: Request<'a>) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(async { panic!("no command") })
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn connection(&self, _: &[u8]) -> u64 {
            1
        }

        fn clock(&self, name: &dyn Fn() -> String) -> Arc<ServerClock> {
            self.0[usize::from(name().starts_with("{sg:r1}"))].clone()
        }
    }

    /// Seen to fail with one clock for both nodes.
    #[tokio::test]
    async fn entry_ages_by_the_clock_of_its_own_node() {
        let decoder = EntryDecoder::default();
        for (node, clock) in CLOCKS.into_iter().enumerate() {
            let key = CacheKey::new("sg", 0, node.to_string());
            let mut meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
            meta.lifetimes = Lifetimes::fresh_for(Duration::from_secs(1));
            let bytes = Entry::new(meta, Bytes::new()).to_envelope(&key, clock);
            let entry = decoder.decode(&key, &bytes, &TwoNodes::default()).await.expect("an entry of now");
            let drift = entry.meta().response_time.as_micros() - meta.response_time.as_micros();
            assert!(drift.abs() < 100_000, "node {node}: {drift}");
        }
    }

    #[tokio::test]
    async fn entry_over_a_second_ahead_of_the_server_is_a_miss() {
        let (decoder, key) = (EntryDecoder::default(), CacheKey::new("sg", 0, "0"));
        for (ahead, is_read) in [(0, true), (900, true), (1_500, false), (5_000, false)] {
            let at = Timestamp::now().after(Duration::from_millis(ahead));
            let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), at);
            let bytes = Entry::new(meta, Bytes::new()).to_envelope(&key, CLOCKS[0]);
            assert_eq!(decoder.decode(&key, &bytes, &TwoNodes::default()).await.is_some(), is_read, "{ahead} ms ahead");
        }
        assert_eq!(decoder.corrupt.load(Relaxed), 0);
    }

    /// Seen to fail when each reader decodes for itself, and when readers of a name share the entry without comparing
    /// the layout.
    #[tokio::test]
    async fn entry_of_a_shared_read_is_decoded_once_per_cache_key() {
        let decoder = EntryDecoder::default();
        let key = CacheKey::new("sg", 3, "0");
        let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
        let stored = Entry::new(meta, Bytes::from("value")).to_envelope(&key, CLOCKS[0]);
        let shared = |bytes| ReadAnswer::Shared(Arc::new(vec![Stored { bytes: Some(bytes), ..Stored::default() }]), 0);
        let answer = shared(stored);
        let read = async |key: &CacheKey| decoder.decode_once(key, &answer, &TwoNodes::default()).await;
        let [first, second] = [read(&key).await.expect("an entry"), read(&key).await.expect("an entry")];
        assert!(std::ptr::eq(first.meta(), second.meta()));
        assert!(read(&key.in_layout(3 + 16)).await.is_none());
        let corrupt = shared(Bytes::from("no entry"));
        assert!(decoder.decode_once(&key, &corrupt, &TwoNodes::default()).await.is_none());
    }
}
