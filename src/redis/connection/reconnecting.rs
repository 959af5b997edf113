//! The data connections: made on first use by a task that outlives the request, and again when one of them breaks.
//!
//! The reads may have a connection of their own, because Redis executes nothing after a paused script on the same
//! connection. Both are made by one attempt, lead to one process of a server, and are replaced together: an invalidation
//! that was acknowledged on one of them is visible on the other.

use super::{
    attempts::{Attempts, CONNECT_TIMEOUT, within},
    clock::ServerClock,
    error_class::{ErrorClass, class},
    source::{Connect, Connections},
};
use crate::{
    clock::Timestamp,
    store::{
        error::BoxFuture,
        token::{Inbox, Token},
    },
    sync::{
        mutex::{Mutex, MutexGuard},
        shared::Shared,
    },
};
use futures_util::FutureExt;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio_util::task::AbortOnDropHandle;

/// A link that sends commands. Dropping a future does not take back a command that was sent.
pub(crate) trait CommandLink: Send + Sync {
    fn execute<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, RedisResult<Value>>;

    fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
        self.execute(Request::Command(cmd))
    }

    fn read<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
        self.execute(Request::Read(cmd))
    }

    fn send_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
        self.execute(Request::Pipeline(pipeline))
    }

    /// Reports whether reads have a connection of their own now.
    fn is_paired(&self) -> bool {
        false
    }

    /// Checks whether replies are still in step with requests. Called after a reply that cannot belong to its request.
    /// A connection that is out of step is replaced by the next command.
    fn verify(&self) -> BoxFuture<'_, ()>;

    /// Returns the number of the connection that serves this name now, among all connections of this process: another
    /// number whenever another server may serve it. 0 before the first one.
    fn connection(&self, name: &[u8]) -> u64;

    /// Returns the clock of the server that has the name.
    fn clock(&self, name: &dyn Fn() -> String) -> Arc<ServerClock>;

    /// Returns the failure domain of a name: that of its master, which passes on to the node that replaces it. Default: 0.
    fn failure_domain(&self, name: &[u8]) -> u16 {
        let _ = name;
        0
    }
}

/// What is sent.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Cmd),
    /// A command that only reads. It may be executed before commands that were sent earlier and have no reply yet.
    Read(&'a Cmd),
    /// Commands that are sent in one write. The reply is that to the last one, and an error the first one of any. The other
    /// commands may have been executed even so.
    Pipeline(&'a Pipeline),
}

/// The current connections, or the attempt to make them, which all callers share.
pub(in crate::redis) struct Reconnecting<C: Connect> {
    connect: Arc<C>,
    /// The first commands on every new connection: an [`introduction`](super::script::introduction).
    introduction: Arc<Pipeline>,
    /// Twice the number of the attempt that has last made connections, and 1 more if reads have one of their own.
    connected: Arc<AtomicU64>,
    attempt: Mutex<ConnectAttempt<C::Connection>>,
    /// The attempts of all links to the server, and its clock.
    pub(super) attempts: Arc<Attempts>,
}

/// The attempt to make the connections, and then its result.
type Attempted<C> = Shared<RedisResult<Arc<Connections<C>>>>;

/// The last attempt to connect, and what its connections have shown since.
struct ConnectAttempt<C> {
    /// `None` before the first attempt, and once one of its connections is unusable: both are dropped.
    connections: Option<Attempted<C>>,
    /// The number among all attempts of this process. 0 before the first one.
    number: u64,
    /// The [lead](Connect::lead) from before the attempt.
    lead: u64,
    started_at: Timestamp,
    /// For each [`Side`] the time of the first command without a reply since the last reply, the number of such
    /// commands, and the minimum time after which the connection is taken for dead.
    silence: [Option<(Timestamp, u32, Duration)>; 2],
    /// When the connection was begun to be made, or a command had no answer, if there was no reply since.
    doubted_at: Option<Timestamp>,
}

impl<C: Connect> Reconnecting<C> {
    pub(in crate::redis) fn new(connect: Arc<C>, introduction: Arc<Pipeline>, attempts: Arc<Attempts>) -> Self {
        let attempt = Mutex::new(ConnectAttempt::new(0, 0));
        Self { connect, introduction, connected: Arc::default(), attempt, attempts }
    }

    /// Reports whether there is a connection. Otherwise begins to connect, in the background.
    pub(in crate::redis) fn is_connected(&self) -> bool {
        self.current_attempt().0.now_or_never().is_some_and(|connection| connection.is_ok())
    }

    /// Reports whether the server may be gone: a command of the last second has no answer.
    #[cfg(feature = "cluster")]
    pub(super) fn is_in_doubt(&self) -> bool {
        self.attempt.lock().doubted_at.is_some_and(|at| Timestamp::now().since(at) < SILENCE)
    }

    /// Returns the current attempt and its number. Starts a new one if there is none, if the last one failed a while
    /// ago, or if its connection is outdated.
    fn current_attempt(&self) -> (Attempted<C::Connection>, u64) {
        let mut attempt = self.attempt.lock();
        let lead = self.connect.lead();
        if let Some(connections) = &attempt.connections
            && attempt.lead == lead
        {
            let failed = connections.is_done_and(Result::is_err);
            if !failed || Timestamp::now().since(attempt.started_at) < RECONNECT_PAUSE {
                return (connections.clone(), attempt.number);
            }
        }
        let (connect, introduction) = (self.connect.clone(), self.introduction.clone());
        let number = LAST_ATTEMPT.fetch_add(1, Relaxed) + 1;
        *attempt = ConnectAttempt::new(number, lead);
        let (attempts, connected) = (self.attempts.clone(), self.connected.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let made = establish(&*connect, &introduction, &attempts).await;
            match &made {
                // An earlier attempt may end later.
                Ok(made) => _ = connected.fetch_max(number * 2 + u64::from(made.reads.is_some()), Relaxed),
                Err(error) => {
                    // Without a connection one circuit breaker is enough. A later attempt may have ended.
                    let unpaired = |made| (made < number * 2).then_some(made & !1);
                    let _ = connected.fetch_update(Relaxed, Relaxed, unpaired);
                    attempts.log.connect_failed(error);
                }
            }
            made
        }));
        let ended = |_| Err(RedisError::from((ErrorKind::Io, "the runtime of the redis connection has ended")));
        let connections = Shared::new(async move { task.await.unwrap_or_else(ended) });
        attempt.connections = Some(connections.clone());
        (connections, number)
    }

    /// Returns the attempt with this number, locked, if it is still the current one.
    fn numbered(&self, number: u64) -> Option<MutexGuard<'_, ConnectAttempt<C::Connection>>> {
        let attempt = self.attempt.lock();
        (attempt.number == number && attempt.connections.is_some()).then_some(attempt)
    }

    /// Drops the connections, one of which is unusable, if they are still the current ones and at least `age` old. A
    /// server that stays a replica must not cause a new connection per command.
    fn disconnect(&self, number: u64, age: Duration) {
        if let Some(mut attempt) = self.numbered(number) {
            attempt.doubted_at = Some(Timestamp::now());
            if Timestamp::now().since(attempt.started_at) >= age {
                attempt.connections = None;
            }
        }
    }

    fn record_reply(&self, number: u64, side: Side) {
        let Some(mut attempt) = self.numbered(number) else { return };
        attempt.silence[side as usize] = None;
        attempt.doubted_at = None;
        // The server lives, so the main connection may be silent because writes are paused.
        if let (Side::Reads, [Some((.., limit)), _]) = (side, &mut attempt.silence) {
            *limit = PAUSE_OF_WRITES;
        }
    }

    /// Records a command that was given up before its reply. redis-rs keeps a connection without any replies.
    /// After `SILENT_COMMANDS` commands and `SILENCE` without a reply, the connection is taken for dead: the main one
    /// after `PAUSE_OF_WRITES` if reads were answered since.
    fn record_timeout(&self, number: u64, side: Side) {
        let Some(mut attempt) = self.numbered(number) else { return };
        let now = Timestamp::now();
        let (since, given_up, limit) = attempt.silence[side as usize].unwrap_or((now, 0, SILENCE));
        attempt.silence[side as usize] = Some((since, given_up + 1, limit));
        attempt.doubted_at = Some(now);
        if given_up + 1 >= SILENT_COMMANDS && now.since(since) >= limit {
            attempt.connections = None;
        }
    }

    /// Sends a PING with a random word.
    async fn ping(&self, mut connection: C::Connection, number: u64, side: Side) {
        let word = Token::unique(Inbox::unique());
        let mut pending = PendingCommand { link: self, number, side, answered: false };
        let echo = redis::cmd("PING").arg(word.as_bytes()).query_async(&mut connection).await;
        pending.answered = true;
        let out_of_step = match &echo {
            Ok(Value::BulkString(echo)) => echo[..] != word.as_bytes()[..],
            Ok(_) => true,
            // A permission error is still a reply to this PING, so the connection is in step. No reply proves nothing:
            // in a cluster another node may be down.
            Err(error) => matches!(class(error), ErrorClass::Refused | ErrorClass::Demoted),
        };
        if out_of_step {
            self.disconnect(number, SILENCE);
        }
    }
}

impl<C> ConnectAttempt<C> {
    fn new(number: u64, lead: u64) -> Self {
        let started_at = Timestamp::now();
        let (silence, doubted_at) = ([None, None], (number > 0).then_some(started_at));
        Self { connections: None, number, lead, started_at, silence, doubted_at }
    }
}

impl<C: Connect> CommandLink for Reconnecting<C> {
    fn execute<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, RedisResult<Value>> {
        Box::pin(async move {
            let (connections, number) = self.current_attempt();
            let connections = connections.await?;
            let (mut connection, side) = match (&request, &connections.reads) {
                (Request::Read(_), Some(reads)) => (reads.clone(), Side::Reads),
                _ => (connections.main.clone(), Side::Main),
            };
            let mut pending = PendingCommand { link: self, number, side, answered: false };
            let answer = match request {
                Request::Command(cmd) | Request::Read(cmd) => {
                    connection.req_packed_command(cmd).await.and_then(Value::extract_error)
                }
                Request::Pipeline(pipeline) => reply_to_last(pipeline, &mut connection).await,
            };
            let error = answer.as_ref().err();
            if let Some(error) = error {
                self.attempts.log.command_failed(error);
                if error.is_timeout() {
                    return answer; // the user's response timeout ended the command, so there is no reply
                }
            }
            pending.answered = true;
            self.record_reply(number, side);
            let min_age = match error.map(|error| (class(error), error.kind())) {
                Some((ErrorClass::Disconnected, _)) => Duration::ZERO,
                // Another connection would lead to the same node, and recent invalidations would be sent again.
                Some((ErrorClass::Unavailable, CLUSTER_DOWN)) => Duration::MAX,
                // The host name may resolve to another server by now, one that serves.
                Some((ErrorClass::Demoted | ErrorClass::Unavailable, _)) => SILENCE,
                Some((ErrorClass::Refused | ErrorClass::Misconfigured(_) | ErrorClass::Unknown, _)) | None => {
                    return answer;
                }
            };
            self.disconnect(number, min_age);
            answer
        })
    }

    fn is_paired(&self) -> bool {
        self.connected.load(Relaxed) % 2 == 1
    }

    /// Sends a PING on each connection. Timeouts cannot show this: while other commands
    /// are sent, each command gets a reply, but the one to another request.
    fn verify(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (connections, number) = self.current_attempt();
            let Some(Ok(connections)) = connections.now_or_never() else { return };
            if let Some(reads) = connections.reads.clone() {
                self.ping(reads, number, Side::Reads).await;
            }
            // A silent one may be paused, and would hold up the caller.
            if self.numbered(number).is_some_and(|attempt| attempt.silence[Side::Main as usize].is_none()) {
                self.ping(connections.main.clone(), number, Side::Main).await;
            }
        })
    }

    fn connection(&self, _: &[u8]) -> u64 {
        self.connected.load(Relaxed) / 2
    }

    fn clock(&self, _: &dyn Fn() -> String) -> Arc<ServerClock> {
        self.attempts.clock.clone()
    }
}

/// One of the two connections. Without a second one, all commands are of the main side.
#[derive(Clone, Copy)]
enum Side {
    Main,
    Reads,
}

/// A command in flight. If it is dropped without a reply, it was given up.
struct PendingCommand<'a, C: Connect> {
    link: &'a Reconnecting<C>,
    number: u64,
    side: Side,
    answered: bool,
}

impl<C: Connect> Drop for PendingCommand<'_, C> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.record_timeout(self.number, self.side);
        }
    }
}

/// Sends the commands in one write. Returns the last reply, or the first error among the replies.
async fn reply_to_last<C: ConnectionLike>(pipeline: &Pipeline, connection: &mut C) -> RedisResult<Value> {
    let replies = connection.req_packed_commands(pipeline, 0, pipeline.len()).await?;
    let mut last = Value::Nil;
    for reply in replies {
        last = reply.extract_error()?;
    }
    Ok(last)
}

/// Connects, loads the scripts, and asks for the server's time, in one round trip. A server that refuses these is still
/// of use: scripts that are not loaded are sent in full, and leases have stamps of the server's time too.
///
/// A connection of the application that repairs itself is made again in this way too. Its number changes, because it may
/// lead to another server.
async fn establish<C: Connect>(
    connect: &C,
    introduction: &Pipeline,
    attempts: &Attempts,
) -> RedisResult<Arc<Connections<C::Connection>>> {
    // Without the introduction: a connection that repairs itself has pauses of its own.
    let connections = attempts.run(connect.connect()).await?;
    let mut connection = connections.main.clone();
    let sent = Timestamp::now();
    let replies = connection.req_packed_commands(introduction, 0, introduction.len());
    match within(CONNECT_TIMEOUT, replies).await {
        Ok(replies) => {
            match replies.iter().any(|reply| matches!(reply, Value::ServerError(_))) {
                true => attempts.log.reached(),
                false => attempts.log.accepted(),
            }
            if let Some(time) = replies.last() {
                attempts.clock.learn_time(time, sent, Timestamp::now());
            }
        }
        Err(error) if class(&error) == ErrorClass::Disconnected || error.is_timeout() => return Err(error),
        Err(_) => {}
    }
    Ok(Arc::new(connections))
}

const CLUSTER_DOWN: ErrorKind = ErrorKind::Server(ServerErrorKind::ClusterDown);
/// The number of the last attempt of this process.
static LAST_ATTEMPT: AtomicU64 = AtomicU64::new(0);
/// Minimum time between two attempts of one link. The [attempts](Attempts) to one server are further apart.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum number of commands without a reply before a connection is taken for dead.
const SILENT_COMMANDS: u32 = 2;
/// Minimum time without a reply before a connection is taken for dead, and minimum time between replacements.
const SILENCE: Duration = Duration::from_secs(1);
/// Minimum time without a reply before the main connection is taken for dead while reads are answered. Longer than most
/// failovers pause writes. Shorter than an invalidation is sent again, about 8 s, and than the interval between two
/// messages of the subscriber: on a connection that is out of step, such a message may get the reply to another command,
/// which would end each silence.
const PAUSE_OF_WRITES: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::connection::source::Connection;
    use redis::RedisFuture;

    /// A connection that answers every command with these bytes.
    #[derive(Clone)]
    struct Fake(&'static [u8]);

    impl ConnectionLike for Fake {
        fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
            Box::pin(async { redis::parse_redis_value(self.0) })
        }

        fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn get_db(&self) -> i64 {
            0
        }
    }

    /// A source of two connections.
    struct Two {
        main: &'static [u8],
        reads: &'static [u8],
    }

    impl Connect for Two {
        type Connection = Fake;

        async fn connect(&self) -> RedisResult<Connections<Fake>> {
            Ok(Connections { main: Fake(self.main), reads: Some(Fake(self.reads)) })
        }
    }

    fn two(main: &'static [u8], reads: &'static [u8]) -> Reconnecting<Two> {
        Reconnecting::new(Arc::new(Two { main, reads }), Arc::default(), Arc::default())
    }

    async fn connection_number<C: Connect>(link: &Reconnecting<C>) -> u64 {
        let (connection, number) = link.current_attempt();
        assert!(connection.await.is_ok());
        number
    }

    /// Gives up one command less than the limit, over a time that is long enough.
    async fn give_up(link: &Reconnecting<Connection<Fake>>, number: u64) {
        for _ in 1..SILENT_COMMANDS {
            link.record_timeout(number, Side::Main);
            tokio::time::sleep(SILENCE).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn link_drops_a_connection_only_for_its_own_silence() {
        let link = Reconnecting::new(Arc::new(Connection(Fake(NIL))), Arc::default(), Arc::default());
        let first = connection_number(&link).await;
        link.disconnect(first, Duration::ZERO);
        let second = connection_number(&link).await;
        give_up(&link, first).await;
        link.record_timeout(first, Side::Main);
        link.disconnect(first, Duration::ZERO);
        assert_eq!(connection_number(&link).await, second, "results of the first connection do not affect the second");

        link.record_timeout(second, Side::Main);
        tokio::time::sleep(SILENCE).await;
        link.record_reply(second, Side::Main);
        give_up(&link, second).await;
        link.record_reply(first, Side::Main);
        assert_eq!(connection_number(&link).await, second, "a reply ends the silence");
        link.record_timeout(second, Side::Main);
        assert_ne!(connection_number(&link).await, second);
    }

    #[tokio::test(start_paused = true)]
    async fn link_counts_a_repaired_connection_as_a_new_one() {
        let link = Reconnecting::new(Arc::new(Connection(Fake(NIL))), Arc::default(), Arc::default());
        let first = connection_number(&link).await;
        assert_eq!(link.connection(b""), first);
        link.disconnect(first, Duration::ZERO);
        assert_eq!(link.connection(b""), first, "not repaired yet");
        let second = connection_number(&link).await;
        assert!(second > first && link.connection(b"") == second);
    }

    /// It repairs itself once a command has met its last failure, so that a pause between the attempts to use it would come
    /// on top of its own.
    ///
    /// Seen to fail if a failed introduction counts as a failed attempt to connect.
    #[tokio::test(start_paused = true)]
    async fn link_tries_a_self_repairing_connection_at_once() {
        #[derive(Clone)]
        struct Managed(Timestamp, Arc<Mutex<u32>>);

        impl ConnectionLike for Managed {
            fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
                Box::pin(async { Ok(Value::Nil) })
            }

            fn req_packed_commands<'a>(
                &'a mut self,
                _: &'a Pipeline,
                _: usize,
                _: usize,
            ) -> RedisFuture<'a, Vec<Value>> {
                Box::pin(async {
                    let mut met = self.1.lock();
                    *met += u32::from(self.0 <= Timestamp::now());
                    let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
                    if *met > 1 { Ok(Vec::new()) } else { Err(gone.into()) }
                })
            }

            fn get_db(&self) -> i64 {
                0
            }
        }

        let back_at = Timestamp::now().after(Duration::from_secs(60));
        let endpoint = Managed(back_at, Arc::default());
        let link = Reconnecting::new(Arc::new(Connection(endpoint)), Arc::default(), Arc::default());
        while link.send(&redis::cmd("PING")).await.is_err() {
            tokio::time::sleep(RECONNECT_PAUSE / 10).await;
        }
        let late = Timestamp::now().since(back_at);
        assert!(late < 4 * RECONNECT_PAUSE, "{late:?}");
    }

    /// A response timeout of the user ends a command before the guard's own timeout does.
    ///
    /// Seen to fail if such a timeout counts as a reply.
    #[tokio::test(start_paused = true)]
    async fn link_replaces_a_connection_whose_commands_time_out() {
        #[derive(Clone)]
        struct TimesOut;

        impl ConnectionLike for TimesOut {
            fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
                Box::pin(async { Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()) })
            }

            fn req_packed_commands<'a>(
                &'a mut self,
                _: &'a Pipeline,
                _: usize,
                _: usize,
            ) -> RedisFuture<'a, Vec<Value>> {
                Box::pin(async { Ok(Vec::new()) })
            }

            fn get_db(&self) -> i64 {
                0
            }
        }

        let link = Reconnecting::new(Arc::new(Connection(TimesOut)), Arc::default(), Arc::default());
        let (connection, first) = link.current_attempt();
        assert!(connection.await.is_ok());
        for _ in 0..SILENT_COMMANDS {
            assert_eq!(link.current_attempt().1, first);
            assert!(link.send(&redis::cmd("PING")).await.is_err());
            tokio::time::sleep(SILENCE).await;
        }
        assert!(link.send(&redis::cmd("PING")).await.is_err());
        assert_ne!(link.current_attempt().1, first);
    }

    /// Seen to fail for the first three if every reply but the word itself counts as the reply to another request.
    #[tokio::test(start_paused = true)]
    async fn link_keeps_its_connection_when_the_ping_check_is_denied() {
        for (answer, stays) in [
            ("-NOPERM no permissions to run the 'ping' command\r\n", true),
            ("-LOADING wait\r\n", true),
            ("?\r\n", true),
            ("-WRONGTYPE it holds the wrong kind of value\r\n", false),
            ("$4\r\nword\r\n", false),
            (":1\r\n", false),
        ] {
            let link = Reconnecting::new(Arc::new(Connection(Fake(answer.as_bytes()))), Arc::default(), Arc::default());
            let number = connection_number(&link).await;
            tokio::time::sleep(SILENCE).await;
            link.verify().await;
            assert_eq!(connection_number(&link).await == number, stays, "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn link_sends_reads_over_their_own_connection() {
        let link = two(b":1\r\n", b":2\r\n");
        assert!(!link.is_paired(), "there is no connection yet");
        let cmd = redis::cmd("GET");
        assert_eq!(
            (link.send(&cmd).await.ok(), link.read(&cmd).await.ok()),
            (Some(Value::Int(1)), Some(Value::Int(2)))
        );
        assert!(link.is_paired());
        let link = Reconnecting::new(Arc::new(Connection(Fake(NIL))), Arc::default(), Arc::default());
        assert_eq!((link.read(&cmd).await.ok(), link.is_paired()), (Some(Value::Nil), false));
    }

    /// A server that pauses its writes answers reads. A dead connection for reads is replaced sooner, because no pause
    /// explains its silence.
    ///
    /// Seen to fail if the main connection is replaced after a second, or never while reads are answered, and if its
    /// replies end the silence of the other one.
    #[tokio::test(start_paused = true)]
    async fn link_drops_both_connections_for_the_silence_of_one() {
        for (silent, other, limit) in [(Side::Main, Side::Reads, PAUSE_OF_WRITES), (Side::Reads, Side::Main, SILENCE)] {
            let link = two(NIL, NIL);
            let first = connection_number(&link).await;
            let begun = Timestamp::now();
            while connection_number(&link).await == first {
                link.record_timeout(first, silent);
                link.record_reply(first, other);
                tokio::time::sleep(SILENCE / 10).await;
            }
            let lived = Timestamp::now().since(begun);
            assert!((limit..limit + SILENCE / 5).contains(&lived), "{lived:?}");
        }
    }

    /// Seen to fail if only one of the connections is checked.
    #[tokio::test(start_paused = true)]
    async fn ping_check_drops_both_connections_if_one_is_out_of_step() {
        const DENIED: &[u8] = b"-NOPERM no permissions to run the 'ping' command\r\n";
        for (main, reads, stays) in [(DENIED, DENIED, true), (NIL, DENIED, false), (DENIED, NIL, false)] {
            let link = two(main, reads);
            let number = connection_number(&link).await;
            tokio::time::sleep(SILENCE).await;
            link.verify().await;
            assert_eq!(connection_number(&link).await == number, stays);
        }
    }

    /// A source whose attempts take these times, the last one first. There is another lead after the first one has begun,
    /// and the second one makes a pair.
    struct Superseded(Mutex<Vec<Duration>>);

    impl Connect for Superseded {
        type Connection = Fake;

        async fn connect(&self) -> RedisResult<Connections<Fake>> {
            let late = self.0.lock().pop().expect("an attempt");
            tokio::time::sleep(late).await;
            Ok(Connections { main: Fake(NIL), reads: late.is_zero().then_some(Fake(NIL)) })
        }

        fn lead(&self) -> u64 {
            u64::from(self.0.lock().len() < 2)
        }
    }

    /// Sentinels may name another master while the first attempt is under way, which then ends last.
    ///
    /// Seen to fail if the attempt that ends last decides.
    #[tokio::test(start_paused = true)]
    async fn link_stays_paired_when_an_earlier_attempt_ends_later() {
        let attempts = Mutex::new(vec![Duration::ZERO, SILENCE / 2]);
        let link = Reconnecting::new(Arc::new(Superseded(attempts)), Arc::default(), Arc::default());
        let (first, number) = link.current_attempt();
        tokio::task::yield_now().await;
        assert_ne!(connection_number(&link).await, number);
        assert!(link.is_paired());
        assert!(first.await.is_ok_and(|connections| connections.reads.is_none()));
        assert!(link.is_paired());
    }

    const NIL: &[u8] = b"$-1\r\n";
}
