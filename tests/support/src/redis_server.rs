//! A real `redis-server`, which never outlives the process that started it.

mod binary;
mod cluster;
mod ports;
mod running;

use self::{
    ports::Ports,
    running::{Mode, NoTls, Running},
};
use super::signal::signal;
pub use ports::CLOSED_PORT;
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A server on a free port of the loopback interface, without persistence, in its own directory.
///
/// It dies with its owner, and with the test process however that ends. Starting takes about 20 ms and blocks. The
/// binary is `redis-server` of the PATH, or the one that `STAMPEDE_REDIS_SERVER` names. Panics if it does not start.
#[derive(Debug)]
pub struct RedisServer {
    ports: Ports,
    mode: Mode,
    args: Vec<String>,
    running: Mutex<Option<Running>>,
}

impl RedisServer {
    /// Starts a server for this test alone. Only such a server may be monitored, flushed, paused or killed.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments: `RedisServer::with(&["--maxmemory", "4mb"])`.
    pub fn with(args: &[&str]) -> Self {
        Self::listening(Mode::Plain, args)
    }

    /// Starts a server that allows `DEBUG`. Redis 6.2 always does, and does not know the argument.
    pub fn with_debug_command(args: &[&str]) -> Self {
        let allowed: &[_] = if Self::is_older_than(7, 0) { &[] } else { &["--enable-debug-command", "yes"] };
        Self::with(&[allowed, args].concat())
    }

    /// Starts a server that accepts only TLS; the arguments name its certificates. [`client`](Self::client) and the
    /// methods that use it do not reach it. Returns `None` if the binary was built without TLS.
    pub fn tls(args: &[&str]) -> Option<Self> {
        Self::try_listening(Mode::Tls, args).ok()
    }

    /// Starts a sentinel; the lines of its configuration name its masters:
    /// `RedisServer::sentinel(&["sentinel monitor main 127.0.0.1 6379 2"])`.
    pub fn sentinel(config: &[&str]) -> Self {
        Self::listening(Mode::Sentinel, config)
    }

    /// Returns how many bytes the server has received, with the bytes of this question.
    pub async fn received(&self) -> usize {
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("stats").query_async(&mut self.connection().await).await.expect("an answer");
        let (_, rest) = info.split_once("total_net_input_bytes:").expect("a count");
        rest.lines().next().and_then(|count| count.parse().ok()).expect("a number")
    }

    /// Reports whether the binary of all tests has a lower version. Valkey has versions of its own, from 7.2 on.
    pub fn is_older_than(major: u32, minor: u32) -> bool {
        binary::binary().version < (major, minor)
    }

    fn listening(mode: Mode, args: &[&str]) -> Self {
        Self::try_listening(mode, args).unwrap_or_else(|error| panic!("the server did not start: {error:?}"))
    }

    fn try_listening(mode: Mode, args: &[&str]) -> Result<Self, NoTls> {
        let ports = Ports::reserve(cluster::offsets(args));
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let running = Running::start(mode, ports.first(), &args)?;
        Ok(Self { ports, mode, args, running: Mutex::new(Some(running)) })
    }

    /// Returns the server that all tests of this binary share; the first call starts it. Each test uses keys of its
    /// own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub fn port(&self) -> u16 {
        self.ports.first()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("the URL is well-formed")
    }

    /// Returns a connection without timeouts, so that a busy machine does not look like a failure of the server.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        self.client().get_multiplexed_async_connection_with_config(&config).await.expect("the server is up")
    }

    /// Deletes every key; scripts and connections stay.
    pub async fn flushall(&self) {
        let () = redis::cmd("FLUSHALL").query_async(&mut self.connection().await).await.expect("the server is up");
    }

    /// Pauses the server: connections stay open, connecting still works, nothing answers.
    pub fn pause(&self) {
        signal("STOP", self.pid());
    }

    /// Undoes [`pause`](Self::pause); the server then executes the commands that were sent meanwhile.
    pub fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// Kills the server; afterwards connections are refused, because no other process gets the port. Does nothing if it was
    /// killed before.
    pub fn kill(&self) {
        *self.running() = None;
    }

    /// Kills the server if it still runs, and starts one without data on the same port. A sentinel starts with its first
    /// configuration.
    pub async fn restart(&self) {
        self.kill();
        let (mode, port, args) = (self.mode, self.port(), self.args.clone());
        let running = tokio::task::spawn_blocking(move || Running::start(mode, port, &args)).await;
        *self.running() = Some(running.expect("no panic").expect("the server starts again"));
    }

    fn pid(&self) -> u32 {
        self.running().as_ref().expect("the server was killed").pid()
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
