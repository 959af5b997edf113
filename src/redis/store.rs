//! The store of a fleet: entries and leases in Redis (one server, Cluster, Sentinel).
//!
//! A hit is one GET. All other operations are scripts, each safe to run twice. Wake-ups arrive on a connection of their
//! own, in an inbox of this process. They never use the data connection, on which a reconnecting client hands surplus
//! subscription confirmations to other requests.

pub(crate) use super::names::{entry_names, lease_name};
use super::{
    batch::ReadBatcher,
    connection::{
        endpoint::{IntoEndpoint, RedisEndpoint, Subscribers},
        error_class::store_error,
        reconnecting::CommandLink,
        script::Script,
        source::{Connection, Source},
        subscriber::MessageHandler,
    },
    entries::EntryDecoder,
    fill::Fill,
    names::entry_name,
    scripts,
    tracked::TrackedReads,
};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        entry::Entry,
        error::{Answer, StoreError},
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves},
        port::{FillCondition, IntoStore, Store, Write},
        token::Token,
        tracking::{InvalidationFeed, TrackedReader},
        wake::{Listener, WakeRegistry},
    },
    versions::ReadTerms,
};
use bytes::Bytes;
use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};
use std::{
    fmt, slice,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// A store of entries and leases in Redis.
///
/// [`StampedeGuard::new`](crate::StampedeGuard::new) builds one from a client, a connection or a
/// [`RedisEndpoint`](crate::RedisEndpoint).
///
/// Two guards over one store share its connections, and neither fetches nor statistics:
///
/// ```
/// # fn main() -> Result<(), stampede_guard::redis::RedisError> {
/// use stampede_guard::{RedisStore, StampedeGuard, redis};
/// use std::sync::Arc;
///
/// let store = Arc::new(RedisStore::new(redis::Client::open("redis://127.0.0.1/")?));
/// let shop = StampedeGuard::new(store.clone()).namespace("shop");
/// let blog = StampedeGuard::new(store).namespace("blog");
/// # Ok(())
/// # }
/// ```
///
/// # Names
///
/// For namespace `sg` and key `user:42` the entry is `{sg:ruser:42}:v3.7`, with a digit for the layout, that is format,
/// codec, type and schema version. Each layout has further digits, for keys whose first one an entry of another layout
/// has. The lease is `{sg:ruser:42}:l` for all layouts. The names of an HTTP response end
/// with method and scheme, as in `{sg:rexample.org/a}:v3.4.get-https`. Long keys and keys with other than plain
/// characters are hashed. While it is filled, an entry of 4 KiB or more has the name `{sg:ruser:42}:s:` with the id of its
/// fill and a number, for a moment. Wake-ups are published to `stampede-guard:` and eight letters.
pub struct RedisStore {
    link: Arc<dyn CommandLink>,
    reads: ReadBatcher,
    decoder: Arc<EntryDecoder>,
    wakes: WakeRegistry,
    subscribers: Subscribers,
    /// The source of tracked connections. `None` if there is no single server that reports all changes.
    server: Option<Source>,
}

impl RedisStore {
    /// Builds a store. Over a client or a [`RedisEndpoint`](crate::RedisEndpoint) it has three connections of its own: one
    /// for reads, one for scripts, one for wake-ups. They are made on first use, and again when they break. Reads and
    /// scripts share one if it cannot be shown that both lead to one server. In a cluster it has these to each master.
    ///
    /// Over an existing connection this process waits by polling, because no wake-ups can be subscribed to over the
    /// connection, unless [`RedisEndpoint::subscribe_via`](crate::RedisEndpoint::subscribe_via) names a client for them.
    #[must_use]
    pub fn new(redis: impl IntoEndpoint) -> Self {
        Self::with_handler(&redis.into_endpoint(), |wakes| Arc::new(wakes))
    }

    /// Builds a store whose messages go to `handler`, which passes them on to the given `WakeRegistry`.
    fn with_handler(server: &RedisEndpoint, handler: impl FnOnce(WakeRegistry) -> Arc<dyn MessageHandler>) -> Self {
        let (decoder, wakes) = (Arc::<EntryDecoder>::default(), WakeRegistry::new());
        let (link, subscribers) = server.connect(scripts::introduction(), handler(wakes.clone()), true);
        Self {
            reads: ReadBatcher::over(link.clone(), server.is_cluster()),
            link,
            decoder,
            wakes,
            subscribers,
            server: server.server(),
        }
    }

    /// Parses the reply of a script. One that cannot be parsed may belong to another request, so the link is verified.
    async fn parse<T>(
        &self,
        reply: RedisResult<Value>,
        parse: impl FnOnce(Value) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let parsed = parse(reply.map_err(store_error)?);
        if parsed.is_err() {
            self.link.verify().await;
        }
        parsed
    }

    /// Returns the entry, and the number at which its read began.
    async fn get_now(&self, key: &CacheKey, terms: Option<ReadTerms<'_>>) -> Result<(Option<Entry>, u64), StoreError> {
        let name = self.decoder.names.entry(key);
        // With the first operation, so that wake-ups arrive by the time a caller has to wait.
        self.subscribers.start(|| name.clone());
        let (answer, begun) = self.reads.get(name, terms).await?;
        Ok((self.decoder.decode_once(key, &answer, &*self.link).await, begun))
    }

    /// Runs `get_or_lease`, or another script with its keys, arguments and replies. `more` are arguments after its own.
    async fn get_or_lease_by(
        &self,
        script: &Script,
        more: &[&str],
        key: &CacheKey,
        request: LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        let (names, lease) = (&self.decoder.names, lease_name(key));
        let inbox = (request.notify && self.subscribers.is_live(&lease).await).then(|| self.wakes.inbox());
        let (mut seen, mut unreadable) = (request.seen.map(|id| Bytes::copy_from_slice(id.as_bytes())), false);
        for _ in 0..UNREADABLE_ENTRIES {
            let (sent, numbers) = (Timestamp::now(), names.looked_at(key.layout()));
            let mut keys: Vec<_> = numbers.iter().map(|number| entry_name(key, *number)).collect();
            keys.insert(1, lease.clone());
            let mut call = scripts::get_or_lease(script, &keys, key, request, seen.as_deref(), inbox);
            call.arg(more);
            let reply = call.run(&*self.link).await;
            let (reply, other) = self.parse(reply, |reply| scripts::parse_lead_reply(reply, !unreadable)).await?;
            let used = numbers.get(other).copied().unwrap_or(0);
            if other == 1 {
                names.choose(key, used);
            }
            let bytes = match reply {
                scripts::LeadReply::Taken => {
                    names.looks_at_all.store(true, Relaxed);
                    continue;
                }
                scripts::LeadReply::Granted { stamp, seen_alive, failures } => {
                    self.link.clock(&|| lease_name(key)).learn(stamp, sent, Timestamp::now());
                    let lease = Lease { token: request.token, stamp, name: used };
                    return Ok(LeaseReply::Granted { lease, seen_alive, failures });
                }
                scripts::LeadReply::Other(reply) => return Ok(reply),
                scripts::LeadReply::Hit(bytes) => bytes,
                scripts::LeadReply::LargeHit => match self.reads.get(entry_name(key, used), None).await?.0.bytes() {
                    Some(bytes) => bytes.clone(),
                    None => continue, // it has expired, or was evicted or invalidated, since the script has seen it
                },
            };
            if let Some(entry) = self.decoder.decode(key, &bytes, &*self.link).await {
                return Ok(LeaseReply::Hit(entry));
            }
            // An entry that cannot be read counts as absent. No lease was granted, so the token can be used again. The
            // script now compares with this entry, not with the caller's.
            (seen, unreadable) = (Some(bytes.slice(bytes.len().min(1)..bytes.len().min(17))), true);
        }
        Err(StoreError::new("the entry keeps changing and no version of it can be read"))
    }
}

/// For a store that is built over this one. Any release may change it.
#[cfg(feature = "unstable")]
impl RedisStore {
    /// Builds a store whose messages go to `handler`, which passes them on to the given [`WakeRegistry`].
    pub fn with_message_handler(
        redis: impl IntoEndpoint,
        handler: impl FnOnce(WakeRegistry) -> Arc<dyn MessageHandler>,
    ) -> Self {
        Self::with_handler(&redis.into_endpoint(), handler)
    }

    /// Does the same as [`get_or_lease`](Store::get_or_lease) by another script, which has the keys, the arguments and
    /// the replies of `get_or_lease.lua`. `more` are arguments after its own.
    ///
    /// # Errors
    ///
    /// Returns the errors of `get_or_lease`.
    pub async fn get_or_lease_by_script(
        &self,
        script: &Script,
        more: &[&str],
        key: &CacheKey,
        request: LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        self.get_or_lease_by(script, more, key, request).await
    }
}

impl Store for RedisStore {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.get_now(key, None).await?.0) })
    }

    fn get_shared<'a>(&'a self, key: &'a CacheKey, terms: ReadTerms<'a>) -> Answer<'a, (Option<Entry>, u64)> {
        Box::pin(self.get_now(key, Some(terms)))
    }

    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, Vec<Option<Entry>>> {
        Box::pin(async move {
            self.subscribers.start(|| keys.first().map(lease_name).unwrap_or_default());
            self.decoder.read_all(keys, &self.reads).await
        })
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        Box::pin(self.get_or_lease_by(&scripts::LEAD, &[], key, request))
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        Box::pin(async move {
            let offset = self.link.clock(&|| lease_name(key)).offset();
            let fill = |whole| Fill::new(key, condition, &writes, &self.decoder.names, offset, whole);
            let mut reply = fill(false).send(&*self.link).await;
            if matches!(reply, Ok(Value::Int(NOT_RENEWED))) {
                reply = fill(true).send(&*self.link).await;
            }
            let stored = self.parse(reply, scripts::parse_held).await?;
            Ok(if stored { FillOutcome::Stored } else { FillOutcome::Fenced })
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        Box::pin(async move {
            let reply = scripts::release(&lease_name(key), token, failure_marker, key.hash()).run(&*self.link).await;
            let held = self.parse(reply, scripts::parse_held).await?;
            Ok(if held { LeaseStatus::Held } else { LeaseStatus::Lost })
        })
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        Box::pin(async move {
            let reply = scripts::extend(&lease_name(key), lease, span).run(&*self.link).await;
            let held = self.parse(reply, scripts::parse_held).await?;
            Ok(if held { LeaseStatus::Held } else { LeaseStatus::Lost })
        })
    }

    /// While a slot moves, its names are on two nodes. Then they are invalidated name by name, the leases first: without its
    /// lease no earlier fill is stored, and a later fill that is dropped costs a fetch.
    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        Box::pin(async move {
            let names: Vec<_> = keys.iter().map(lease_name).chain(keys.iter().flat_map(entry_names)).collect();
            let mut reply = scripts::invalidate(&names, keys, leaves).run(&*self.link).await;
            if reply.as_ref().is_err_and(|error| error.kind() == TRY_AGAIN) {
                let (first, is_put) = (&names[..1], matches!(leaves, Leaves::Lease(_)));
                let leaves_apart = if is_put { Leaves::Nothing } else { leaves };
                for (i, name) in names.iter().enumerate() {
                    let keys = keys.get(i).map(slice::from_ref).unwrap_or_default();
                    let reply = scripts::invalidate(slice::from_ref(name), keys, leaves_apart).run(&*self.link).await;
                    self.parse(reply, |reply| scripts::parse_invalidated(&reply, leaves_apart)).await?;
                }
                if !is_put {
                    return Ok(None);
                }
                reply = scripts::invalidate(first, keys, leaves).run(&*self.link).await;
            }
            let stamp = self.parse(reply, |reply| scripts::parse_invalidated(&reply, leaves)).await?;
            Ok(match (leaves, stamp) {
                (Leaves::Lease(LeaseRequest { token, .. }), Some(stamp)) => {
                    Some(Lease { token, stamp, name: self.decoder.names.number(keys[0].layout()) })
                }
                _ => None,
            })
        })
    }

    fn failure_domain(&self, key: &CacheKey) -> u16 {
        self.link.failure_domain(lease_name(key).as_bytes())
    }

    fn has_separate_reads(&self) -> bool {
        self.link.is_paired()
    }

    fn connection(&self, key: &CacheKey) -> u64 {
        self.link.connection(lease_name(key).as_bytes())
    }

    fn corrupt_entries(&self) -> u64 {
        self.decoder.corrupt.load(Relaxed)
    }

    fn other_layouts(&self) -> u64 {
        self.decoder.names.met()
    }

    fn host(&self) -> Option<String> {
        self.server.as_ref()?.host()
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.subscribers.start(|| lease_name(key));
        self.wakes.listen(key)
    }

    fn is_subscribed(&self) -> Option<bool> {
        self.subscribers.is_up()
    }

    fn track(&self, feed: Arc<InvalidationFeed>, every: Duration) -> Option<Arc<dyn TrackedReader>> {
        let (source, data, decoder) = (self.server.clone()?, self.link.clone(), self.decoder.clone());
        Some(Arc::new(TrackedReads::new(source, data, decoder, feed, every)))
    }
}

/// Omits the connection, whose address may hold a password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("wakes", &self.wakes).finish_non_exhaustive()
    }
}

macro_rules! into_endpoint_and_store {
    ($($(#[$attribute:meta])* $from:ty => |$value:ident| $endpoint:expr;)*) => {$(
        $(#[$attribute])*
        impl IntoEndpoint for $from {
            fn into_endpoint(self) -> RedisEndpoint {
                let $value = self;
                $endpoint
            }
        }

        $(#[$attribute])*
        impl IntoStore for $from {
            fn into_store(self) -> Arc<dyn Store> {
                Arc::new(RedisStore::new(self))
            }
        }
    )*};
}

into_endpoint_and_store! {
    RedisEndpoint => |endpoint| endpoint;
    redis::Client => |client| RedisEndpoint::of_server(Source::of_client(client));
    #[cfg(feature = "sentinel")]
    redis::sentinel::SentinelClient => |client| RedisEndpoint::of_server(Source::of_master(vec![client], &[]));
    #[cfg(feature = "connection-manager")]
    redis::aio::ConnectionManager => |connection| RedisEndpoint::over(Connection(connection));
    redis::aio::MultiplexedConnection => |connection| RedisEndpoint::over(Connection(connection));
}

impl<C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static> IntoStore for Connection<C> {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(RedisStore::new(self))
    }
}

/// Maximum number of unreadable or vanished entries in a row before `get_or_lease` fails.
const UNREADABLE_ENTRIES: usize = 4;
/// The reply to a renewal of an entry that the server does not have, or may not change. The lease permits another fill.
const NOT_RENEWED: i64 = 2;
const TRY_AGAIN: ErrorKind = ErrorKind::Server(ServerErrorKind::TryAgain);
