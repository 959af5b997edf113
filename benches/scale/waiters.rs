//! One key, and many processes that wait for it: up to 1,024 guards, each with its own connections, in four processes.
//!
//! The figures of a command come from the server's slow log, in which every command is slow enough. In half of the
//! rounds the waiters are stopped while they are woken, so that only the server and a client with its `PING` run.

use crate::{
    Extent, Task,
    kit::{self, head, median, ms, row},
    support::{Origin, RedisServer, child, eventually, processes},
};
use futures_util::future::join_all;
use redis::{Value, aio::MultiplexedConnection};
use serde::{Deserialize, Serialize};
use stampede_guard::StampedeGuard;
use std::{
    convert::Infallible,
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

#[derive(Serialize, Deserialize)]
pub(crate) struct Waiters {
    url: String,
    guards: usize,
    rounds: usize,
}

/// What one round has shown. Times are in microseconds.
#[derive(Default)]
struct Round {
    /// The script of a first question, on average.
    first: f64,
    questions: f64,
    /// The script of any question, on average.
    question: f64,
    /// The script that fills and wakes the waiters.
    wake: f64,
    messages: f64,
    /// The longest wait of a client for the reply to its `PING` while the waiters are woken.
    longest_ping: f64,
    last_answer: f64,
}

pub(crate) async fn measure(extent: Extent) {
    println!("{PROCESSES} processes, {} rounds, medians\n", extent.times(1_000).min(ROUNDS));
    head(&[
        "waiters",
        "messages",
        "questions per waiter",
        "script of a question, first and all, µs",
        "script that wakes, µs",
        "longest `PING`, waiters stopped, best round, ms",
        "longest `PING`, best round, ms",
        "last answer after the fetch, ms",
    ]);
    for &waiters in extent.of(&[16, 64, 128, 256, 1_024]) {
        let rounds = extent.times(1_000).min(ROUNDS);
        let server = RedisServer::with(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"]);
        let task = Waiters { url: server.url(), guards: waiters / PROCESSES, rounds: 2 * rounds };
        let mut children = processes::spawn(PROCESSES, "", &Task::Waiters(task));
        let leader = guard(&server.url()).await;
        let (mut running, mut stopped) = (Vec::new(), Vec::new());
        for number in 0..2 * rounds {
            let round = wake(&server, &leader, &mut children, number, waiters, number >= rounds).await;
            if number < rounds { &mut running } else { &mut stopped }.push(round);
        }
        for child in children {
            child.passed().await;
        }
        // Of the shortest round, because other processes of the machine interrupt the server.
        let longest_ping =
            |rounds: &[Round]| rounds.iter().map(|round| round.longest_ping).fold(f64::MAX, f64::min) / 1e3;
        let of = |rounds: &[Round], figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        row(&[
            waiters.to_string(),
            format!("{:.0}", of(&running, |round| round.messages)),
            format!("{:.2}", of(&running, |round| round.questions) / waiters as f64),
            format!("{:.1}, {:.1}", of(&running, |round| round.first), of(&running, |round| round.question)),
            format!("{:.0}", of(&stopped, |round| round.wake)),
            format!("{:.1}", longest_ping(&stopped)),
            format!("{:.1}", longest_ping(&running)),
            format!("{:.1}", of(&running, |round| round.last_answer) / 1e3),
        ]);
    }
}

/// Lets all children wait for a key, fills it, and measures how they are woken.
async fn wake(
    server: &RedisServer,
    leader: &StampedeGuard,
    children: &mut [processes::Child],
    number: usize,
    waiters: usize,
    stopped: bool,
) -> Round {
    let (origin, mut connection) = (Origin::gated(), server.connection().await);
    let fetch = tokio::spawn({
        let (leader, origin) = (leader.clone(), origin.clone());
        async move { leader.fetch(key(number), async move || Ok::<_, Infallible>(origin.call().await as u64)).await }
    });
    origin.arrived(1).await;
    reset(&mut connection).await;
    for child in &mut *children {
        child.wait_ready().await;
    }
    for child in &mut *children {
        child.go().await;
    }
    eventually("all wait", async || questions(&mut connection.clone()).await.len() >= waiters).await;
    let first = mean(&questions(&mut connection).await);
    if stopped {
        children.iter().for_each(processes::Child::pause);
    }
    let ping = Ping::start(server);
    let filled = SystemTime::now();
    origin.open();
    fetch.await.expect("no panic").expect("answered");
    leader.drain().await;
    if stopped {
        ping.end();
    }
    children.iter().for_each(processes::Child::resume);
    let mut last_answer = filled;
    for child in children {
        last_answer = last_answer.max(child.result().await);
    }
    ping.end();
    let (questions, wake) = (questions(&mut connection).await, mean(&scripts(&mut connection, FILL).await));
    Round {
        first,
        questions: questions.len() as f64,
        question: mean(&questions),
        wake,
        messages: messages(&mut connection).await,
        longest_ping: ping.longest(),
        last_answer: ms(last_answer.duration_since(filled).expect("the clock was not set meanwhile")) * 1e3,
    }
}

/// A client that sends `PING` without pause.
struct Ping {
    stop: Arc<AtomicBool>,
    longest: thread::JoinHandle<Duration>,
}

impl Ping {
    fn start(server: &RedisServer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server is up");
        stream.set_nodelay(true).expect("a connected socket");
        let (is_over, (started, has_started)) = (stop.clone(), mpsc::channel());
        let longest = thread::spawn(move || {
            let mut ping = || {
                let sent = Instant::now();
                stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut [0; 7])).expect("the server is up");
                sent.elapsed()
            };
            ping();
            started.send(()).expect("the other thread waits");
            let mut longest = Duration::ZERO;
            while !is_over.load(Relaxed) {
                longest = longest.max(ping());
            }
            longest
        });
        has_started.recv().expect("the server is up");
        Self { stop, longest }
    }

    fn end(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Returns the longest time until a reply, in microseconds.
    fn longest(self) -> f64 {
        self.end();
        ms(self.longest.join().expect("the thread does not panic")) * 1e3
    }
}

/// The duration of each `get_or_lease` since the last reset, in microseconds.
async fn questions(connection: &mut MultiplexedConnection) -> Vec<f64> {
    scripts(connection, LEAD).await
}

/// The duration of each call of this script since the last reset, in microseconds.
async fn scripts(connection: &mut MultiplexedConnection, text: &str) -> Vec<f64> {
    let hash = redis::Script::new(text).get_hash().to_owned();
    let log: Vec<Vec<Value>> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(connection).await.expect("the server is up");
    let duration = |entry: &Vec<Value>| {
        let [_, _, Value::Int(duration), Value::Array(args), ..] = &entry[..] else { panic!("unknown format") };
        let is_one = |arg: &Value| matches!(arg, Value::BulkString(arg) if hash.as_bytes() == arg);
        args.get(1).is_some_and(is_one).then_some(*duration as f64)
    };
    log.iter().filter_map(duration).collect()
}

async fn messages(connection: &mut MultiplexedConnection) -> f64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("the server is up");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls=")?.split(',').next());
    calls.map_or(0.0, |calls| calls.parse().expect("a number"))
}

async fn reset(connection: &mut MultiplexedConnection) {
    for (command, what) in [("SLOWLOG", "RESET"), ("CONFIG", "RESETSTAT")] {
        let () = redis::cmd(command).arg(what).query_async(connection).await.expect("the server is up");
    }
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len().max(1) as f64
}

/// Returns a guard that is connected and subscribed.
async fn guard(url: &str) -> StampedeGuard {
    let client = redis::Client::open(url).expect("the URL is well-formed");
    let minute = Duration::from_secs(60);
    let guard = kit::guard(client).store_timeout(minute).lease_ttl(minute);
    guard.fetch("warm-up", async || Ok::<_, Infallible>(0_u64)).await.expect("answered");
    eventually("messages arrive", async || guard.health().subscriber_up == Some(true)).await;
    guard
}

pub(crate) async fn be_some(waiters: Waiters) {
    let guards = join_all((0..waiters.guards).map(|_| guard(&waiters.url))).await;
    for number in 0..waiters.rounds {
        child::ready_and_wait().await;
        let ask = async |guard: &StampedeGuard| {
            guard.fetch(key(number), async || Ok::<_, Infallible>(0_u64)).await.expect("answered");
            SystemTime::now()
        };
        let answers = join_all(guards.iter().map(ask)).await;
        child::report(&answers.into_iter().max().expect("there are guards"));
    }
}

fn key(round: usize) -> String {
    format!("round {round}")
}

const PROCESSES: usize = 4;
const ROUNDS: usize = 5;
const LEAD: &str = include_str!("../../src/redis/lua/get_or_lease.lua");
const FILL: &str = include_str!("../../src/redis/lua/fill.lua");
