//! The link to a cluster: sends each command to the master of its slot.
//!
//! All keys of a command are in one slot, so a cluster is a table from slots to masters, and each node has the
//! connection, the subscriber and the failure domain of a single server. `Topology` decides which master is the right
//! one; the router asks the nodes when a command gives a reason to:
//!
//! | the answer | what the router does |
//! |---|---|
//! | `MOVED` | asks the node that has said so, and sends the command again |
//! | `ASK` | sends `ASKING` and the command to the named node, in one write; asks for that node if it is unknown; to a pipeline: returns it |
//! | none: an error of the connection, a caller that has given up, a server that serves no client | asks the nodes in the background, until commands are answered |
//! | any other | returns it |

use super::{
    attempts::within,
    clock::ServerClock,
    log::ConnectionLog,
    reconnecting::{CommandLink, Request},
    subscriber::{MessageHandler, Subscriber},
    supervise::KeptTask,
    topology::{Node, Seeds, Topology},
};
use crate::{
    clock::{self, Timestamp},
    redis::names::slot_of,
    store::error::BoxFuture,
    sync::{mutex::Mutex, shared::Shared},
};
use futures_util::{StreamExt, future::join_all, stream};
use redis::{Arg, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// The link to a cluster.
pub(crate) struct Router {
    cluster: Arc<Cluster>,
    /// Asks the nodes when there is a reason to, and now and then.
    questions: KeptTask,
}

impl Router {
    pub(super) fn new(seeds: Seeds, introduction: Arc<Pipeline>, handler: Arc<dyn MessageHandler>) -> Self {
        let log = seeds.source.attempts.log.clone();
        let topology = Mutex::new(Topology::new(seeds, introduction, handler.clone()));
        Self { cluster: Arc::new(Cluster { handler, log, topology }), questions: KeptTask::default() }
    }

    /// Returns the subscriber of the node that has this name, if the node is known.
    pub(super) fn subscriber(&self, name: &[u8]) -> Option<Arc<Subscriber>> {
        Some(self.cluster.known_master(slot_of(name))?.subscriber.clone())
    }

    /// Returns the subscribers of all masters.
    pub(super) fn subscribers(&self) -> Vec<Arc<Subscriber>> {
        self.cluster.masters().iter().map(|node| node.subscriber.clone()).collect()
    }
}

/// Returns the slot of the first key. A command without keys may go to any node.
fn slot(request: Request<'_>) -> u16 {
    let key = match request {
        Request::Command(cmd) | Request::Read(cmd) => first_key(cmd),
        Request::Pipeline(pipeline) => pipeline.cmd_iter().find_map(first_key),
    };
    key.map_or(0, slot_of)
}

/// Returns the first key of a command: the first argument, or that after the number of keys of a script.
fn first_key(cmd: &Cmd) -> Option<&[u8]> {
    let mut args = cmd.args_iter();
    let at = match args.next()? {
        Arg::Simple(b"EVAL" | b"EVALSHA") => 2,
        _ => 0,
    };
    match args.nth(at)? {
        Arg::Simple(key) => Some(key),
        _ => None,
    }
}

impl CommandLink for Router {
    fn execute<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, RedisResult<Value>> {
        Box::pin(async move {
            self.questions.start(|| self.cluster.clone().ask_when_in_doubt());
            let slot = slot(request);
            let mut redirections = 0;
            loop {
                let node = self.cluster.master(slot).await?;
                let mut answer = node.link.execute(request).await;
                if let (Err(error), Request::Command(cmd) | Request::Read(cmd)) = (&answer, request)
                    && error.kind() == ASK
                    && let Some(target) = self.cluster.target(error, &node)
                {
                    let mut asking = redis::pipe();
                    asking.cmd("ASKING").add_command(cmd.clone());
                    answer = target.link.send_all(&asking).await;
                }
                let Err(error) = answer else { return answer };
                redirections += 1;
                let is_refused = matches!((error.kind(), request), (ASK, Request::Pipeline(_)));
                if is_refused || !matches!(error.kind(), MOVED | ASK) || redirections > MAX_REDIRECTIONS {
                    return Err(error);
                }
                self.cluster.ask(&node).await?;
            }
        })
    }

    fn is_paired(&self) -> bool {
        self.cluster.topology.lock().masters().iter().any(|node| node.link.is_paired())
    }

    fn verify(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let masters = self.cluster.masters();
            let checks = join_all(masters.iter().map(|node| node.link.verify()));
            let _ = timeout(CHECK_TIMEOUT, checks).await; // a node that hangs is not the one in doubt
        })
    }

    fn connection(&self, name: &[u8]) -> u64 {
        self.cluster.known_master(slot_of(name)).map_or(0, |node| node.link.connection(name))
    }

    fn clock(&self, name: &dyn Fn() -> String) -> Arc<ServerClock> {
        let node = self.cluster.known_master(slot_of(name().as_bytes()));
        node.map(|node| node.link.clock(name)).unwrap_or_default()
    }

    fn failure_domain(&self, name: &[u8]) -> u16 {
        self.cluster.topology.lock().failure_domain(slot_of(name))
    }
}

/// What a router knows of its cluster.
struct Cluster {
    handler: Arc<dyn MessageHandler>,
    log: Arc<ConnectionLog>,
    topology: Mutex<Topology>,
}

impl Cluster {
    /// Returns the master of the slot. Asks the nodes first if none has answered yet.
    async fn master(self: &Arc<Self>, slot: u16) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.known_master(slot) {
            return Ok(node);
        }
        self.ask_any(true).await?;
        self.known_master(slot).ok_or_else(|| NO_SLOTS.into())
    }

    fn known_master(&self, slot: u16) -> Option<Arc<Node>> {
        self.topology.lock().master(slot).cloned()
    }

    fn masters(&self) -> Vec<Arc<Node>> {
        self.topology.lock().masters().to_vec()
    }

    /// Returns the node that an `ASK` names, if it is known.
    fn target(&self, error: &RedisError, said_by: &Node) -> Option<Arc<Node>> {
        self.topology.lock().find(error.redirect_node()?.0, &said_by.address).cloned()
    }

    /// Asks the nodes while a master answers nothing or their views contradict each other, and now and then.
    async fn ask_when_in_doubt(self: Arc<Self>) -> Infallible {
        let mut asked_at = Timestamp::now();
        loop {
            sleep(QUESTION_PAUSE.mul_f64(0.5 + clock::random_unit())).await;
            let is_in_doubt = self.topology.lock().is_in_doubt();
            if is_in_doubt || Timestamp::now().since(asked_at) >= QUESTION_INTERVAL {
                let _ = self.ask_any(is_in_doubt).await;
                asked_at = Timestamp::now();
            }
        }
    }

    /// Asks the nodes until one of them answers. Without a doubt it begins with the nodes that the user has named, whose
    /// loss is reported. Otherwise each node has its turn, because masters may know of no others: nodes without answers
    /// come last, so that questions alone keep no doubt alive.
    async fn ask_any(self: &Arc<Self>, is_in_doubt: bool) -> RedisResult<()> {
        let mut nodes: Vec<_> = {
            let topology = self.topology.lock();
            let is_later = |node: &Arc<Node>| match is_in_doubt {
                true => node.link.is_in_doubt(),
                false => !topology.seeds().any(|seed| Arc::ptr_eq(seed, node)),
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
        if result.is_ok() {
            // Not under the lock, because the subscriber of the log may ask the guard.
            let errors: Vec<_> = self.topology.lock().seeds().map(|seed| seed.link.attempts.last_error()).collect();
            self.log.check_named(errors.into_iter());
        }
        result
    }

    /// Asks one node for its view. Joins a question that is in flight, which goes on without callers: a command that is
    /// given up looks like a silent connection.
    fn ask(self: &Arc<Self>, node: &Arc<Node>) -> Shared<RedisResult<()>> {
        node.question.lock().join_or(|| {
            let (cluster, node) = (self.clone(), node.clone());
            let asked = tokio::spawn(async move {
                let view = within(QUESTION_TIMEOUT, node.link.send(redis::cmd("CLUSTER").arg("NODES"))).await?;
                cluster.learn(&String::from_redis_value(view)?, &node);
                Ok(())
            });
            let ended = |_| Err((ErrorKind::Io, "the runtime of the question has ended").into());
            async move { asked.await.unwrap_or_else(ended) }
        })
    }

    fn learn(&self, view: &str, by: &Node) {
        let has_moved = self.topology.lock().learn(view, by, Timestamp::now());
        if has_moved {
            for node in self.masters() {
                node.link.attempts.end(None); // an address that is newly named is tried at once
            }
            self.handler.on_gap(); // waiters wait at the old masters
        }
    }
}

const ASK: ErrorKind = ErrorKind::Server(ServerErrorKind::Ask);
const MOVED: ErrorKind = ErrorKind::Server(ServerErrorKind::Moved);
/// Maximum number of times that a command is sent again. A slot that moves needs two: to the new master, and to the
/// node that has the key.
const MAX_REDIRECTIONS: u32 = 4;
/// Maximum time for the check of all connections.
const CHECK_TIMEOUT: Duration = Duration::from_millis(100);
const NO_SLOTS: (ErrorKind, &str) = (ErrorKind::Io, "no node of the cluster has named a master of the slot");
/// Time between two questions without a reason, so that nodes that join are known before others leave.
const QUESTION_INTERVAL: Duration = Duration::from_secs(60);
/// Mean pause between two questions for a reason, so that the failure of many commands is one reason.
const QUESTION_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time for the answer of a node.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of nodes that are asked at once, so that one that hangs delays no answer.
const ASKED_AT_ONCE: usize = 2;
