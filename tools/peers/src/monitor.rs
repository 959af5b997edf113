//! Counts the commands that clients send to a server, as seen by the server.

#[path = "../../../examples/support/monitor.rs"]
mod line;

use crate::{Result, redis_server::RedisServer};
use std::time::Duration;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// Counts the commands of all clients between [`start`](Self::start) and [`stop`](Self::stop). A script counts as one
/// command. The commands that it calls and the setup of connections do not count.
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

    /// Returns the number of commands until now.
    pub(crate) async fn stop(mut self, server: &RedisServer) -> Result<usize> {
        // Redis shows commands in execution order, so all earlier commands come before this marker.
        let mut connection = server.connection().await?;
        let _: String = redis::cmd("ECHO").arg(MARKER).query_async(&mut connection).await?;
        timeout(PATIENCE, self.until_marker()).await.map_err(|_| "MONITOR does not show what was sent")?
    }

    async fn until_marker(&mut self) -> Result<usize> {
        let (mut sent, mut line) = (0, Vec::new());
        loop {
            line.clear();
            if self.stream.read_until(b'\n', &mut line).await? == 0 {
                return Err("the server closed the connection".into());
            }
            let line = String::from_utf8_lossy(&line);
            if line.contains(MARKER) {
                return Ok(sent);
            }
            sent += usize::from(line::work(&line).is_some());
        }
    }
}

const MARKER: &str = "end of the count";
const PATIENCE: Duration = Duration::from_secs(20);
