//! Tracked reads in a cluster: each master has a tracked connection, and a read goes to the master of its slot.
//!
//! The reader does not follow redirections. A read that cannot be tracked, for example while its slot migrates, is an
//! error, and the near cache reads from the store instead. Reads of a master without a tracked connection go over the
//! data connection after some seconds, and their copies end by age.

use super::{
    batch::ReadBatcher,
    cluster_slots::{MIN_CHECK_INTERVAL, NodeSlots, SlotRange, parse_slots, slots_command},
    cluster_topology::Topology,
    connection::{
        endpoint::RedisEndpoint, reconnecting::CommandLink, subscriber::Subscriber, tracked::TrackedConnection,
    },
    entries::EntryDecoder,
    names::{entry_name, lease_name, slot_of},
    own_invalidations::{InvalidatedSlots, SlotChecks},
    tracked_reads::TrackedServer,
};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        error::{Answer, StoreError},
        tracking::{TrackedRead, TrackedReader},
    },
    sync::mutex::Mutex,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// The reader of a cluster.
pub(super) struct ClusterReads {
    cluster: Arc<Cluster>,
    subscriber: Option<Arc<Subscriber>>,
    refresh: Mutex<Option<Refresh>>,
    /// Whether a read has failed, or was dropped, after the last refresh began.
    is_refresh_due: AtomicBool,
}

/// The last refresh of the topology. Dropping it ends the refresh.
struct Refresh {
    began_at: Timestamp,
    task: AbortOnDropHandle<()>,
}

struct Cluster {
    endpoint: RedisEndpoint,
    store: StoreReads,
    checks: SlotChecks,
    every: Duration,
    topology: Mutex<Topology<Option<Node>>>,
}

/// The reads of the store over its data connection, which follow redirections.
pub(super) struct StoreReads {
    pub(super) data: Arc<dyn CommandLink>,
    pub(super) reads: Arc<ReadBatcher>,
    pub(super) decoder: Arc<EntryDecoder>,
}

/// A master whose address is known.
struct Node {
    slots: Arc<NodeSlots>,
    server: TrackedServer,
    /// The first read that found no connection to this master.
    absent_since: Mutex<Option<Timestamp>>,
}

impl ClusterReads {
    /// Builds a reader that checks each connection once per `every`, but at most once in 20 ms.
    pub(super) fn new(
        endpoint: RedisEndpoint,
        store: StoreReads,
        invalidated: Arc<InvalidatedSlots>,
        subscriber: Option<Arc<Subscriber>>,
        every: Duration,
    ) -> Self {
        let (every, checks) = (every.max(MIN_CHECK_INTERVAL), SlotChecks::new(invalidated));
        let cluster = Arc::new(Cluster { endpoint, store, checks, every, topology: Mutex::default() });
        Self { cluster, subscriber, refresh: Mutex::default(), is_refresh_due: AtomicBool::new(false) }
    }

    /// Asks the cluster for its masters, in the background, unless it was asked within the last second. Reports whether
    /// it did.
    fn refresh(&self) -> bool {
        let (mut refresh, now) = (self.refresh.lock(), Timestamp::now());
        let may_begin = |last: &Refresh| last.task.is_finished() && now.since(last.began_at) >= REFRESH_PAUSE;
        let begins = refresh.as_ref().is_none_or(may_begin);
        if begins {
            let cluster = self.cluster.clone();
            let task = AbortOnDropHandle::new(tokio::spawn(async move {
                _ = timeout(REFRESH_TIMEOUT, cluster.refresh()).await; // the next read that fails asks again
            }));
            *refresh = Some(Refresh { began_at: now, task });
        }
        begins
    }
}

impl TrackedReader for ClusterReads {
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(async move {
            if let Some(subscriber) = &self.subscriber {
                subscriber.start();
            }
            if self.is_refresh_due.load(Relaxed) && self.refresh() {
                self.is_refresh_due.store(false, Relaxed);
            }
            let mut outcome = RefreshUnlessTracked { is_due: &self.is_refresh_due, is_tracked: false };
            let answer = self.cluster.read(keys).await;
            outcome.is_tracked = matches!(answer, Ok((_, Route::Tracked)));
            if !outcome.is_tracked {
                self.refresh();
            }
            answer.map(|(read, _)| read)
        })
    }
}

/// Makes a refresh due when it is dropped, unless the read was tracked. A read is dropped if the store timeout is over.
struct RefreshUnlessTracked<'a> {
    is_due: &'a AtomicBool,
    is_tracked: bool,
}

impl Drop for RefreshUnlessTracked<'_> {
    fn drop(&mut self) {
        if !self.is_tracked {
            self.is_due.store(true, Relaxed);
        }
    }
}

/// The connection of a read.
enum Route {
    Tracked,
    Data,
}

impl Cluster {
    async fn read(&self, keys: &[CacheKey]) -> Result<(TrackedRead, Route), StoreError> {
        let Some(name) = keys.first().map(lease_name) else { return Ok((TrackedRead::default(), Route::Tracked)) };
        let slot = slot_of(&name);
        let master = self.topology.lock().master_of(slot);
        let Some(master) = master else { return Err(StoreError::new("the master of the slot is not known")) };
        let Some(node) = master.node.as_ref().filter(|node| !node.is_absent()) else {
            return Ok((self.store.read(keys).await?, Route::Data));
        };
        if !self.checks.may_read(slot, &master.id, &name) {
            return Err(StoreError::new("it is not known which master has executed an invalidation of this process"));
        }
        let read = node.server.get_all(keys, |name| node.slots.may_read(slot, name)).await?;
        Ok((read, Route::Tracked))
    }

    async fn refresh(&self) {
        let view = self.store.data.send(&slots_command()).await;
        if let Some(view) = view.ok().as_ref().and_then(parse_slots) {
            self.topology.lock().update(view, |range| self.node(range));
        }
        self.checks.run(&*self.store.data).await;
    }

    /// Builds the reader of a master, if its address is known. Its connection is made with the first read.
    fn node(&self, range: &SlotRange) -> Option<Node> {
        let SlotRange { id, host, port, .. } = range;
        let source = self.endpoint.node(host, *port).filter(|_| !host.is_empty())?;
        let slots = Arc::new(NodeSlots::of(id.clone()));
        let link = TrackedConnection::new(source, slots.clone(), slots.clone(), self.every);
        let server = TrackedServer::over(link, true, self.store.decoder.clone());
        Some(Node { slots, server, absent_since: Mutex::default() })
    }
}

impl Node {
    /// Reports whether there has been no connection to this master for some seconds. Its address may be one that only
    /// the other nodes can use, or lead to another node.
    fn is_absent(&self) -> bool {
        let is_connected = self.server.is_connected() && self.slots.has_slots();
        let (mut since, now) = (self.absent_since.lock(), Timestamp::now());
        if is_connected {
            *since = None;
            return false;
        }
        now.since(*since.get_or_insert(now)) >= ABSENT_AFTER
    }
}

impl StoreReads {
    /// Reads entries without versions: copies of them end by age.
    async fn read(&self, keys: &[CacheKey]) -> Result<TrackedRead, StoreError> {
        let names = keys.iter().map(entry_name).collect();
        let entries = self.decoder.decode_all(keys, &self.reads.get_all(names).await?, &*self.data).await;
        Ok(TrackedRead { entries, versions: Vec::new() })
    }
}

/// Pause after a refresh, so that a node that fails each read does not cause one for each.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time of a refresh. The next one may begin afterwards.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a connection to a master after which copies of its entries are kept without messages.
const ABSENT_AFTER: Duration = Duration::from_secs(3);
