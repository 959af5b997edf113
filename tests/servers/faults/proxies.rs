//! Proxies that refuse commands, each in its own words, and pass all other commands on.

use super::{guards, keys, repeat, survives_fresh};
use crate::{
    SECOND,
    kit::{calls_of_a_herd, patient},
    load::Load,
    support::RedisServer,
};
use std::net::Ipv4Addr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

/// A proxy that replies to some commands with an error. An error without text closes the connection.
struct Proxy {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Proxy {
    async fn of(server: &RedisServer, refused: &'static [&'static str], error: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let (port, to) = (listener.local_addr().expect("an address").port(), server.port());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                connections.spawn(async move {
                    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else { return };
                    let ((requests, mut replies), (from, to)) = (client.split(), server.split());
                    let mut from = from;
                    tokio::select! {
                        _ = copy(&mut from, &mut replies) => {}
                        () = pass_on(requests, to, refused, error) => {}
                    }
                });
            }
        });
        Self { port, _tasks: tasks }
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a client")
    }
}

/// Passes on the commands. In place of a refused one the server gets a script that returns the error, so that replies keep
/// their order.
async fn pass_on(
    mut requests: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    refused: &[&str],
    error: &str,
) {
    let mut waiting = Vec::new();
    while requests.read_buf(&mut waiting).await.is_ok_and(|read| read > 0) {
        let (mut begun, mut passed) = (0, Vec::new());
        while let Some((name, end)) = command_in(&waiting[begun..]) {
            let command = &waiting[begun..begun + end];
            begun += end;
            if !refused.iter().any(|refused| name.eq_ignore_ascii_case(refused.as_bytes())) {
                passed.extend_from_slice(command);
            } else if error.is_empty() {
                return;
            } else {
                let reply = redis::cmd("EVAL").arg("return redis.error_reply(ARGV[1])").arg(0).arg(error).to_owned();
                passed.extend(reply.get_packed_command());
            }
        }
        waiting.drain(..begun);
        if to.write_all(&passed).await.is_err() {
            return;
        }
    }
}

/// Returns the name of the first command (`*2 $3 GET $1 k`, in lines) and where it ends, if it has arrived.
fn command_in(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let number = |at: usize| {
        let length = bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let number: usize = std::str::from_utf8(bytes.get(at + 1..at + length)?).ok()?.parse().ok()?;
        Some((number, at + length + 2))
    };
    let (words, mut at) = number(0)?;
    let mut name = None;
    for _ in 0..words {
        let (length, begins) = number(at)?;
        at = begins + length + 2;
        name = name.or(Some(begins..begins + length));
    }
    Some((bytes.get(name?)?, bytes.get(..at)?.len()))
}

/// What a proxy for many servers cannot do: it does not know which server is meant, or which client.
const OF_ONE_SERVER: [&str; 11] =
    ["CLIENT", "CLUSTER", "CONFIG", "INFO", "MULTI", "PING", "PUBLISH", "SCRIPT", "SUBSCRIBE", "TIME", "WAIT"];
const WORDS: [&str; 3] =
    ["ERR unknown command", "unsupported command", "NOPERM this proxy has no permissions to run the command"];

/// Answers are shared, and waiters poll. The connections break once in between.
///
/// Seen to fail (1 stale) if a fill needs no lease.
#[tokio::test]
async fn proxy_that_refuses_commands_serves_nothing_stale() {
    for error in WORDS {
        let server = RedisServer::start();
        let proxy = Proxy::of(&server, &OF_ONE_SERVER, error).await;
        assert_eq!(calls_of_a_herd(&[(); 2].map(|()| patient(proxy.client())), "herd").await, 1, "{error}");
        survives_fresh(error, guards(|| proxy.client()), async || {
            repeat(&server, 5, "CLIENT KILL TYPE normal SKIPME yes").await;
        })
        .await;
    }
}

/// No script is executed, or no connection is kept: each process fetches for itself.
#[tokio::test]
async fn proxy_that_refuses_scripts_leaves_answers_to_the_origin() {
    for (refused, error) in [(&["EVALSHA"][..], WORDS[0]), (&["EVALSHA"], ""), (&["CLIENT", "INFO"], "")] {
        let server = RedisServer::start();
        let proxy = Proxy::of(&server, refused, error).await;
        let load = Load::new(guards(|| proxy.client()), keys());
        let running = tokio::spawn(load.clone().run());
        sleep(4 * SECOND).await;
        load.end(running, &format!("{refused:?} {error:?}")).await;
        assert!(load.store_errors() > 0);
    }
}
