//! The link to a cluster: sends each command to the master of its slot.
//!
//! All keys of a command are in one slot, so a cluster is a table from slots to masters, and each node has the
//! connection, the subscriber and the failure domain of a single server. `Topology` decides which master is the right
//! one; the router asks the nodes when a command gives a reason to:
//!
//! | the answer | what the router does |
//! |---|---|
//! | `MOVED` | asks the node that has said so, and sends the command again |
//! | `ASK` | sends `ASKING` and the command to the named node, in one write; asks for that node if it is unknown |
//! | none: an error of the connection, a caller that has given up, a server that serves no client | asks the nodes in the background, until commands are answered |
//! | any other | returns it |

use super::{
    clock::ServerClock,
    cluster::{Cluster, Seeds},
    reconnecting::{CommandLink, Request},
    subscriber::{MessageHandler, Subscriber},
    supervise::KeptTask,
};
use crate::{redis::names::slot_of, store::error::BoxFuture};
use futures_util::future::join_all;
use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisResult, ServerErrorKind, Value};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// The link to a cluster.
pub(crate) struct Router {
    cluster: Arc<Cluster>,
    /// Asks the nodes when there is a reason to, and now and then.
    questions: KeptTask,
}

impl Router {
    pub(super) fn new(seeds: Seeds, introduction: Arc<Pipeline>, handler: Arc<dyn MessageHandler>) -> Self {
        let cluster = Cluster::new(seeds, introduction, handler);
        Self { cluster: Arc::new(cluster), questions: KeptTask::default() }
    }

    /// Returns the subscriber of the node that has this name, if the node is known.
    pub(super) fn subscriber(&self, name: &[u8]) -> Option<Arc<Subscriber>> {
        Some(self.cluster.known_master(slot_of(name))?.subscriber.clone())
    }

    /// Returns the subscribers of all masters.
    pub(super) fn subscribers(&self) -> Vec<Arc<Subscriber>> {
        self.cluster.masters().iter().map(|node| node.subscriber.clone()).collect()
    }

    async fn route(&self, request: Request<'_>) -> RedisResult<Value> {
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
                answer = target.link.transact(&asking).await;
            }
            let Err(error) = answer else { return answer };
            redirections += 1;
            if !matches!(error.kind(), MOVED | ASK) || redirections > MAX_REDIRECTIONS {
                return Err(error);
            }
            self.cluster.ask(&node).await?;
        }
    }
}

/// Returns the slot of the first key. A command without keys may go to any node.
fn slot(request: Request<'_>) -> u16 {
    let key = match request {
        Request::Command(cmd) | Request::Read(cmd) => first_key(cmd),
        Request::Transaction(pipeline) => pipeline.cmd_iter().find_map(first_key),
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
        Box::pin(self.route(request))
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

const ASK: ErrorKind = ErrorKind::Server(ServerErrorKind::Ask);
const MOVED: ErrorKind = ErrorKind::Server(ServerErrorKind::Moved);
/// Maximum number of times that a command is sent again. A slot that moves needs two: to the new master, and to the
/// node that has the key.
const MAX_REDIRECTIONS: u32 = 4;
/// Maximum time for the check of all connections.
const CHECK_TIMEOUT: Duration = Duration::from_millis(100);
