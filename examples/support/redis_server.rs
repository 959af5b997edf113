//! A Redis of our own, for fleets that were not given one.
#![allow(dead_code, reason = "every example uses a part of it")]

use crate::Result;
use std::{io, net::TcpListener, process::Stdio, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// A `redis-server` that keeps nothing; killed when this is dropped.
pub(crate) struct RedisServer {
    pub(crate) url: String,
    port: u16,
    process: Child,
    dir: TempDir,
}

impl RedisServer {
    /// Starts the `redis-server` of the PATH on a free port.
    pub(crate) async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = run(port, &dir).await?;
        Ok(Self { url: format!("redis://127.0.0.1:{port}"), port, process, dir })
    }

    /// Kills it and waits until it is gone; dropping it would not wait.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.kill().await
    }

    /// Ends it at once. From then on connections are refused.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Starts a killed one again, empty and on the same port.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        let mut tried = 0;
        loop {
            match run(self.port, &self.dir).await {
                Ok(process) => {
                    self.process = process;
                    return Ok(());
                }
                // For a moment the port may be that of somebody's outgoing connection.
                Err(_) if tried < TRIES => tried += 1,
                Err(error) => return Err(error),
            }
            sleep(PAUSE).await;
        }
    }

    /// Its process, unless it was killed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.id()
    }
}

async fn run(port: u16, dir: &TempDir) -> Result<Child> {
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
    Ok(process)
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "this needs a Redis, and there is no redis-server on the PATH: install one, or name a running \
             one with --redis URL; --help says what goes without"
                .to_owned()
        }
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
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
