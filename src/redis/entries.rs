//! Decodes the entries that the server returns.

use super::{
    batch::answer::ReadAnswer, connection::reconnecting::CommandLink, names::lease_name, scripts,
    server_clock::ServerClocks,
};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        entry::Entry,
        envelope::{EnvelopeError, is_envelope_of},
    },
    telemetry,
};
use bytes::Bytes;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The decoder of one store, which all its connections share.
pub(super) struct EntryDecoder {
    clocks: Arc<ServerClocks>,
    failure_domain_of: fn(&CacheKey) -> u16,
    corrupt: AtomicU64,
}

impl EntryDecoder {
    pub(super) fn new(clocks: Arc<ServerClocks>, failure_domain_of: fn(&CacheKey) -> u16) -> Self {
        Self { clocks, failure_domain_of, corrupt: AtomicU64::new(0) }
    }

    /// Returns the clocks, for connections that learn the time.
    pub(super) fn clocks(&self) -> &Arc<ServerClocks> {
        &self.clocks
    }

    /// Returns the failure domain of the cache key.
    pub(super) fn failure_domain(&self, key: &CacheKey) -> u16 {
        (self.failure_domain_of)(key)
    }

    /// Returns the microseconds from the clock of this process to the clock of the server that has the cache key.
    pub(super) fn offset(&self, key: &CacheKey) -> i64 {
        self.clocks.offset(self.failure_domain(key))
    }

    /// Learns from a stamp of the server that has the cache key.
    pub(super) fn learn(&self, key: &CacheKey, stamp: u64, sent: Timestamp, received: Timestamp) {
        self.clocks.learn(self.failure_domain(key), stamp, sent, received);
    }

    /// Decodes what `link` has returned for the cache key. Bytes that cannot be read count as absent. They may be the
    /// reply to another request, so the link is verified.
    ///
    /// An entry from the future counts as absent too. After a failover to a server whose clock is slower it would stay
    /// fresh until that clock has caught up.
    pub(super) async fn decode(&self, key: &CacheKey, bytes: &Bytes, link: &dyn CommandLink) -> Option<Entry> {
        let domain = self.failure_domain(key);
        if self.clocks.must_ask(domain) {
            let sent = Timestamp::now();
            // Without a reply the last offset, or a guess, has to do.
            if let Ok(time) = link.send(&scripts::time(&lease_name(key))).await {
                self.clocks.learn_time(domain, &time, sent, Timestamp::now());
            }
        }
        match Entry::from_envelope(key, bytes, self.clocks.offset(domain)) {
            Ok(entry) => Some(entry).filter(|entry| entry.meta().response_time <= Timestamp::now().after(MAX_AHEAD)),
            Err(EnvelopeError::OtherLayout) => None,
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
    /// Cache keys may share a name, so each reader compares the key in the envelope with its own.
    pub(super) async fn decode_once(
        &self,
        key: &CacheKey,
        answer: &ReadAnswer,
        link: &dyn CommandLink,
    ) -> Option<Entry> {
        let bytes = answer.bytes()?;
        if let Some(entry) = answer.decoded().and_then(OnceLock::get)
            && is_envelope_of(key, bytes)
        {
            return Some(entry.clone());
        }
        let entry = self.decode(key, bytes, link).await?;
        if let Some(decoded) = answer.decoded() {
            let _ = decoded.set(entry.clone());
        }
        Some(entry)
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

/// Maximum time that the response time of an entry may lie ahead of the server's clock. Offsets are exact up to half of
/// a round trip.
const MAX_AHEAD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        entry::{Kind, Lifetimes, Meta},
        error::BoxFuture,
        token::{Inbox, Token},
    };
    use redis::{Arg, Cmd, RedisResult, Value};

    /// Two nodes of a cluster, whose clocks are ten seconds apart.
    struct TwoNodes;

    const CLOCKS: [i64; 2] = [1_000_000_000, 1_010_000_000];

    fn node_of(key: &CacheKey) -> u16 {
        u16::from(key.primary() == b"1")
    }

    impl CommandLink for TwoNodes {
        fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
            let Some(Arg::Simple(name)) = cmd.args_iter().last() else { panic!("no name") };
            let time = Timestamp::now().as_micros() + CLOCKS[usize::from(name.starts_with(b"{sg:r1}"))];
            Box::pin(async move { Ok(Value::Array(vec![Value::Int(time / 1_000_000), Value::Int(time % 1_000_000)])) })
        }

        fn transact<'a>(&'a self, _: &'a redis::Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(std::future::pending())
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn generation(&self) -> u64 {
            1
        }
    }

    /// Seen to fail with one clock for both nodes.
    #[tokio::test]
    async fn entry_ages_by_the_clock_of_its_own_node() {
        let decoder = EntryDecoder::new(Arc::new(ServerClocks::of(2)), node_of);
        for (node, clock) in CLOCKS.into_iter().enumerate() {
            let key = CacheKey::new("sg", 0, node.to_string());
            let mut meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
            meta.lifetimes = Lifetimes::fresh_for(Duration::from_secs(1));
            let bytes = Entry::new(meta, Bytes::new()).to_envelope(&key, clock);
            let entry = decoder.decode(&key, &bytes, &TwoNodes).await.expect("an entry of now");
            let drift = entry.meta().response_time.as_micros() - meta.response_time.as_micros();
            assert!(drift.abs() < 100_000, "node {node}: {drift}");
        }
    }

    #[tokio::test]
    async fn entry_over_a_second_ahead_of_the_server_is_a_miss() {
        let (decoder, key) = (EntryDecoder::new(Arc::new(ServerClocks::of(2)), node_of), CacheKey::new("sg", 0, "0"));
        for (ahead, is_read) in [(0, true), (900, true), (1_500, false), (5_000, false)] {
            let at = Timestamp::now().after(Duration::from_millis(ahead));
            let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), at);
            let bytes = Entry::new(meta, Bytes::new()).to_envelope(&key, CLOCKS[0]);
            assert_eq!(decoder.decode(&key, &bytes, &TwoNodes).await.is_some(), is_read, "{ahead} ms ahead");
        }
        assert_eq!(decoder.corrupt_entries(), 0);
    }

    /// Seen to fail when each reader decodes for itself, and when readers of a name share the entry without comparing
    /// the cache key.
    #[tokio::test]
    async fn entry_of_a_shared_read_is_decoded_once_per_cache_key() {
        let decoder = EntryDecoder::new(Arc::new(ServerClocks::of(1)), |_| 0);
        let key = CacheKey::new("sg", 3, "0");
        let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
        let stored = Entry::new(meta, Bytes::from("value")).to_envelope(&key, CLOCKS[0]);
        let answer = ReadAnswer::shared(Some(stored));
        let read = async |key: &CacheKey| decoder.decode_once(key, &answer, &TwoNodes).await;
        let [first, second] = [read(&key).await.expect("an entry"), read(&key).await.expect("an entry")];
        assert!(std::ptr::eq(first.meta(), second.meta()));
        for other in [CacheKey::new("sg", 3, "1"), key.in_layout(3 + 16)] {
            assert!(read(&other).await.is_none(), "{other:?}");
        }
        let corrupt = ReadAnswer::shared(Some(Bytes::from("no entry")));
        assert!(decoder.decode_once(&key, &corrupt, &TwoNodes).await.is_none());
    }
}
