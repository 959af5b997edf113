//! What clients send to a server, as the server saw it.

#[path = "../../examples/support/monitor.rs"]
mod line;

use super::RedisServer;
use futures_util::StreamExt;
use redis::{Client, aio};
use std::time::Duration;
use tokio::time;

/// Records the commands of all clients of a server, whatever process they are in, between [`start`](Self::start) and
/// [`stop`](Self::stop).
///
/// A script counts as one command, what it calls does not count, and neither does what connections say about
/// themselves.
pub(crate) struct Monitor {
    client: Client,
    stream: aio::Monitor,
}

/// A command as `MONITOR` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Address of the client that sent it.
    pub(crate) client: String,
    /// In upper case: `GET`, `EVALSHA`, ..
    pub(crate) name: String,
    /// The arguments, each in double quotes and with escapes, a space between two.
    pub(crate) args: String,
}

impl Monitor {
    /// Records from now on.
    pub(crate) async fn start(server: &RedisServer) -> Self {
        let client = server.client();
        let stream = client.get_async_monitor().await.expect("the server is up");
        Self { client, stream }
    }

    /// Everything that was executed until now, in that order; panics if the server does not show it within 10 s.
    pub(crate) async fn stop(self) -> Vec<Command> {
        time::timeout(BOUND, self.until_now()).await.expect("the server answers")
    }

    async fn until_now(self) -> Vec<Command> {
        // The server shows commands in the order in which it executes them: before this one came all the others.
        let marker = format!("end of recording {:016x}", fastrand::u64(..));
        let mut connection = self.client.get_multiplexed_async_connection().await.expect("the server is up");
        let _: String = redis::cmd("ECHO").arg(&marker).query_async(&mut connection).await.expect("the server is up");

        let mut lines = self.stream.into_on_message::<String>();
        let mut commands = Vec::new();
        loop {
            let line = lines.next().await.expect("the server was up all the time");
            if line.contains(&marker) {
                return commands;
            }
            if let Some((client, name, args)) = line::work(&line) {
                commands.push(Command { client: client.to_owned(), name, args: args.to_owned() });
            }
        }
    }
}

const BOUND: Duration = Duration::from_secs(10);
