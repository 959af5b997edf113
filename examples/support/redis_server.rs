//! Starts a Redis for fleets that were not given one.

use crate::Result;
use std::{env, ffi::OsStr, io, net::TcpListener, process::Stdio, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// A `redis-server` without persistence, killed on drop.
#[derive(Debug)]
pub struct RedisServer {
    /// Where clients reach it.
    pub url: String,
    port: u16,
    process: Child,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server on a free port: `redis-server` of the PATH, or the binary that `STAMPEDE_REDIS_SERVER` names.
    pub async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut tried = 1;
        loop {
            let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            match run(port, &dir).await {
                Ok(process) => return Ok(Self { url: format!("redis://127.0.0.1:{port}"), port, process, dir }),
                // Another program may have taken the port since.
                Err(_) if tried < PORTS => tried += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Kills the server and waits for its end. Dropping it would not wait.
    pub async fn stop(mut self) -> Result<()> {
        self.kill().await
    }

    /// Kills the server. From then on connections are refused.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Starts a killed server again, empty and on the same port.
    pub async fn start_again(&mut self) -> Result<()> {
        let mut tried = 0;
        loop {
            match run(self.port, &self.dir).await {
                Ok(process) => {
                    self.process = process;
                    return Ok(());
                }
                // Another program's outgoing connection may use the port for a moment.
                Err(_) if tried < TRIES => tried += 1,
                Err(error) => return Err(error),
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the id of its process, unless it was killed.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }
}

async fn run(port: u16, dir: &TempDir) -> Result<Child> {
    let binary = env::var_os("STAMPEDE_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let mut command = Command::new(&binary);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .arg("--dir")
        .arg(dir.path());
    // Its own process group, so that Ctrl-C in the terminal reaches only this program, which then ends the server.
    #[cfg(unix)]
    command.process_group(0);
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| explain(&binary, &error))?;
    timeout(PATIENCE, ready(&mut process)).await.map_err(|_| "redis-server does not get ready")??;
    Ok(process)
}

fn explain(binary: &OsStr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if binary == "redis-server" => {
            "this needs a Redis, and there is no redis-server on the PATH: install it, or name a running \
             server with --redis URL; --help lists what works without"
                .to_owned()
        }
        _ => format!("cannot start {}: {error}", binary.display()),
    }
}

/// Reads the log until the server reports that it is ready.
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
/// Maximum number of ports that a start tries.
const PORTS: u32 = 3;
/// Maximum number of failed attempts to start again.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
