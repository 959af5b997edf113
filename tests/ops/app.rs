//! The running `axum_app`.

use crate::client;
use stampede_guard_support::{example, signal};
use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    time::timeout,
};

/// The example as a server on a free port, ended on drop.
pub(crate) struct App {
    process: Child,
    pub(crate) address: String,
}

impl App {
    /// Starts it with further arguments.
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", args).await
    }

    /// Starts it on an address, which is free.
    pub(crate) async fn start_at(address: &str, args: &[&str]) -> Self {
        let mut command = example("axum_app");
        command.args(["--listen", address]).args(args).stderr(Stdio::inherit());
        let mut process = command.spawn().expect("it starts");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let first = stdout.next_line().await.expect("it prints UTF-8").expect("it prints where it listens");
        tokio::spawn(async move { while let Ok(Some(_)) = stdout.next_line().await {} });
        let address = first.strip_prefix("listening on http://").expect("it says where it listens").to_owned();
        Self { process, address }
    }

    /// Sends a GET request, which has to succeed.
    pub(crate) async fn get(&self, path: &str) -> String {
        client::get(&self.address, path).await
    }

    /// Sends a POST request to the demo, and returns its status.
    pub(crate) async fn demo(&self, path: &str) -> u16 {
        client::send("POST", &self.address, &format!("/demo/{path}")).await.0
    }

    /// Returns the number of calls of the origin so far.
    pub(crate) async fn origin_calls(&self) -> u64 {
        self.get("/origin-calls").await.parse().expect("a number")
    }

    /// Kills the example, and returns its address. Not for one with `--own-redis`, which would go on.
    pub(crate) async fn kill(mut self) -> String {
        self.process.kill().await.expect("it is our child");
        self.address.clone()
    }

    /// Asks the example to end, and returns its exit code.
    pub(crate) async fn stop(mut self) -> Option<i32> {
        signal("TERM", self.process.id().expect("it runs"));
        let ended = timeout(PATIENCE, self.process.wait()).await;
        ended.expect("it ends in time").expect("it is our child").code()
    }
}

/// Asks the example to end, because a killed one leaves the Redis that it has started.
impl Drop for App {
    fn drop(&mut self) {
        let Some(pid) = self.process.id() else { return };
        signal("TERM", pid);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(TICK);
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(10);
