//! The examples, each run as the process that a user would start.
#![cfg(all(feature = "axum", feature = "bincode", feature = "redis"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own randomness")]

use serde_json::Value;
use stampede_guard_support::{
    RedisServer, example,
    program::{BOUND, complaint, printed},
};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

fn axum_app(args: &[&str]) -> Command {
    let mut command = example("axum_app");
    command.args(args);
    command
}

/// Runs a herd and returns the line of JSON at the end and the table above it.
async fn herd(args: &[&str]) -> (Value, String) {
    let printed = printed(axum_app(args)).await;
    let (report, json) = printed.trim_end().rsplit_once('\n').expect("more than one line");
    (serde_json::from_str(json).expect("the last line is JSON"), report.to_owned())
}

#[tokio::test]
async fn the_apps_herd_costs_one_origin_call() {
    let (json, report) = herd(&["--herd", "200", "--json"]).await;
    let mut fields: Vec<_> = json.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["compute_ms", "failed", "keys", "last_answer_ms", "origin_calls", "processes", "redis_commands", "requests"]
    );
    let of = |field: &str| json[field].as_u64().expect("a number");
    assert_eq!((of("requests"), of("processes"), of("keys"), of("compute_ms")), (200, 1, 1, 300));
    assert_eq!((of("origin_calls"), of("failed"), of("redis_commands")), (1, 0, 0));
    assert!(of("last_answer_ms") >= 300, "no request is answered before the report is computed");
    assert!(report.contains("199 of 200 expensive calls were saved"), "{report}");
    for row in ["requests", "processes", "origin calls", "failed", "first answer", "p50", "p99", "last answer", "Redis"]
    {
        assert!(report.lines().any(|line| line.starts_with(row)), "no row `{row}` in\n{report}");
    }
}

#[tokio::test]
async fn the_lock_is_acquired_extended_lost_and_released() {
    let server = RedisServer::shared();
    let mut command = example("lock");
    command.args(["--redis", &server.url()]);
    let printed = printed(command).await;
    let (mut waiters, rest): (Vec<_>, Vec<_>) = printed.lines().partition(|line| line.starts_with("waiter "));
    waiters.sort_unstable(); // on a busy machine they may come in another order
    assert_eq!(
        waiters,
        ["waiter 1 has it", "waiter 2 has it", "waiter 3 has it", "waiter 4 has it", "waiter 5 has it"]
    );
    for said in [
        "acquired \"report\"",
        "a second time: ",
        "released",
        "extended, ",
        "worked for ",
        "lost; ",
        "released too late: ",
    ] {
        assert!(rest.iter().any(|line| line.starts_with(said)), "no `{said}` in\n{printed}");
    }
}

#[tokio::test]
async fn the_apps_fleet_costs_one_origin_call() {
    let (json, report) = herd(&["--herd", "200", "--processes", "2", "--json"]).await;
    assert_eq!((&json["requests"], &json["processes"]), (&200.into(), &2.into()));
    assert_eq!((&json["origin_calls"], &json["failed"]), (&1.into(), &0.into()), "{report}");
    let commands = json["redis_commands"].as_u64().expect("a number");
    assert!((1..=3 + 3 * 2).contains(&commands), "{commands} Redis commands\n{report}");
}

#[tokio::test]
async fn the_apps_herd_costs_one_origin_call_per_report() {
    let server = RedisServer::start();
    let args = ["--herd", "100", "--keys", "5", "--delay", "50", "--json", "--redis", &server.url()];
    let (json, report) = herd(&args).await;
    assert_eq!((&json["keys"], &json["origin_calls"], &json["compute_ms"]), (&5.into(), &5.into(), &50.into()));
    assert!(report.contains("each of the 5 reports was computed once"), "{report}");
}

#[tokio::test]
async fn bad_flags_are_explained() {
    let cases: [&[&str]; 6] = [
        &["--herd", "many"],
        &["--herd", "0"],
        &["--nonsense"],
        &["--processes", "2"],
        &["--herd", "2", "--keys", "3"],
        &["--herd", "2", "--redis", "no url"],
    ];
    for args in cases {
        let complaint = complaint(axum_app(args), 2).await;
        assert!(complaint.contains("error:") && complaint.contains("Usage:"), "{args:?}: {complaint}");
    }
    for (name, usage) in [("axum_shop", "Usage:"), ("fetcher", "usage:")] {
        let mut example = example(name);
        example.arg("--nonsense");
        assert!(complaint(example, 2).await.contains(usage), "{name}");
    }
}

#[tokio::test]
async fn a_fleet_without_a_redis_server_is_refused_clearly() {
    let mut command = axum_app(&["--herd", "10", "--processes", "2"]);
    command.env("PATH", "").env_remove("STAMPEDE_REDIS_SERVER");
    let complaint = complaint(command, 1).await;
    assert!(complaint.contains("no redis-server on the PATH") && complaint.contains("--redis URL"), "{complaint}");
}

/// Returns the address that a server prints in its first line, after `before`.
async fn address(server: &mut Child, before: &str) -> SocketAddr {
    let mut lines = BufReader::new(server.stdout.as_mut().expect("a pipe")).lines();
    let line = timeout(BOUND, lines.next_line()).await.expect("it starts in time").expect("UTF-8").expect("a line");
    line.strip_prefix(before).expect("where it listens").parse().expect("an address")
}

async fn get(server: SocketAddr, path: &str) -> String {
    ask(server, &format!("GET {path}"), "", "").await
}

/// Sends one request on its own connection; `fields` are whole lines.
async fn ask(server: SocketAddr, line: &str, fields: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(server).await.expect("it listens");
    let common = format!("host: reports.example\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    let request = format!("{line} HTTP/1.1\r\n{common}{fields}\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("it answers");
    response
}

#[cfg(unix)]
#[tokio::test]
async fn the_app_serves_until_it_is_interrupted() {
    for (signal, delay) in [("INT", "50"), ("TERM", "0")] {
        let mut app = axum_app(&["--listen", "127.0.0.1:0", "--delay", delay]).spawn().expect("it starts");
        let address = address(&mut app, "listening on http://").await;

        let (first, second) = (get(address, "/report/1").await, get(address, "/report/1").await);
        for answer in [&first, &second] {
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("report 1: all is well\n"), "{answer}");
        }
        assert!(first.contains("stampede-guard; fwd=uri-miss; fwd-status=200; stored"), "{first}");
        assert!(second.contains("stampede-guard; hit"), "{second}");
        assert!(get(address, "/origin-calls").await.ends_with("\r\n1"));

        let pid = app.id().expect("it runs").to_string();
        let kill = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, signal, &pid]).status().await;
        assert!(kill.is_ok_and(|status| status.success()));
        let status = timeout(BOUND, app.wait()).await.expect("it ends").expect("it is our child");
        assert_eq!(status.code(), Some(0), "after {signal}");
    }
}

/// A process of the shop.
struct ShopProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    at: SocketAddr,
}

impl ShopProcess {
    async fn start(args: &[&str]) -> Self {
        let mut child = example("axum_shop").args(args).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut shop = Self { child, lines, at: SocketAddr::from(([127, 0, 0, 1], 0)) };
        shop.at = shop.address("listening on ").await.parse().expect("an address");
        shop
    }

    async fn address(&mut self, before: &str) -> String {
        let line = timeout(BOUND, self.lines.next_line()).await.expect("in time").expect("UTF-8").expect("a line");
        line.strip_prefix(before).expect("an address").to_owned()
    }

    /// Returns the line of a cookie.
    async fn login(&self, user: &str) -> String {
        let answer = ask(self.at, "POST /login", "", user).await;
        let (_, cookie) = answer.split_once("set-cookie: ").expect("a session");
        format!("cookie: {}\r\n", cookie.split(';').next().expect("a token"))
    }

    /// Returns what it prints until it ends.
    async fn log(mut self) -> Vec<String> {
        let mut log = Vec::new();
        while let Some(line) = timeout(BOUND, self.lines.next_line()).await.expect("it ends").expect("UTF-8") {
            log.push(line);
        }
        log
    }
}

/// The database is asked once for the product, once again after each change, and for a session only if
/// no login has stored it.
#[tokio::test]
async fn the_shop_shows_its_new_price_at_once() {
    let server = RedisServer::start();
    for args in [&[][..], &["--redis", &server.url()]] {
        let mut shop = ShopProcess::start(args).await;
        let (owner, german) = (shop.login("owner").await, "accept-language: de\r\n");
        let shown =
            [("/products/tea", "", "tea: "), ("/prices", &*owner, "tea: "), ("/", "", "Tea: "), ("/", german, "Tee: ")];
        for price in ["3", "4.5"] {
            for (path, fields, what) in shown {
                for from_origin in [true, false] {
                    let answer = ask(shop.at, &format!("GET {path}"), fields, "").await;
                    assert!(answer.contains(&format!("{what}{price} EUR")), "{path}: {answer}");
                    assert_eq!(answer.contains("; fwd-status="), from_origin, "{path}: {answer}");
                }
            }
            for _ in 0..2 {
                let private = ask(shop.at, "GET /basket", &owner, "").await;
                assert!(private.ends_with("owner: \n") && private.contains("; fwd-status="), "{private}");
            }
            let changed = ask(shop.at, "POST /products/tea", &owner, "450").await;
            assert!(changed.contains(" 303 ") && changed.contains("location: /prices"), "{changed}");
        }
        for (line, fields, body, status) in [
            ("POST /products/tea", &*owner, "much", "400"),
            ("POST /products/tea", "", "1", "401"),
            ("POST /products/tea", &shop.login("guest").await, "1", "403"),
            ("POST /products/coffee", &owner, "1", "404"),
            ("POST /rate", &shop.login("guest").await, "", "403"),
            ("POST /rate", &owner, "", "204"),
            ("GET /products/coffee", "", "", "404"),
            ("GET /basket", "cookie: session=guessed\r\n", "", "401"),
        ] {
            let answer = ask(shop.at, line, fields, body).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer}");
        }
        shop.child.kill().await.expect("it runs");
        let log = shop.log().await;
        for line in ["GET /products/tea: Miss", "GET /: Miss", "GET /basket: Bypass", "POST /products/tea: Bypass"] {
            assert!(log.iter().any(|logged| logged == line), "no `{line}` in\n{log:#?}");
        }
        let count = |part: &str| log.iter().filter(|line| line.contains(part)).count();
        let asked = ["asking the bank", "Product { name: \"tea\" }", "Session {"].map(count);
        assert_eq!(asked, [1, 2, 1], "{log:#?}");
    }
}

/// Two processes share a Redis and a database.
#[tokio::test]
async fn the_shops_processes_share_products_and_sessions() {
    let server = RedisServer::start();
    let mut first = ShopProcess::start(&["--redis", &server.url()]).await;
    let database = first.address("database on ").await;
    let second = ShopProcess::start(&["--redis", &server.url(), "--database", &database]).await;
    let guest = first.login("guest").await;
    for (number, shop) in [&first, &second, &first].into_iter().enumerate() {
        let page = get(shop.at, "/products/tea").await;
        assert!(page.contains(&format!("{} left", 10 - number)), "{page}");
        let ordered = ask(second.at, "POST /products/tea/order", &guest, "").await;
        assert!(ordered.contains(" 303 "), "{ordered}");
    }
    assert!(ask(first.at, "GET /basket", &guest, "").await.ends_with("guest: tea, tea, tea\n"));
    assert!(ask(second.at, "POST /logout", &guest, "").await.contains(" 303 "));
    assert!(ask(first.at, "GET /basket", &guest, "").await.starts_with("HTTP/1.1 401 "));
    first.child.kill().await.expect("it runs");
    let log = first.log().await;
    let count = |part: &str| log.iter().filter(|line| line.contains(part)).count();
    assert_eq!((count("Product { name"), count("Session { token")), (3, 1), "{log:#?}");
}

/// The request in progress is answered, and its page stays for other processes.
#[cfg(unix)]
#[tokio::test]
async fn the_shop_answers_and_stores_before_it_stops() {
    let server = RedisServer::start();
    let mut first = ShopProcess::start(&["--redis", &server.url(), "--latency", "500"]).await;
    first.address("database on ").await;
    let at = first.at;
    let page = tokio::spawn(async move { get(at, "/products/tea").await });
    assert!(first.address("database: ").await.contains("Product"));
    let pid = first.child.id().expect("it runs").to_string();
    let kill = Command::new("sh").args(["-c", r#"kill -s TERM "$0""#, &pid]).status().await;
    assert!(kill.is_ok_and(|status| status.success()));
    assert!(page.await.expect("no panic").contains("tea: 3 EUR"));
    let status = timeout(BOUND, first.child.wait()).await.expect("it ends").expect("it is our child");
    assert_eq!(status.code(), Some(0));
    assert_eq!(first.log().await.last().map(String::as_str), Some("stopped"));
    let second = ShopProcess::start(&["--redis", &server.url()]).await;
    let page = get(second.at, "/products/tea").await;
    assert!(page.contains("; hit"), "{page}");
}

#[tokio::test]
async fn the_fetcher_asks_its_database_once() {
    let server = RedisServer::start();
    for args in [&[][..], &["--redis".to_owned(), server.url()], &["--redis".to_owned(), server.url()]] {
        let mut fetcher = example("fetcher");
        fetcher.args(args);
        let printed = printed(fetcher).await;
        for line in ["1000 callers got User", "database calls: 1", "filled 1, "] {
            assert!(printed.contains(line), "{args:?}: no `{line}` in\n{printed}");
        }
        let busiest: Vec<_> = printed.lines().last().into_iter().flat_map(str::split_whitespace).collect();
        assert_eq!(busiest[..3], ["user:42", "1000", "999"], "{args:?}: {printed}");
        let ms = |column: usize| busiest[column].parse::<u32>().expect("a number");
        assert!(ms(3) >= ms(5) && ms(5) >= 300, "{args:?}: {printed}");
    }
}

/// Its clients share one call, the page is stored, and nothing is left when a supervisor stops it.
#[cfg(unix)]
#[tokio::test]
async fn the_hyper_server_asks_its_bank_once() {
    let mut server = example("hyper_server").arg("127.0.0.1:0").spawn().expect("it starts");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let mut line = async || timeout(BOUND, lines.next_line()).await.expect("in time").expect("UTF-8");
    let at = line().await.expect("a line").strip_prefix("listening on ").expect("where").parse().expect("an address");
    let herd: Vec<_> = (0..20).map(|_| tokio::spawn(get(at, "/rates"))).collect();
    for answer in herd {
        let answer = answer.await.expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("1 EUR = 1.09 USD\n"), "{answer}");
    }
    assert!(get(at, "/rates").await.contains("; hit"));
    assert!(get(at, "/other").await.starts_with("HTTP/1.1 404"));
    let pid = server.id().expect("it runs").to_string();
    let kill = Command::new("sh").args(["-c", r#"kill -s TERM "$0""#, &pid]).status().await;
    assert!(kill.is_ok_and(|status| status.success()));
    assert_eq!(line().await.as_deref(), Some("asking the bank"));
    assert!(line().await.is_some_and(|line| line.starts_with("stopped after Stats")));
    assert_eq!(timeout(BOUND, server.wait()).await.expect("it ends").expect("it is our child").code(), Some(0));
}

#[tokio::test]
async fn the_client_calls_its_upstream_once() {
    let printed = printed(example("tower_client")).await;
    let lines = [
        "requests: 201, upstream calls: 1",
        "1.09 USD | stampede-guard; fwd=uri-miss; fwd-status=200; stored",
        "miss; collapsed",
        "1.09 USD | stampede-guard; hit",
    ];
    for line in lines {
        assert!(printed.contains(line), "no `{line}` in\n{printed}");
    }
}

#[tokio::test]
async fn the_proxy_asks_its_origin_once() {
    let mut app = axum_app(&["--listen", "127.0.0.1:0"]).spawn().expect("it starts");
    let origin = address(&mut app, "listening on http://").await;
    let mut proxy = example("reverse_proxy");
    proxy.args(["--listen", "127.0.0.1:0", "--fresh-for", "60s", "--origin", &format!("http://{origin}")]);
    let mut proxy = proxy.spawn().expect("it starts");
    let proxy = address(&mut proxy, "listening on ").await;
    let path = "/unguarded/report/1";
    let (first, second) = (get(proxy, path).await, get(proxy, path).await);
    for answer in [&first, &second] {
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("report 1: all is well\n"), "{answer}");
    }
    assert!(second.contains("stampede-guard; hit"), "{second}");
    assert!(get(origin, "/origin-calls").await.ends_with("\r\n1"));
}

/// An origin closes an idle connection at any time. A request with a body that the proxy sends just then is lost,
/// because it cannot be sent twice.
#[tokio::test]
async fn the_proxy_closes_idle_connections_first() {
    let origin = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", origin.local_addr().expect("an address"));
    let mut proxy = example("reverse_proxy");
    proxy.args(["--listen", "127.0.0.1:0", "--origin", &url]);
    let mut proxy = proxy.spawn().expect("it starts");
    let proxy = address(&mut proxy, "listening on ").await;
    let one_connection = async {
        let (mut connection, _) = origin.accept().await.expect("the proxy connects");
        let mut received = [0; 4096];
        assert_ne!(connection.read(&mut received).await.expect("a request"), 0);
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("the proxy reads");
        connection.read(&mut received).await.expect("the end of the connection")
    };
    // Seen to fail with the 90 s that are the default of the client.
    let closed = timeout(Duration::from_secs(30), async { tokio::join!(one_connection, get(proxy, "/")).0 });
    assert_eq!(closed.await, Ok(0));
}

#[tokio::test]
async fn the_proxy_explains_arguments_that_it_cannot_use() {
    let cases: [&[&str]; 6] = [
        &[],
        &["--origin", "https://127.0.0.1:1"],
        &["--origin", "http://127.0.0.1:1/path"],
        &["--origin", "127.0.0.1:1"],
        &["--origin", "http://127.0.0.1:1", "--wait", "5"],
        &["--origin", "http://127.0.0.1:1", "--redis", "no url"],
    ];
    for args in cases {
        let mut proxy = example("reverse_proxy");
        proxy.args(args);
        let complaint = complaint(proxy, 2).await;
        assert!(complaint.contains("error:"), "{args:?}: {complaint}");
    }
}
