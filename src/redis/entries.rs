//! Decodes the entries that the server returns, by the clock of that server.

use super::{
    batch::ReadAnswer,
    connection::{
        reconnecting::{CommandLink, Handshake},
        script::number,
    },
    names::{NamesInUse, lease_name},
    scripts,
};
use crate::{
    clock::{Timestamp, wall_clock},
    key::CacheKey,
    store::{
        entry::Entry,
        envelope::{EnvelopeError, layout_of},
    },
    telemetry,
};
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};

/// The decoder of one store, which all its connections share. As their handshake it learns the clocks of the servers.
/// Each failure domain has a clock of its own, because the clocks of two nodes may differ.
pub(super) struct EntryDecoder {
    domains: Box<[DomainClock]>,
    failure_domain_of: fn(&CacheKey) -> u16,
    pub(super) names: NamesInUse,
    corrupt: AtomicU64,
}

/// The offset from the clock of this process to the clock of a server.
///
/// The clocks of two hosts are never compared: the server takes each stamp between a request and its reply, and that
/// bounds the offset.
#[derive(Default)]
pub(super) struct DomainClock {
    offset_micros: OnceLock<AtomicI64>,
    /// Whether the offset is of the current server.
    is_current: AtomicBool,
}

impl EntryDecoder {
    /// Creates the decoder of a store with this number of failure domains.
    pub(super) fn new(domains: usize, failure_domain_of: fn(&CacheKey) -> u16) -> Self {
        let domains = (0..domains).map(|_| DomainClock::default()).collect();
        Self { domains, failure_domain_of, names: NamesInUse::default(), corrupt: AtomicU64::new(0) }
    }

    /// Returns the failure domain of the cache key.
    pub(super) fn failure_domain(&self, key: &CacheKey) -> u16 {
        (self.failure_domain_of)(key)
    }

    /// Returns the clock of the server that has the cache key.
    pub(super) fn clock(&self, key: &CacheKey) -> &DomainClock {
        &self.domains[usize::from((self.failure_domain_of)(key))]
    }

    /// Decodes what `link` has returned for the cache key. Bytes that cannot be read count as absent. They may be the
    /// reply to another request, so the link is verified.
    ///
    /// An entry from the future counts as absent too. After a failover to a server whose clock is slower it would stay
    /// fresh until that clock has caught up.
    pub(super) async fn decode(&self, key: &CacheKey, bytes: &Bytes, link: &dyn CommandLink) -> Option<Entry> {
        let clock = self.clock(key);
        if clock.must_ask() {
            let sent = Timestamp::now();
            // Without a reply the last offset, or a guess, has to do.
            if let Ok(time) = link.send(&scripts::time(&lease_name(key))).await {
                clock.learn_time(&time, sent, Timestamp::now());
            }
        }
        match Entry::from_envelope(key, bytes, clock.offset()) {
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

impl Handshake for EntryDecoder {
    fn commands(&self) -> Pipeline {
        scripts::introduction()
    }

    fn on_connected(&self) {
        for clock in &self.domains {
            clock.is_current.store(false, Relaxed);
        }
    }

    /// Learns from the last reply, unless it comes from any node of a cluster.
    fn on_replies(&self, answers: &[Value], sent: Timestamp, received: Timestamp) {
        if let (Some(time), [clock]) = (answers.last(), &*self.domains) {
            clock.learn_time(time, sent, received);
        }
    }
}

impl DomainClock {
    /// Learns from a stamp of the server, in microseconds, whose request was sent and answered at these moments.
    pub(super) fn learn(&self, stamp: u64, sent: Timestamp, received: Timestamp) {
        self.is_current.store(true, Relaxed);
        let stamp = i64::try_from(stamp).unwrap_or(i64::MAX);
        let min = stamp.saturating_sub(received.as_micros());
        let max = stamp.saturating_sub(sent.as_micros()).max(min);
        let offset = self.offset_micros.get_or_init(|| AtomicI64::new(min + (max - min) / 2));
        // Two concurrent calls may overwrite each other: the bounds of either one hold.
        let current = offset.load(Relaxed);
        if current != current.clamp(min, max) {
            offset.store(current.clamp(min, max), Relaxed);
        }
    }

    /// Learns from the reply to `TIME`.
    fn learn_time(&self, time: &Value, sent: Timestamp, received: Timestamp) {
        if let Value::Array(time) = time
            && let [seconds, micros] = &time[..]
            && let (Ok(seconds), Ok(micros)) = (number(seconds), number(micros))
        {
            self.learn(seconds.saturating_mul(1_000_000).saturating_add(micros), sent, received);
        }
    }

    /// Returns `true` if the time of the server is to be asked for: once for each new connection that has not brought
    /// it.
    fn must_ask(&self) -> bool {
        !self.is_current.load(Relaxed) && !self.is_current.swap(true, Relaxed)
    }

    /// Returns the microseconds to add to the clock of this process. Before the first stamp this is a guess from the
    /// wall clock of this host.
    pub(super) fn offset(&self) -> i64 {
        match self.offset_micros.get() {
            Some(offset) => offset.load(Relaxed),
            None => guess(),
        }
    }
}

fn guess() -> i64 {
    let since_epoch = wall_clock().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_micros()).unwrap_or(0).saturating_sub(Timestamp::now().as_micros())
}

/// Maximum time that the response time of an entry may lie ahead of the server's clock. Offsets are exact up to half of
/// a round trip.
const MAX_AHEAD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::batch::Stored;
    use crate::store::{
        entry::{Kind, Lifetimes, Meta},
        error::BoxFuture,
        token::{Inbox, Token},
    };
    use redis::{Arg, Cmd, RedisResult};
    use std::{slice::from_ref, sync::Arc};

    /// Two nodes of a cluster, whose clocks are ten seconds apart.
    struct TwoNodes;

    const CLOCKS: [i64; 2] = [1_000_000_000, 1_010_000_000];

    fn node_of(key: &CacheKey) -> u16 {
        u16::from(**key.primary() == *b"1")
    }

    impl CommandLink for TwoNodes {
        fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
            let Some(Arg::Simple(name)) = cmd.args_iter().last() else { panic!("no name") };
            let time = Timestamp::now().as_micros() + CLOCKS[usize::from(name.starts_with(b"{sg:r1}"))];
            Box::pin(async move { Ok(Value::Array(vec![Value::Int(time / 1_000_000), Value::Int(time % 1_000_000)])) })
        }

        fn transact<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(std::future::pending())
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn connection(&self, _: &[u8]) -> u64 {
            1
        }
    }

    /// Seen to fail with one clock for both nodes.
    #[tokio::test]
    async fn entry_ages_by_the_clock_of_its_own_node() {
        let decoder = EntryDecoder::new(2, node_of);
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
        let (decoder, key) = (EntryDecoder::new(2, node_of), CacheKey::new("sg", 0, "0"));
        for (ahead, is_read) in [(0, true), (900, true), (1_500, false), (5_000, false)] {
            let at = Timestamp::now().after(Duration::from_millis(ahead));
            let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), at);
            let bytes = Entry::new(meta, Bytes::new()).to_envelope(&key, CLOCKS[0]);
            assert_eq!(decoder.decode(&key, &bytes, &TwoNodes).await.is_some(), is_read, "{ahead} ms ahead");
        }
        assert_eq!(decoder.corrupt_entries(), 0);
    }

    /// Seen to fail when each reader decodes for itself, and when readers of a name share the entry without comparing
    /// the layout.
    #[tokio::test]
    async fn entry_of_a_shared_read_is_decoded_once_per_cache_key() {
        let decoder = EntryDecoder::new(1, |_| 0);
        let key = CacheKey::new("sg", 3, "0");
        let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
        let stored = Entry::new(meta, Bytes::from("value")).to_envelope(&key, CLOCKS[0]);
        let shared = |bytes| ReadAnswer::Shared(Arc::new(vec![Stored { bytes: Some(bytes), ..Stored::default() }]), 0);
        let answer = shared(stored);
        let read = async |key: &CacheKey| decoder.decode_once(key, &answer, &TwoNodes).await;
        let [first, second] = [read(&key).await.expect("an entry"), read(&key).await.expect("an entry")];
        assert!(std::ptr::eq(first.meta(), second.meta()));
        assert!(read(&key.in_layout(3 + 16)).await.is_none());
        let corrupt = shared(Bytes::from("no entry"));
        assert!(decoder.decode_once(&key, &corrupt, &TwoNodes).await.is_none());
    }

    #[test]
    fn server_clock_accepts_an_impossible_time() {
        let (decoder, now) = (EntryDecoder::new(1, |_| 0), Timestamp::now());
        let time = |seconds: i64| Value::Array(vec![Value::Int(seconds), Value::Int(i64::MAX)]);
        decoder.on_replies(&[time(i64::MAX)], now, now);
        decoder.on_replies(&[time(0)], now, now);
    }

    #[test]
    fn server_clock_offset_stays_within_every_stamp() {
        let (clock, at) = (DomainClock::default(), Timestamp::from_micros);
        clock.learn(1_000_500, at(0), at(1_000));
        assert_eq!(clock.offset(), 1_000_000);
        clock.learn(1_010_100, at(10_000), at(10_300));
        assert_eq!(clock.offset(), 1_000_000, "within the bounds, nothing is learnt");
        clock.learn(2_000_000, at(20_000), at(20_100));
        assert_eq!(clock.offset(), 1_979_900, "the server's clock was set forward");
        clock.learn(1_020_200, at(20_200), at(20_300));
        assert_eq!(clock.offset(), 1_000_000, "and back");
    }

    #[test]
    fn server_clock_is_asked_for_once_per_connection_without_time() {
        let (decoder, at) = (EntryDecoder::new(1, |_| 0), Timestamp::from_micros);
        let clock = &decoder.domains[0];
        let time = Value::Array(vec![Value::Int(5), Value::Int(0)]);
        assert_eq!([(); 2].map(|()| clock.must_ask()), [true, false], "no connection has brought the time yet");
        decoder.on_connected();
        decoder.on_replies(from_ref(&time), at(0), at(0));
        assert!(!clock.must_ask(), "the handshake has brought it");
        decoder.on_connected();
        assert_eq!([(); 2].map(|()| clock.must_ask()), [true, false], "a connection has repaired itself");

        let cluster = EntryDecoder::new(2, |_| 0);
        cluster.on_replies(&[time], at(0), at(0));
        assert!(cluster.domains.iter().all(DomainClock::must_ask), "the time of any node is not the time of each");
    }
}
