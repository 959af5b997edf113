//! A real `redis-server`, which never outlives the process that started it.

mod running;

use self::running::Running;
use super::signal::signal;
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use std::{
    net::TcpListener,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

/// A server on a free port of the loopback interface, without persistence, in a directory of its own.
///
/// It dies with its owner, and with the test process however that ends. Starting takes some 20 ms and blocks; if
/// `redis-server` is missing or does not come up, that is a panic.
#[derive(Debug)]
pub(crate) struct RedisServer {
    port: u16,
    args: Vec<String>,
    running: Mutex<Option<Running>>,
}

impl RedisServer {
    /// A server for this test alone. Only on such a one count, flush, pause or kill.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// The same with further arguments: `RedisServer::with(&["--maxmemory", "4mb"])`.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::listening("--port", args)
    }

    /// The same over TLS alone; the arguments name its certificates. [`client`](Self::client) and what is built on it do
    /// not reach it.
    pub(crate) fn tls(args: &[&str]) -> Self {
        Self::listening("--tls-port", args)
    }

    fn listening(port_flag: &str, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().chain(&[port_flag]).map(|arg| (*arg).to_owned()).collect();
        // Between our look for a free port and the server's bind, somebody else may take it.
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            if let Some(running) = Running::start(port, &args) {
                return Self { port, args, running: Mutex::new(Some(running)) };
            }
        }
        panic!("{PORTS_TRIED} free ports in a row were taken before redis-server could bind them");
    }

    /// The server that all tests of this binary share, started by the first who asks. Keep to keys of your own.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(self.url()).expect("the URL is well-formed")
    }

    /// One that waits for answers as long as it takes: a busy machine is no fault of the server's.
    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        self.client().get_multiplexed_async_connection_with_config(&config).await.expect("the server is up")
    }

    /// Forgets every key; scripts and connections stay.
    pub(crate) async fn flushall(&self) {
        let () = redis::cmd("FLUSHALL").query_async(&mut self.connection().await).await.expect("the server is up");
    }

    /// Stops the server in its tracks: connections stay open, connecting still works, nothing answers.
    pub(crate) fn pause(&self) {
        signal("STOP", self.pid());
    }

    /// Undoes [`pause`](Self::pause); what was sent meanwhile is executed now.
    pub(crate) fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// Ends the server at once; afterwards connections are refused. Does nothing if it was killed before.
    pub(crate) fn kill(&self) {
        *self.running() = None;
    }

    /// Kills the server, if it still runs, and starts one without data on the same port.
    pub(crate) async fn restart(&self) {
        self.kill();
        let (port, args) = (self.port, self.args.clone());
        let running = tokio::task::spawn_blocking(move || start_again(port, &args)).await;
        *self.running() = Some(running.expect("the server starts again"));
    }

    fn pid(&self) -> u32 {
        self.running().as_ref().expect("the server was killed").pid()
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that nobody listened on a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback interface has a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

/// The port may belong to somebody's outgoing connection for a moment.
fn start_again(port: u16, args: &[String]) -> Running {
    for _ in 0..RESTARTS_TRIED {
        if let Some(running) = Running::start(port, args) {
            return running;
        }
        thread::sleep(RESTART_PAUSE);
    }
    panic!("port {port} was taken by another process while no server ran on it");
}

const PORTS_TRIED: usize = 10;
const RESTARTS_TRIED: usize = 100;
const RESTART_PAUSE: Duration = Duration::from_millis(50);
