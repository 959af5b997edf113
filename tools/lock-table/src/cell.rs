//! Measures one recipe with one number of clients.

use crate::{
    Result,
    args::Duty,
    client::{Count, READY},
    recipes::{How, Row},
};
use redis::aio::MultiplexedConnection;
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// The sums over all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) tries: u64,
    pub(crate) acquires: u64,
    /// The acquires of the client with the most.
    pub(crate) max_share: u64,
    /// The acquires of the client with the fewest.
    pub(crate) min_share: u64,
    pub(crate) violations: u64,
}

pub(crate) async fn measure(row: &Row, clients: u32, duty: &Duty, server: &mut MultiplexedConnection) -> Result<Cell> {
    let spawned: Result<Vec<Client>> = (0..clients).map(|_| Client::spawn(duty)).collect();
    let mut clients = spawned?;
    for client in &mut clients {
        let line = client.line(CLIENT_TIMEOUT).await?;
        if line != READY {
            return Err(format!("a client said {line}").into());
        }
    }
    let before = scripts(server).await?;
    for client in &mut clients {
        client.stdin.write_all(b"start\n").await?;
    }
    let mut counts = Vec::with_capacity(clients.len());
    for client in &mut clients {
        let line = client.line(duty.lasts + CLIENT_TIMEOUT).await?;
        counts.push(serde_json::from_str::<Count>(&line)?);
    }
    let scripts = scripts(server).await? - before;
    let shares = || counts.iter().map(|count| count.acquires);
    let sum = |of: fn(&Count) -> u64| counts.iter().map(of).sum::<u64>();
    let acquires = sum(|count| count.acquires);
    // Each acquired lock was released by one script.
    let queued = match row.how {
        How::Queued(_) | How::TriesThenQueued(_) => scripts.saturating_sub(acquires),
        How::Bare | How::None | How::Spins(_) => 0,
    };
    Ok(Cell {
        tries: sum(|count| count.tries) + queued,
        acquires,
        max_share: shares().max().unwrap_or_default(),
        min_share: shares().min().unwrap_or_default(),
        violations: sum(|count| count.violations),
    })
}

/// A child process. It is killed on drop.
struct Client {
    _process: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Client {
    /// Starts the child in its own process group, so that Ctrl-C reaches the parent only. The parent ends its clients.
    fn spawn(duty: &Duty) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--client").arg(serde_json::to_string(duty)?);
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdin = process.stdin.take().ok_or("a client has no stdin")?;
        let stdout = process.stdout.take().ok_or("a client has no stdout")?;
        Ok(Self { _process: process, stdin, stdout: BufReader::new(stdout).lines() })
    }

    async fn line(&mut self, limit: Duration) -> Result<String> {
        let line = timeout(limit, self.stdout.next_line()).await;
        Ok(line.map_err(|_| "a client does not answer")??.ok_or("a client ended before it was done")?)
    }
}

/// Returns the number of scripts that the server has run.
async fn scripts(server: &mut MultiplexedConnection) -> Result<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(server).await?;
    let calls = |line: &str| {
        let calls = ["cmdstat_evalsha:calls=", "cmdstat_eval:calls="].iter().find_map(|name| line.strip_prefix(name));
        calls.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok())
    };
    Ok(info.lines().filter_map(calls).sum())
}

const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);
