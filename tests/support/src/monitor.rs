//! The commands that clients send to a server, as the server sees them.

#[path = "../../../examples/support/monitor.rs"]
pub mod line;

use super::RedisServer;
use futures_util::StreamExt;
use redis::{Client, aio};
use std::time::Duration;
use tokio::time;

/// A recording of the commands of all clients of a server, in any process, between [`start`](Self::start) and
/// [`stop`](Self::stop).
///
/// A script counts as one command. The commands within a script and the setup of connections do not count.
pub struct Monitor {
    client: Client,
    stream: aio::Monitor,
}

/// A command as `MONITOR` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Address of the client that sent the command.
    pub client: String,
    /// Name in upper case: `GET`, `EVALSHA`, ..
    pub name: String,
    /// Arguments, each in double quotes and with escapes, separated by spaces.
    pub args: String,
}

impl Monitor {
    /// Starts the recording.
    pub async fn start(server: &RedisServer) -> Self {
        let client = server.client();
        let stream = client.get_async_monitor().await.expect("the server is up");
        Self { client, stream }
    }

    /// Returns all commands executed so far, in that order. Panics if the server does not show them within 10 s.
    pub async fn stop(self) -> Vec<Command> {
        time::timeout(BOUND, self.until_now()).await.expect("the server answers")
    }

    async fn until_now(self) -> Vec<Command> {
        // The server shows commands in the order in which it executes them: all others came before this one.
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
