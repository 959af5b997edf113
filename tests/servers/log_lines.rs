//! What an operator sees at the default level if Redis cannot be used: one line that names the setting and the way out,
//! within two seconds of the first request, however many requests and connections meet the cause.
//!
//! Each program is a process of its own, which logs as a plain `tracing_subscriber::fmt` does.

use crate::{
    Down, MS, SECOND, acl, cluster,
    kit::command,
    support::{
        CLOSED_PORT, RedisServer,
        child::{self, Env},
        processes,
    },
    tls::Authority,
};
use futures_util::{StreamExt, stream};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use serde::{Deserialize, Serialize};
use stampede_guard::{IntoEndpoint, NearCacheConfig, StampedeGuard};
use std::{net::TcpListener, pin::pin, time::Duration};
use tokio::time::{Instant, sleep};

/// The store of a program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Kind {
    Client,
    /// A `ConnectionManager` that connects with its first command. One that connects at once fails in the application.
    LazyManager,
    /// An existing connection that works, with wake-ups over a client of the URL.
    SubscriberOnly(u16),
}

#[derive(Serialize, Deserialize)]
struct Program {
    url: String,
    kind: Kind,
    store_timeout: Duration,
}

/// The program: requests for two seconds, and until its parent has seen what it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program() {
    let Some(Env { task: Program { url, kind, store_timeout }, .. }) = child::enabled::<Program>() else { return };
    tracing_subscriber::fmt().with_ansi(false).init();
    let client = redis::Client::open(url).expect("a URL");
    let guard = match kind {
        Kind::Client => StampedeGuard::new(client),
        Kind::LazyManager => {
            let settings = ConnectionManagerConfig::new().set_number_of_retries(1);
            let manager = ConnectionManager::new_lazy_with_config(client, settings);
            StampedeGuard::new(manager.expect("settings"))
        }
        Kind::SubscriberOnly(port) => {
            let works = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a URL");
            let connection = works.get_multiplexed_async_connection().await.expect("the server is up");
            StampedeGuard::new(connection.into_endpoint().subscribe_via(client))
        }
    };
    let guard = guard.near_cache(NearCacheConfig::max_bytes(8 << 20)).store_timeout(store_timeout);
    let (began, mut go) = (Instant::now(), pin!(child::ready_and_wait()));
    let (mut is_seen, mut n) = (false, 0_u64);
    while !is_seen || began.elapsed() < 2 * SECOND {
        let answers = [n % 5, n].map(|key| {
            let guard = guard.clone();
            tokio::spawn(async move { guard.fetch(key, async || Ok::<_, Down>(1)).await })
        });
        for answer in answers {
            assert_eq!(answer.await.expect("no panic").expect("the origin answers"), 1);
        }
        n += 1;
        tokio::select! {
            () = &mut go, if !is_seen => is_seen = true,
            () = sleep(10 * MS) => {}
        }
    }
}

/// Reports whether the program has printed a line that the default level shows, other than a line of the circuit
/// breaker.
fn is_warning(line: &str) -> bool {
    ["WARN ", "ERROR "].iter().any(|level| line.contains(level)) && !line.contains("circuit breaker opened")
}

/// Runs a program until it has logged a warning, if one is expected, and for two seconds at least. Returns its warnings.
async fn warnings(url: &str, kind: Kind, store_timeout: Duration, is_expected: bool) -> Vec<String> {
    let program = Program { url: url.to_owned(), kind, store_timeout };
    let mut child = processes::spawn(1, "log_lines::program", &program).into_iter().next().expect("a child");
    child.wait_ready().await;
    if is_expected {
        child.prints(is_warning).await;
    }
    child.go().await;
    let printed = child.passed().await;
    assert!(printed.iter().all(|line| !line.contains(SECRET)), "{printed:#?}");
    assert!(printed.iter().filter(|line| line.contains("circuit breaker")).count() <= 1, "{printed:#?}");
    printed.into_iter().filter(|line| is_warning(line)).collect()
}

/// Asserts that a program logs one line, which contains these words.
async fn logs_one_line(url: &str, kind: Kind, words: &[&str]) {
    // Long enough that a busy machine does not open the circuit breaker.
    logs_one_line_within(url, kind, 30 * SECOND, words).await;
}

async fn logs_one_line_within(url: &str, kind: Kind, store_timeout: Duration, words: &[&str]) {
    let warnings = warnings(url, kind, store_timeout, true).await;
    let [line] = &warnings[..] else { panic!("one line for {url}, {kind:?}: {warnings:#?}") };
    for word in words {
        assert!(line.contains(word), "no `{word}` for {url}, {kind:?}: {line}");
    }
}

const SECRET: &str = "battery-staple";
const UNREACHABLE: &str = "cannot connect to redis";
const URL_HINT: &str = "correct host, port and scheme";
const REFUSED: &str = "redis refuses to serve this client";
const PASSWORD_HINT: &str = "correct user and password in the URL";

#[tokio::test]
async fn wrong_port_is_logged_once() {
    let (server, address) = (RedisServer::start(), format!("127.0.0.1:{CLOSED_PORT}"));
    let (url, shown) = (format!("redis://app:{SECRET}@{address}/0"), format!("address=\"redis://{address}\""));
    let words = ["WARN stampede_guard: ", UNREACHABLE, &shown, "refused", URL_HINT, "`redis::Client::open`"];
    tokio::join!(
        logs_one_line(&url, Kind::Client, &words),
        logs_one_line(&url, Kind::LazyManager, &["WARN ", UNREACHABLE, "refused", URL_HINT]),
        logs_one_line(&url, Kind::SubscriberOnly(server.port()), &words),
    );
}

#[tokio::test]
async fn host_that_does_not_resolve_is_logged_once() {
    let url = format!("redis://:{SECRET}@no-such-host.invalid");
    let words = ["WARN ", UNREACHABLE, "address=\"redis://no-such-host.invalid:6379\"", URL_HINT];
    tokio::join!(
        logs_one_line(&url, Kind::Client, &words),
        logs_one_line(&url, Kind::LazyManager, &["WARN ", UNREACHABLE, URL_HINT]),
    );
}

/// The server answers, as `Health::store_reachable` says.
#[tokio::test]
async fn missing_database_is_logged_once() {
    let server = RedisServer::start();
    let url = format!("{}/99", server.url().trim_end_matches('/'));
    let words = ["ERROR ", REFUSED, "DB index is out of range", "correct the database in the URL"];
    tokio::join!(logs_one_line(&url, Kind::Client, &words), logs_one_line(&url, Kind::LazyManager, &words[..3]));
}

/// The first requests end before the attempt to connect does.
#[tokio::test]
async fn server_that_is_silent_is_logged_once() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://:{SECRET}@{}", silent.local_addr().expect("an address"));
    let words = ["WARN ", UNREACHABLE, "timed out", URL_HINT];
    tokio::join!(
        logs_one_line_within(&url, Kind::Client, 50 * MS, &words),
        logs_one_line_within(&url, Kind::LazyManager, 50 * MS, &words),
    );
}

#[tokio::test]
async fn wrong_scheme_is_logged_once() {
    let plain = RedisServer::start();
    let to_plain = format!("rediss://127.0.0.1:{}", plain.port());
    logs_one_line(&to_plain, Kind::Client, &["WARN ", UNREACHABLE, &to_plain, "`rediss://` for TLS"]).await;
}

#[tokio::test]
async fn wrong_url_of_tls_server_is_logged_once() {
    let authority = Authority::new();
    let Some(secure) = authority.server("no", &[]) else { return };
    let [no_tls, unknown_authority] =
        ["redis", "rediss"].map(|scheme| format!("{scheme}://127.0.0.1:{}", secure.port()));
    let words = ["WARN ", UNREACHABLE, &no_tls, "`rediss://` for TLS"];
    tokio::join!(
        logs_one_line(&no_tls, Kind::Client, &words),
        logs_one_line(
            &unknown_authority,
            Kind::Client,
            &["WARN ", UNREACHABLE, "name its authority", "`redis::Client::build_with_tls`"]
        ),
    );
}

#[tokio::test]
async fn wrong_password_is_logged_once() {
    let server = RedisServer::with(&["--requirepass", "correct-horse"]);
    let address = format!("127.0.0.1:{}", server.port());
    let (url, of_user) = (format!("redis://:{SECRET}@{address}"), format!("redis://app:{SECRET}@{address}"));
    let shown = format!("address=\"redis://{address}\"");
    let words = ["ERROR stampede_guard: ", REFUSED, &shown, PASSWORD_HINT, "`requirepass`"];
    tokio::join!(
        logs_one_line(&url, Kind::Client, &words),
        logs_one_line(&of_user, Kind::Client, &words),
        logs_one_line(&url, Kind::LazyManager, &["ERROR ", REFUSED, PASSWORD_HINT]),
    );
}

#[tokio::test]
async fn missing_password_is_logged_once() {
    let server = RedisServer::with(&["--requirepass", "correct-horse"]);
    let url = server.url();
    let [resp3, other] = ["?protocol=resp3", "1"].map(|end| format!("{}/{end}", url.trim_end_matches('/')));
    let words = ["ERROR ", REFUSED, "NOAUTH", PASSWORD_HINT];
    tokio::join!(
        logs_one_line(&url, Kind::Client, &words),
        logs_one_line(&resp3, Kind::Client, &words),
        logs_one_line(&url, Kind::LazyManager, &words),
        // redis-rs reports the refused database in place of the password, but over RESP3, which may be first.
        logs_one_line(&other, Kind::Client, &["ERROR ", REFUSED, PASSWORD_HINT]),
    );
}

/// Each connection needs rights of its own, and `+get` is one of two of them. Redis 6.2 does not name subcommands, and
/// only from 7.2 on does the server name a command that a script calls.
#[tokio::test]
async fn missing_right_is_logged_once() {
    let server = RedisServer::start();
    let (of_client, of_script) = (RedisServer::is_older_than(7, 0), RedisServer::is_older_than(7, 2));
    let rights = [
        ("+get", "`+get`"),
        ("+evalsha", "`+evalsha`"),
        ("+time", if of_script { "the commands that the scripts call" } else { "`+time`" }),
        ("+subscribe", "`+subscribe`"),
        ("&stampede-guard:*", "`&stampede-guard:*`"),
        ("+client|tracking", if of_client { "`+client` or its subcommand" } else { "`+client|tracking`" }),
        ("~{sg:*", "`~{sg:*`"),
    ];
    let programs = rights.iter().enumerate().map(async |(n, (right, named))| {
        let rules: Vec<_> = acl::documented().into_iter().filter(|rule| rule != right).collect();
        let rules = rules.join(" ");
        command::<()>(&server, &format!("ACL SETUSER app{n} reset {rules}")).await;
        let url = format!("redis://app{n}:secret@127.0.0.1:{}", server.port());
        let words = ["ERROR ", REFUSED, named, "`ACL SETUSER`", "stampede_guard::guide::rights"];
        logs_one_line(&url, Kind::Client, &words).await;
    });
    stream::iter(programs).buffer_unordered(3).collect::<()>().await;
}

#[tokio::test]
async fn plain_client_of_a_cluster_is_logged_once() {
    let nodes = cluster::nodes::<2>().await;
    let words = ["ERROR ", REFUSED, "Moved", "RedisEndpoint::cluster", "feature `cluster`"];
    logs_one_line(&nodes[0].url(), Kind::Client, &words).await;
}

/// A full server still answers, so that no circuit breaker opens.
#[tokio::test]
async fn server_that_refuses_writes_is_logged_once() {
    let server = RedisServer::with(&["--maxmemory", "1"]);
    logs_one_line(&server.url(), Kind::Client, &["WARN ", "the store refuses operations", "OOM"]).await;
}

#[tokio::test]
async fn working_server_causes_no_warning() {
    let server = RedisServer::with(&["--requirepass", SECRET]);
    let url = format!("redis://:{SECRET}@127.0.0.1:{}", server.port());
    let of = |kind| warnings(&url, kind, 30 * SECOND, false);
    let (of_client, of_manager) = tokio::join!(of(Kind::Client), of(Kind::LazyManager));
    assert_eq!([of_client, of_manager].concat(), [""; 0]);
}
