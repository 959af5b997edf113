//! The data connection: made when it is needed, by a task that outlives the request, and again when it breaks.

use super::{StoreError, Timestamp, script, server_clock::ServerClock};
use crate::store::BoxFuture;
use futures_util::{FutureExt, future::Shared};
use redis::{
    Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike, io::tcp::TcpSettings,
};
use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Sends a command. Dropping the future does not take it back.
pub(super) trait Link: Send + Sync {
    fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>>;

    /// How many connections have been made.
    fn connections(&self) -> u64;
}

/// Where connections come from.
pub(super) trait Connect: Send + Sync + 'static {
    type Connection: ConnectionLike + Clone + Send + Sync + 'static;

    fn connect(&self) -> impl Future<Output = RedisResult<Self::Connection>> + Send;
}

impl Connect for redis::Client {
    type Connection = redis::aio::MultiplexedConnection;

    async fn connect(&self) -> RedisResult<Self::Connection> {
        // Timeouts of answers are the guard's: redis-rs would not reconnect after one anyhow.
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        self.get_multiplexed_async_connection_with_config(&config).await
    }
}

#[cfg(feature = "cluster")]
impl Connect for redis::cluster::ClusterClient {
    type Connection = redis::cluster_async::ClusterConnection;

    async fn connect(&self) -> RedisResult<Self::Connection> {
        self.get_async_connection().await
    }
}

/// Any connection of redis-rs, or one that behaves like it, as a store: `StampedeGuard::new(Connection(pooled))`.
#[derive(Clone, Debug)]
pub struct Connection<C>(pub C);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connect for Connection<C> {
    type Connection = C;

    async fn connect(&self) -> RedisResult<C> {
        Ok(self.0.clone())
    }
}

/// The current connection, or the attempt to make it, which everybody who needs it awaits.
pub(super) struct Dialled<C: Connect> {
    connect: Arc<C>,
    clock: Arc<ServerClock>,
    made: Arc<AtomicU64>,
    current: Mutex<Option<Dial<C::Connection>>>,
    /// Since when no command was answered, and how many were given up since.
    silence: Mutex<Option<(Timestamp, u32)>>,
}

struct Dial<C> {
    attempt: Shared<BoxFuture<'static, RedisResult<C>>>,
    /// Tells one attempt from the next.
    number: u64,
    begun: Timestamp,
}

impl<C: Connect> Dialled<C> {
    pub(super) fn new(connect: C, clock: Arc<ServerClock>) -> Self {
        Self {
            connect: Arc::new(connect),
            clock,
            made: Arc::default(),
            current: Mutex::default(),
            silence: Mutex::default(),
        }
    }

    /// The current attempt; a new one if there is none, or the last one failed a while ago.
    fn dial(&self) -> (Shared<BoxFuture<'static, RedisResult<C::Connection>>>, u64) {
        let mut current = self.lock();
        let last = current.as_ref().map_or(0, |dial| dial.number);
        if let Some(dial) = &*current {
            let failed = matches!(dial.attempt.peek(), Some(Err(_)));
            if !failed || Timestamp::now().since(dial.begun) < PAUSE {
                return (dial.attempt.clone(), dial.number);
            }
        }
        let (connect, clock, made) = (self.connect.clone(), self.clock.clone(), self.made.clone());
        let task = tokio::spawn(async move {
            let connected = async {
                let mut connection = connect.connect().await?;
                introduce(&mut connection, &clock).await?;
                made.fetch_add(1, Relaxed);
                Ok(connection)
            };
            let late = |_| Err(RedisError::from((ErrorKind::Io, "no connection in time")));
            timeout(2 * CONNECT_TIMEOUT, connected).await.unwrap_or_else(late)
        });
        let task = AbortOnDropHandle::new(task);
        let attempt = async move {
            match task.await {
                Ok(connected) => connected,
                Err(_) => Err(RedisError::from((ErrorKind::Io, "the runtime of the connection has ended"))),
            }
        };
        let dial = Dial { attempt: attempt.boxed().shared(), number: last + 1, begun: Timestamp::now() };
        let attempt = dial.attempt.clone();
        *current = Some(dial);
        (attempt, last + 1)
    }

    /// Forgets a connection that is of no use, unless that was done already, or it is younger than `age`: a server that
    /// stays a replica is not to be connected to with every command.
    fn hang_up(&self, number: u64, age: Duration) {
        let mut current = self.lock();
        let this = |dial: &Dial<C::Connection>| {
            let connected = matches!(dial.attempt.peek(), Some(Ok(_)));
            dial.number == number && connected && Timestamp::now().since(dial.begun) >= age
        };
        if current.as_ref().is_some_and(this) {
            *current = None;
            *lock(&self.silence) = None;
        }
    }

    /// A command was given up before it was answered. redis-rs keeps a connection on which nothing is answered; after
    /// several, and for long enough, it is taken for dead.
    fn given_up(&self, number: u64) {
        let now = Timestamp::now();
        let mut silence = lock(&self.silence);
        let (since, given_up) = silence.map_or((now, 1), |(since, given_up)| (since, given_up + 1));
        *silence = Some((since, given_up));
        drop(silence);
        if given_up >= SILENT_COMMANDS && now.since(since) >= SILENCE {
            self.hang_up(number, SILENCE);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Dial<C::Connection>>> {
        lock(&self.current)
    }
}

impl<C: Connect> Link for Dialled<C> {
    fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
        Box::pin(async move {
            let (attempt, number) = self.dial();
            let mut connection = attempt.await?;
            let mut asked = Asked { link: self, number, answered: false };
            let answer = cmd.query_async(&mut connection).await;
            asked.answered = true;
            *lock(&self.silence) = None;
            match &answer {
                Err(error) if is_broken(error) => self.hang_up(number, Duration::ZERO),
                Err(error) if is_demoted(error) => self.hang_up(number, SILENCE),
                _ => {}
            }
            answer
        })
    }

    fn connections(&self) -> u64 {
        self.made.load(Relaxed)
    }
}

/// A command on its way. Dropped, it was given up.
struct Asked<'a, C: Connect> {
    link: &'a Dialled<C>,
    number: u64,
    answered: bool,
}

impl<C: Connect> Drop for Asked<'_, C> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.given_up(self.number);
        }
    }
}

/// Nothing in here panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads the scripts and learns the server's time. A server that refuses either is still of use: scripts are sent in
/// full where they are not loaded, and stamps tell the time as well.
async fn introduce<C: ConnectionLike>(connection: &mut C, clock: &ServerClock) -> RedisResult<()> {
    let pipeline = script::introduction();
    let sent = Timestamp::now();
    match connection.req_packed_commands(&pipeline, 0, pipeline.len()).await {
        Ok(answers) => {
            if let Some(Value::Array(time)) = answers.last()
                && let [seconds, micros] = &time[..]
                && let (Ok(seconds), Ok(micros)) = (script::number(seconds), script::number(micros))
            {
                clock.learn(seconds * 1_000_000 + micros, sent, Timestamp::now());
            }
            Ok(())
        }
        Err(error) if is_broken(&error) => Err(error),
        Err(_) => Ok(()),
    }
}

fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_connection_refusal()
}

/// The server has become a replica: its name may lead to the new master by now.
fn is_demoted(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

pub(super) fn store_error(error: RedisError) -> StoreError {
    match error.kind() {
        _ if is_broken(&error) => StoreError::disconnected(error),
        ErrorKind::Server(_) | ErrorKind::Extension => StoreError::refused(error),
        _ => StoreError::new(error),
    }
}

/// The client with sockets that send at once, and that notice when nobody is there any more.
pub(super) fn tuned(client: redis::Client) -> redis::Client {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(5));
    let info = client.get_connection_info().clone().set_tcp_settings(settings);
    redis::Client::open(info).unwrap_or(client)
}

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// So many commands in a row are given up before a connection is taken for dead,
const SILENT_COMMANDS: u32 = 4;
/// and for so long nothing was answered.
const SILENCE: Duration = Duration::from_secs(1);
/// After an attempt that failed, the next one waits.
const PAUSE: Duration = Duration::from_millis(100);
