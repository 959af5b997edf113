//! The servers of a herd.

use crate::{Result, app::app, args::Args, client::Client, origin::Origin, serve};
use std::{io, net::SocketAddr, process::Stdio, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

/// One server in this process, or several child processes. Dropping it kills the children.
pub(crate) struct Fleet {
    pub(crate) addresses: Vec<SocketAddr>,
    running: Running,
}

enum Running {
    Here { stop: oneshot::Sender<()>, served: JoinHandle<io::Result<()>> },
    Children(Vec<Child>),
}

impl Fleet {
    pub(crate) async fn start(args: &Args, redis: Option<&str>) -> Result<Self> {
        if args.processes() == 1 {
            Self::here(redis, args.delay()).await
        } else {
            Self::children(args.processes(), redis, args.delay()).await
        }
    }

    async fn here(redis: Option<&str>, delay: Duration) -> Result<Self> {
        let guard = serve::guard(redis)?;
        let listener = serve::on_free_port().await?;
        let addresses = vec![listener.local_addr()?];
        let (stop, stopped) = oneshot::channel();
        let stopped = async { _ = stopped.await };
        let served =
            tokio::spawn(serve::serve(listener, app(guard.clone(), Arc::new(Origin::new(delay))), guard, stopped));
        Ok(Self { addresses, running: Running::Here { stop, served } })
    }

    async fn children(processes: usize, redis: Option<&str>, delay: Duration) -> Result<Self> {
        let spawned: io::Result<Vec<Child>> = (0..processes).map(|_| spawn(redis, delay)).collect();
        let mut children = spawned?;
        let mut addresses = Vec::with_capacity(processes);
        for child in &mut children {
            addresses.push(in_time("starting a server", address_of(child)).await??);
        }
        Ok(Self { addresses, running: Running::Children(children) })
    }

    /// Sends a request through the guard of each server, because a guard connects to Redis with its first request.
    pub(crate) async fn warm_up(&self, path: &str) -> Result<()> {
        for &server in &self.addresses {
            Client::open(server).await?.get(path).await?;
        }
        Ok(())
    }

    /// Returns the number of reports computed so far, in all processes together.
    pub(crate) async fn origin_calls(&self) -> Result<u64> {
        let mut calls = 0;
        for &server in &self.addresses {
            let body = Client::open(server).await?.get("/origin-calls").await?;
            calls += body.parse::<u64>()?;
        }
        Ok(calls)
    }

    /// Stops the servers after the background work of their guards has ended.
    pub(crate) async fn stop(self) -> Result<()> {
        match self.running {
            Running::Here { stop, served } => {
                drop(stop);
                in_time("stopping the server", served).await???;
            }
            Running::Children(mut children) => {
                for child in &mut children {
                    drop(child.stdin.take());
                }
                for mut child in children {
                    let status = in_time("stopping a server", child.wait()).await??;
                    if !status.success() {
                        return Err(format!("a server process ended with {status}").into());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Starts this program again as a child in its own process group, so that Ctrl-C reaches the parent only. The parent
/// ends its children.
fn spawn(redis: Option<&str>, delay: Duration) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").args(["--delay", &delay.as_millis().to_string()]);
    command.args(redis.iter().flat_map(|url| ["--redis", url]));
    #[cfg(unix)]
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Waits until the child prints its address.
async fn address_of(child: &mut Child) -> Result<SocketAddr> {
    let stdout = child.stdout.take().ok_or("a server process has no stdout")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    Ok(line.ok_or("a server process ended before it served")?.parse()?)
}

async fn in_time<T>(what: &str, step: impl Future<Output = T>) -> Result<T> {
    Ok(timeout(PATIENCE, step).await.map_err(|_| format!("{what} takes longer than {PATIENCE:?}"))?)
}

const PATIENCE: Duration = Duration::from_secs(20);
