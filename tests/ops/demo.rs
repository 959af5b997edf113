//! The requests of the live page of `axum_app`, without a browser.

use crate::{
    app::App,
    client::{exchange, send, send_with, status},
};
use serde_json::Value;
use stampede_guard_support::{example, program::complaint};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

#[tokio::test]
async fn demo_sends_one_herd_at_a_time() {
    let app = App::start(&[]).await;
    let [guarded, unguarded] = ["/demo/herd?guard=true&requests=50", "/demo/herd?guard=false&requests=50"];
    let (first, second) = tokio::join!(send("POST", &app.address, guarded), send("POST", &app.address, unguarded));
    assert_eq!((first.0.min(second.0), first.0.max(second.0)), (200, 409), "{first:?} {second:?}");

    for (herd, calls) in [(guarded, 1), (unguarded, 50)] {
        let (status, figures) = send("POST", &app.address, herd).await;
        let figures: Value = serde_json::from_str(&figures).expect("it answers with JSON");
        assert_eq!(
            (status, &figures["origin_calls"], &figures["failed"]),
            (200, &calls.into(), &0.into()),
            "{figures}"
        );
    }
    for requests in ["0", "5001", "many"] {
        assert_eq!(app.demo(&format!("herd?guard=true&requests={requests}")).await, 400, "{requests}");
    }
}

/// Without the check, each case changes the origin.
#[tokio::test]
async fn demo_refuses_requests_of_other_sites() {
    let app = App::start(&["--delay", "0"]).await;
    let own = format!("origin: http://{}\r\nsec-fetch-site: same-origin\r\n", app.address);
    let cases = [
        ("origin: http://evil.example\r\n", 403, 200),
        ("origin: null\r\n", 403, 200),
        ("sec-fetch-site: cross-site\r\n", 403, 200),
        ("sec-fetch-site: same-site\r\n", 403, 200),
        (&own, 204, 503),
        ("", 204, 503),
    ];
    for (fields, answer, report) in cases {
        let answered = send_with("POST", &app.address, "/demo/origin?failing=true", fields).await;
        assert_eq!(answered.0, answer, "{fields}: {}", answered.1);
        assert_eq!(send("GET", &app.address, "/unguarded/report/1").await.0, report, "after {fields}");
        assert_eq!(app.demo("origin?failing=false").await, 204);
    }
}

/// DNS rebinding: a site lets its own name resolve to this server, so that `Origin` equals `Host`. Seen to fail when only
/// these two were compared.
#[tokio::test]
async fn demo_answers_only_under_a_local_name() {
    let app = App::start(&["--delay", "0"]).await;
    let port = app.address.split_once(':').expect("address and port").1;
    let requests = [("GET", "/", 200), ("POST", "/demo/origin?failing=false", 204), ("POST", "/demo/invalidate", 204)];
    let local = ["127.0.0.1", "192.0.2.7", "[::1]", "localhost", "LocalHost"];
    for (method, path, allowed) in requests {
        let ask = async |host: &str| {
            let fields = format!("host: {host}\r\norigin: http://{host}\r\nsec-fetch-site: same-origin\r\n");
            exchange(&app.address, &format!("{method} {path} HTTP/1.0\r\n{fields}\r\n")).await
        };
        for host in local {
            for host in [host.to_owned(), format!("{host}:{port}")] {
                assert_eq!(status(&ask(&host).await), allowed, "{method} {path} of {host}");
            }
        }
        for host in
            ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example", "localhost.evil.example"]
        {
            assert_eq!(status(&ask(host).await), 403, "{method} {path} of {host}");
        }
        assert_eq!(status(&exchange(&app.address, &format!("{method} {path} HTTP/1.0\r\n\r\n")).await), 403, "no host");
    }
    let events = exchange(&app.address, "GET /demo/events HTTP/1.0\r\nhost: evil.example\r\n\r\n").await;
    assert_eq!(status(&events), 403, "{events}");

    let page = exchange(&app.address, "GET / HTTP/1.0\r\nhost: localhost\r\n\r\n").await;
    assert!(page.contains("\r\ncontent-security-policy: frame-ancestors 'none'\r\n"), "{page}");
}

/// Seen to fail when each answer without a call of its own counted as saved.
#[tokio::test]
async fn demo_counts_no_failed_answer_as_saved() {
    let app = App::start(&[]).await;
    assert_eq!(app.demo("origin?failing=true").await, 204);
    let (_, figures) = send("POST", &app.address, "/demo/herd?guard=true&requests=50").await;
    let figures: Value = serde_json::from_str(&figures).expect("it answers with JSON");
    assert_eq!((&figures["failed"], &figures["saved_calls"]), (&50.into(), &0.into()), "{figures}");
}

#[tokio::test]
async fn demo_stops_no_redis_but_its_own() {
    let app = App::start(&[]).await;
    for change in ["redis/stop", "redis/start"] {
        assert_eq!(app.demo(change).await, 409, "{change}");
    }
    let mut command = example("axum_app");
    command.args(["--own-redis", "--listen", "127.0.0.1:0"]).env("PATH", "").env_remove("STAMPEDE_REDIS_SERVER");
    let complaint = complaint(command, 1).await;
    assert!(complaint.contains("no redis-server on the PATH"), "{complaint}");
}

/// The origin takes 300 ms for each call.
#[tokio::test]
async fn demo_adds_up_what_the_guard_has_saved() {
    let app = App::start(&[]).await;
    for herd in ["guard=true&requests=50", "guard=true&requests=50&cold=false&id=7", "guard=false&requests=9"] {
        assert_eq!(app.demo(&format!("herd?{herd}")).await, 200);
    }
    let (_, event) = first_event(&app).await;
    let saved = &event["saved"];
    assert_eq!((&saved["requests"], &saved["calls"]), (&100.into(), &99.into()), "{event}");
    assert!(saved["seconds"].as_f64().is_some_and(|seconds| seconds >= 99.0 * 0.3), "{event}");
}

/// Fails if the events do not end with the server, which waits for all responses.
#[tokio::test]
async fn server_stops_while_a_page_is_open() {
    let app = App::start(&[]).await;
    let (_page, _) = first_event(&app).await;
    assert_eq!(app.stop().await, Some(0));
}

/// Returns the stream of events, and the first of them.
async fn first_event(app: &App) -> (TcpStream, Value) {
    let mut page = TcpStream::connect(&app.address).await.expect("it listens");
    let request = format!("GET /demo/events HTTP/1.1\r\nhost: {}\r\n\r\n", app.address);
    page.write_all(request.as_bytes()).await.expect("it reads");
    let mut lines = BufReader::new(&mut page).lines();
    loop {
        let line = lines.next_line().await.expect("it answers").expect("the stream goes on");
        if let Some(event) = line.strip_prefix("data: ") {
            let event = serde_json::from_str(event).expect("an event is JSON");
            return (page, event);
        }
    }
}
