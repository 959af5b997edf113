//! A connection that holds back one command, so that a test can act before the server executes it.

use crate::support::RedisServer;
use redis::{
    Arg, Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use stampede_guard::lock::Connection;
use std::sync::Arc;
use tokio::sync::Semaphore;

#[derive(Clone)]
pub(super) struct HeldBack {
    connection: MultiplexedConnection,
    gate: Arc<Gate>,
}

struct Gate {
    command: String,
    arrived: Semaphore,
    open: Semaphore,
}

impl HeldBack {
    /// Connects to the server and holds back commands of that name, and no others.
    pub(super) async fn before(command: &str, server: &RedisServer) -> Self {
        Self::on(server.connection().await, command)
    }

    pub(super) fn on(connection: MultiplexedConnection, command: &str) -> Self {
        let gate = Gate { command: command.to_owned(), arrived: Semaphore::new(0), open: Semaphore::new(0) };
        Self { connection, gate: Arc::new(gate) }
    }

    pub(super) fn redis(&self) -> Connection<Self> {
        Connection(self.clone())
    }

    /// Waits until a command is held back.
    pub(super) async fn arrived(&self) {
        self.gate.arrived.acquire().await.expect("never closed").forget();
    }

    /// Sends the commands that are held back, and holds back no more.
    pub(super) fn let_go(&self) {
        self.gate.open.close();
    }

    async fn pass(gate: Arc<Gate>, name: Option<Vec<u8>>) {
        if name.is_some_and(|name| name == gate.command.as_bytes()) {
            gate.arrived.add_permits(1);
            gate.open.acquire().await.expect_err("the semaphore is only ever closed");
        }
    }
}

fn name(cmd: &Cmd) -> Option<Vec<u8>> {
    match cmd.args_iter().next() {
        Some(Arg::Simple(name)) => Some(name.to_owned()),
        _ => None,
    }
}

impl ConnectionLike for HeldBack {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            Self::pass(self.gate.clone(), name(cmd)).await;
            self.connection.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmds: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(cmds, offset, count)
    }

    fn get_db(&self) -> i64 {
        0
    }
}
