//! What is known of a cluster: how its nodes are named, and how they are asked.

use super::{
    node::{Address, Node},
    reconnecting::CommandLink,
    source::Source,
    subscriber::MessageHandler,
    topology::Topology,
};
use crate::{
    clock::{self, Timestamp},
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
};
use futures_util::{StreamExt, stream};
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// The nodes of a cluster that the user names, and how to connect to all nodes: like to the first one.
#[derive(Clone)]
pub(super) struct Seeds {
    addresses: Arc<[Address]>,
    by_hostname: bool,
    pub(super) source: Source,
}

impl Seeds {
    pub(super) fn of(infos: &[ConnectionInfo]) -> RedisResult<Self> {
        let address = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(Address { host: host.clone(), port: *port })
            }
            _ => Err(RedisError::from(NO_ADDRESS)),
        };
        let access = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
            (is_tls, settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        let first = infos.first().ok_or(NO_NODES)?;
        if infos.iter().any(|info| access(info) != access(first)) {
            return Err(DIFFERENT_NODES.into());
        }
        Ok(Self {
            addresses: infos.iter().map(address).collect::<RedisResult<_>>()?,
            by_hostname: access(first).0,
            source: Source::of_cluster(Client::open(first.clone())?),
        })
    }

    pub(super) fn into_topology(self, introduction: Arc<Pipeline>, handler: Arc<dyn MessageHandler>) -> Topology {
        let Self { addresses, source, .. } = self;
        Topology::new(addresses, move |address| {
            Arc::new(Node::new(address, source.clone(), introduction.clone(), handler.clone()))
        })
    }
}

/// What a router knows of its cluster.
pub(super) struct Cluster {
    handler: Arc<dyn MessageHandler>,
    by_hostname: bool,
    pub(super) topology: Mutex<Topology>,
}

impl Cluster {
    pub(super) fn new(seeds: Seeds, introduction: Arc<Pipeline>, handler: Arc<dyn MessageHandler>) -> Self {
        let by_hostname = seeds.by_hostname;
        let topology = Mutex::new(seeds.into_topology(introduction, handler.clone()));
        Self { handler, by_hostname, topology }
    }

    /// Returns the master of the slot. Asks the nodes first if none has answered yet.
    pub(super) async fn master(self: &Arc<Self>, slot: u16) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.known_master(slot) {
            return Ok(node);
        }
        self.ask_any(true).await?;
        self.known_master(slot).ok_or_else(|| NO_SLOTS.into())
    }

    pub(super) fn known_master(&self, slot: u16) -> Option<Arc<Node>> {
        self.topology.lock().master(slot).cloned()
    }

    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        self.topology.lock().masters().to_vec()
    }

    /// Returns the node that an `ASK` names, if it is known.
    pub(super) fn target(&self, error: &RedisError, said_by: &Node) -> Option<Arc<Node>> {
        let (address, _) = error.redirect_node()?;
        self.topology.lock().find(address, &said_by.address).cloned()
    }

    /// Asks the nodes while a master answers nothing or their views contradict each other, and now and then.
    pub(super) async fn ask_when_in_doubt(self: Arc<Self>) -> Infallible {
        let mut asked_at = Timestamp::now();
        loop {
            sleep(QUESTION_PAUSE.mul_f64(0.5 + clock::random_unit())).await;
            let is_in_doubt = {
                let topology = self.topology.lock();
                topology.is_in_doubt() || topology.masters().iter().any(|node| node.link.is_in_doubt())
            };
            if is_in_doubt || Timestamp::now().since(asked_at) >= QUESTION_INTERVAL {
                let _ = self.ask_any(is_in_doubt).await;
                asked_at = Timestamp::now();
            }
        }
    }

    /// Asks the nodes until one of them answers. Without a doubt it begins with the masters, to which there are
    /// connections. Otherwise each node has its turn, because masters may know of no others: those without an answer
    /// come last, so that questions alone keep no doubt alive.
    async fn ask_any(self: &Arc<Self>, is_in_doubt: bool) -> RedisResult<()> {
        let mut nodes: Vec<_> = {
            let topology = self.topology.lock();
            let masters = topology.masters();
            let is_later = |node: &Arc<Node>| match is_in_doubt {
                true => node.link.is_in_doubt(),
                false => !masters.iter().any(|master| Arc::ptr_eq(master, node)),
            };
            topology.nodes().map(|node| (is_later(node), clock::random_unit(), node.clone())).collect()
        };
        nodes.sort_by(|(a_later, a, _), (b_later, b, _)| a_later.cmp(b_later).then(a.total_cmp(b)));
        let mut answers = stream::iter(nodes).map(|(.., node)| self.ask(&node)).buffer_unordered(ASKED_AT_ONCE);
        let mut result = Err(NO_SLOTS.into());
        while result.is_err()
            && let Some(answer) = answers.next().await
        {
            result = answer;
        }
        result
    }

    /// Asks one node for its view. Joins a question that is in flight, which goes on without callers: a command that is
    /// given up looks like a silent connection.
    pub(super) fn ask(self: &Arc<Self>, node: &Arc<Node>) -> Shared<RedisResult<()>> {
        let mut question = node.question.lock();
        let in_flight = question.as_ref().and_then(WeakShared::upgrade);
        in_flight.filter(|answer| !answer.is_done_and(|_| true)).unwrap_or_else(|| {
            let (cluster, node) = (self.clone(), node.clone());
            let asked = tokio::spawn(async move {
                let mut command = redis::cmd("CLUSTER");
                command.arg("NODES");
                let timed_out = |_| Err((ErrorKind::Io, "a node of the cluster does not answer").into());
                let view = timeout(QUESTION_TIMEOUT, node.link.send(&command)).await.unwrap_or_else(timed_out)?;
                cluster.learn(&String::from_redis_value(view)?, &node);
                Ok(())
            });
            let ended = |_| Err((ErrorKind::Io, "the runtime of the question has ended").into());
            let answer = Shared::new(async move { asked.await.unwrap_or_else(ended) });
            *question = Some(answer.downgrade());
            answer
        })
    }

    fn learn(&self, view: &str, by: &Node) {
        let has_moved = self.topology.lock().learn(view, by, self.by_hostname, Timestamp::now());
        if has_moved {
            self.handler.on_gap(); // waiters wait at the old masters
        }
    }
}

const NO_ADDRESS: (ErrorKind, &str) = (ErrorKind::InvalidClientConfig, "a node of a cluster has a host and a port");
const NO_NODES: (ErrorKind, &str) = (ErrorKind::InvalidClientConfig, "a cluster needs at least one node");
const DIFFERENT_NODES: (ErrorKind, &str) =
    (ErrorKind::InvalidClientConfig, "the nodes of a cluster must not differ in user, password or TLS");
const NO_SLOTS: (ErrorKind, &str) = (ErrorKind::Io, "no node of the cluster has named a master of the slot");
/// Time between two questions without a reason, so that nodes that join are known before others leave.
const QUESTION_INTERVAL: Duration = Duration::from_secs(60);
/// Mean pause between two questions for a reason, so that the failure of many commands is one reason.
const QUESTION_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time for the answer of a node.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of nodes that are asked at once, so that one that hangs delays no answer.
const ASKED_AT_ONCE: usize = 2;
