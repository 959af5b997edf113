//! The proxies: processes of the example `reverse_proxy`, each on its own port.

use crate::{
    client::{ask, get, in_time, raw},
    support::{RedisServer, eventually, example, signal},
};
use axum::http::request::Builder;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
};

/// Several proxies with one cache.
pub(crate) struct Fleet(Vec<Proxy>);

impl Fleet {
    /// Starts `n` proxies over the Redis server that all tests share, in the namespace `name`.
    pub(crate) async fn start(n: usize, origin: SocketAddr, name: &str) -> Self {
        // The timeout is long, so that a busy machine does not look like an outage.
        let redis = ["--redis", &RedisServer::shared().url(), "--redis-timeout", "5s"];
        Self::with(n, origin, &[&redis[..], &["--namespace", name]].concat()).await
    }

    pub(crate) async fn with(n: usize, origin: SocketAddr, args: &[&str]) -> Self {
        let mut proxies = Vec::with_capacity(n);
        for _ in 0..n {
            proxies.push(Proxy::start(origin, args).await);
        }
        Self(proxies)
    }

    /// Returns the address of the proxy that serves the `i`-th client.
    pub(crate) fn at(&self, i: usize) -> SocketAddr {
        self.0[i % self.0.len()].address
    }

    /// Stops every proxy, as [`Proxy::ends_well`] does.
    pub(crate) async fn ends_well(self) {
        for proxy in self.0 {
            proxy.ends_well().await;
        }
    }

    pub(crate) fn into_proxies(self) -> Vec<Proxy> {
        self.0
    }
}

/// One proxy process. Dropping it kills the process.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    process: Child,
}

impl Proxy {
    /// Starts a proxy. Its wait timeout is 60 s, so that a wait for the wrong event fails its test; later arguments
    /// win.
    pub(crate) async fn start(origin: SocketAddr, args: &[&str]) -> Self {
        let mut command = example("reverse_proxy");
        command.args(["--listen", "127.0.0.1:0", "--origin", &format!("http://{origin}")]);
        if !args.contains(&"--wait") {
            command.args(["--wait", "60s"]);
        }
        let mut process = command.args(args).spawn().expect("it starts");
        let mut lines = BufReader::new(process.stdout.as_mut().expect("a pipe")).lines();
        let line = in_time("the start of a proxy", lines.next_line()).await.expect("UTF-8").expect("a line");
        let address = line.strip_prefix("listening on ").expect("where it listens").parse().expect("an address");
        Self { address, process }
    }

    /// Starts a proxy without Redis.
    pub(crate) async fn alone(origin: SocketAddr) -> Self {
        Self::start(origin, &[]).await
    }

    /// Sends these bytes and returns the reply. Then checks that the proxy still works, in front of a
    /// [`Site::mirror`](crate::site::Site).
    pub(crate) async fn said(&self, bytes: impl AsRef<[u8]>) -> String {
        let said = raw(self.address, bytes).await;
        let answer = ask(self.address, get("/fine")).await;
        assert_eq!((answer.status, answer.text()), (200, "GET site.example /fine"), "after {said}");
        said
    }

    /// Tells the process to stop.
    pub(crate) fn terminate(&self) {
        signal("TERM", self.pid());
    }

    /// Stops the process and checks that it ends without an error message, so that nothing in it has panicked.
    pub(crate) async fn ends_well(self) {
        self.terminate();
        let output = in_time("the end of the proxy", self.process.wait_with_output()).await.expect("it is our child");
        let complaint = String::from_utf8(output.stderr).expect("it prints UTF-8");
        assert_eq!((output.status.code(), &*complaint), (Some(0), ""));
    }

    /// Returns the peak memory of the process in KiB.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line about the peak");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    fn pid(&self) -> u32 {
        self.process.id().expect("the process was not awaited")
    }
}

/// Waits until the response is stored. A response is served before it is stored, and `only-if-cached` does not wait for
/// the fill.
pub(crate) async fn is_stored(fleet: &Fleet, request: impl Fn() -> Builder) {
    let only = || request().header("cache-control", "only-if-cached");
    eventually("it is stored", async || ask(fleet.at(1), only()).await.status == 200).await;
}
