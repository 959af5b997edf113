//! Tracked reads in a cluster: each master has a tracked connection, and a read goes to the master of its slot.
//!
//! The reader does not follow redirections. A read that cannot be tracked, for example while its slot migrates, is an
//! error, and the near cache reads from the store instead.

use super::{
    cluster_slots::{NodeSlots, SlotRange, parse_slots, slots_command},
    connection::{
        endpoint::RedisEndpoint, reconnecting::CommandLink, subscriber::Subscriber, tracked::TrackedConnection,
    },
    entries::EntryDecoder,
    names::{lease_name, slot_of},
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
use std::{ops::RangeInclusive, sync::Arc, time::Duration};
use tokio_util::task::AbortOnDropHandle;

/// The reader of a cluster.
pub(super) struct ClusterReads {
    cluster: Arc<Cluster>,
    subscriber: Option<Arc<Subscriber>>,
    refresh: Mutex<Option<Refresh>>,
}

/// The last refresh of the topology. Dropping it ends the refresh.
struct Refresh {
    began_at: Timestamp,
    _task: AbortOnDropHandle<()>,
}

struct Cluster {
    endpoint: RedisEndpoint,
    /// The data connection, over which the cluster is asked for its nodes.
    data: Arc<dyn CommandLink>,
    decoder: Arc<EntryDecoder>,
    every: Duration,
    /// The masters with their ranges of slots, in the order of the slots.
    topology: Mutex<Vec<(RangeInclusive<u16>, Arc<Node>)>>,
}

/// A master, at one address.
struct Node {
    id: String,
    host: String,
    port: u16,
    slots: Arc<NodeSlots>,
    server: TrackedServer,
}

impl ClusterReads {
    /// Builds a reader that checks each connection once per `every`, but at most once in 20 ms.
    pub(super) fn new(
        endpoint: RedisEndpoint,
        data: Arc<dyn CommandLink>,
        decoder: Arc<EntryDecoder>,
        subscriber: Option<Arc<Subscriber>>,
        every: Duration,
    ) -> Self {
        let every = every.max(MIN_CHECK_INTERVAL);
        let cluster = Cluster { endpoint, data, decoder, every, topology: Mutex::default() };
        Self { cluster: Arc::new(cluster), subscriber, refresh: Mutex::default() }
    }

    async fn read(&self, keys: &[CacheKey]) -> Result<TrackedRead, StoreError> {
        let slot = keys.first().map(|key| slot_of(&lease_name(key)));
        let node = slot.and_then(|slot| Some((slot, self.cluster.master_of(slot)?)));
        let Some((slot, node)) = node else { return Err(StoreError::new("the master of the slot is not known")) };
        node.server.get_all(keys, |name| node.slots.may_read(slot, name)).await
    }

    /// Asks the cluster for its masters, in the background, unless it was asked within the last second.
    fn refresh(&self) {
        let (mut refresh, now) = (self.refresh.lock(), Timestamp::now());
        if refresh.as_ref().is_none_or(|refresh| now.since(refresh.began_at) >= REFRESH_PAUSE) {
            let cluster = self.cluster.clone();
            let task = AbortOnDropHandle::new(tokio::spawn(async move { cluster.refresh().await }));
            *refresh = Some(Refresh { began_at: now, _task: task });
        }
    }
}

impl TrackedReader for ClusterReads {
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(async move {
            if let Some(subscriber) = &self.subscriber {
                subscriber.start();
            }
            let answer = self.read(keys).await;
            if answer.is_err() {
                self.refresh();
            }
            answer
        })
    }
}

impl Cluster {
    fn master_of(&self, slot: u16) -> Option<Arc<Node>> {
        let topology = self.topology.lock();
        let range = topology.partition_point(|(slots, _)| *slots.end() < slot);
        topology.get(range).filter(|(slots, _)| slots.contains(&slot)).map(|(_, node)| node.clone())
    }

    async fn refresh(&self) {
        let Ok(answer) = self.data.send(&slots_command()).await else { return };
        let Some(mut ranges) = parse_slots(&answer) else { return };
        ranges.sort_by_key(|range| *range.slots.start());
        let mut nodes: Vec<_> = self.topology.lock().iter().map(|(_, node)| node.clone()).collect();
        let mut topology = Vec::with_capacity(ranges.len());
        for range in ranges {
            let is_same = |node: &&Arc<Node>| node.id == range.id && node.host == range.host && node.port == range.port;
            let node = match nodes.iter().find(is_same) {
                Some(node) => node.clone(),
                None => match self.node(&range) {
                    Some(node) => node,
                    None => continue,
                },
            };
            topology.push((range.slots, node.clone()));
            nodes.push(node);
        }
        *self.topology.lock() = topology;
    }

    /// Builds the reader of a master. Its connection is made with the first read.
    fn node(&self, range: &SlotRange) -> Option<Arc<Node>> {
        let SlotRange { id, host, port, .. } = range;
        let source = self.endpoint.node(host, *port).filter(|_| !host.is_empty())?;
        let slots = Arc::new(NodeSlots::of(id.clone()));
        let link = TrackedConnection::new(source, slots.clone(), slots.clone(), self.every);
        let server = TrackedServer::over(link, true, self.decoder.clone());
        Some(Arc::new(Node { id: id.clone(), host: host.clone(), port: *port, slots, server }))
    }
}

/// Pause after a refresh, so that a node that fails each read does not cause one for each.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);
/// Minimum time between two checks. A node that was stopped hears of its successor within it.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
