//! A Redis of our own, for fleets that were not given one.

use crate::Result;
use std::{io, net::TcpListener, process::Stdio, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// A `redis-server` that keeps nothing; killed when this is dropped.
pub(crate) struct RedisServer {
    pub(crate) url: String,
    process: Child,
    _dir: TempDir,
}

impl RedisServer {
    /// Starts the `redis-server` of the PATH on a free port.
    pub(crate) async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(dir.path());
        // A group of its own: Ctrl-C in the terminal is for us, who end it.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| explain(&error))?;
        timeout(PATIENCE, ready(&mut process)).await.map_err(|_| "redis-server does not get ready")??;
        Ok(Self { url: format!("redis://127.0.0.1:{port}"), process, _dir: dir })
    }

    /// Kills it and waits until it is gone; dropping it would not wait.
    pub(crate) async fn stop(mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "several processes share a Redis, and there is no redis-server on the PATH: \
             install one, name a running one with --redis URL, or stay with --processes 1"
            .to_owned(),
        _ => format!("cannot start redis-server: {error}"),
    }
}

/// Reads the log until it says so.
async fn ready(process: &mut Child) -> Result<()> {
    let stdout = process.stdout.take().ok_or("redis-server has no stdout")?;
    let mut log = BufReader::new(stdout).lines();
    let mut last = String::new();
    while let Some(line) = log.next_line().await? {
        if line.contains("Ready to accept connections") {
            return Ok(());
        }
        last = line;
    }
    Err(format!("redis-server does not start: {last}").into())
}

const PATIENCE: Duration = Duration::from_secs(10);
