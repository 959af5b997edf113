//! What clients send to a server, as the server saw it.

use crate::{Result, redis_server::RedisServer};
use std::time::Duration;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// Counts the commands of all clients between [`start`](Self::start) and [`stop`](Self::stop). A script counts as one,
/// what it calls does not, and neither does what connections say about themselves.
pub(crate) struct Monitor {
    stream: BufReader<TcpStream>,
}

impl Monitor {
    pub(crate) async fn start(server: &RedisServer) -> Result<Self> {
        let mut stream = BufReader::new(TcpStream::connect(server.address()).await?);
        stream.write_all(b"MONITOR\r\n").await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if line.trim_end() == "+OK" { Ok(Self { stream }) } else { Err(format!("MONITOR is refused: {line}").into()) }
    }

    /// How many there were until now.
    pub(crate) async fn stop(mut self, server: &RedisServer) -> Result<usize> {
        // They are shown in the order in which they are executed: before this one came all the others.
        let mut connection = server.connection().await?;
        let _: String = redis::cmd("ECHO").arg(MARKER).query_async(&mut connection).await?;
        timeout(PATIENCE, self.until_marker()).await.map_err(|_| "MONITOR does not show what was sent")?
    }

    async fn until_marker(&mut self) -> Result<usize> {
        let (mut sent, mut line) = (0, Vec::new());
        loop {
            line.clear();
            if self.stream.read_until(b'\n', &mut line).await? == 0 {
                return Err("the server is gone".into());
            }
            let line = String::from_utf8_lossy(&line);
            if line.contains(MARKER) {
                return Ok(sent);
            }
            sent += usize::from(counts(&line));
        }
    }
}

/// Reads `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`; what a script called has `lua` for its client.
fn counts(line: &str) -> bool {
    let Some((client, command)) = line.split_once("] ") else { return false };
    let name = command.split(' ').next().unwrap_or_default().trim().trim_matches('"').to_ascii_uppercase();
    !client.ends_with(" lua") && !HOUSEKEEPING.contains(&name.as_str())
}

/// Commands that set connections up, keep them alive or ask the server about itself.
const HOUSEKEEPING: &[&str] = &[
    "AUTH",
    "CLIENT",
    "COMMAND",
    "ECHO",
    "HELLO",
    "INFO",
    "MONITOR",
    "PING",
    "SCRIPT",
    "SELECT",
    "SUBSCRIBE",
    "TIME",
    "UNSUBSCRIBE",
];
const MARKER: &str = "end of the count";
const PATIENCE: Duration = Duration::from_secs(20);
