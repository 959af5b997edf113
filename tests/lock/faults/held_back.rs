//! A connection that holds one command back, so that something can happen before it.

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
    /// Commands of that name are held back, and what comes before and after them on other occasions is not.
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

    /// Until such a command is held back.
    pub(super) async fn arrived(&self) {
        self.gate.arrived.acquire().await.expect("never closed").forget();
    }

    /// From now on none of them is held back.
    pub(super) fn let_go(&self) {
        self.gate.open.close();
    }

    async fn pass(gate: Arc<Gate>, name: Option<Vec<u8>>) {
        if name.is_some_and(|name| name == gate.command.as_bytes()) {
            gate.arrived.add_permits(1);
            gate.open.acquire().await.expect_err("it is never opened otherwise than by closing it");
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
