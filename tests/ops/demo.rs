//! The requests of the live page of `axum_app`, without a browser.

use crate::{
    app::App,
    client::{send, send_with},
};
use serde_json::Value;
use stampede_guard_support::{example, program::complaint};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
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

#[tokio::test]
async fn demo_stops_no_redis_but_its_own() {
    let app = App::start(&[]).await;
    for change in ["redis/stop", "redis/start"] {
        assert_eq!(app.demo(change).await, 409, "{change}");
    }
    let mut command = example("axum_app");
    command.args(["--own-redis", "--listen", "127.0.0.1:0"]).env("PATH", "");
    let complaint = complaint(command, 1).await;
    assert!(complaint.contains("no redis-server on the PATH"), "{complaint}");
}

/// Fails if the events do not end with the server, which waits for all responses.
#[tokio::test]
async fn server_stops_while_a_page_is_open() {
    let app = App::start(&[]).await;
    let mut page = TcpStream::connect(&app.address).await.expect("it listens");
    let request = format!("GET /demo/events HTTP/1.1\r\nhost: {}\r\n\r\n", app.address);
    page.write_all(request.as_bytes()).await.expect("it reads");
    let mut events = String::new();
    while !events.contains("\ndata: {") {
        let mut seen = [0; 1024];
        let read = page.read(&mut seen).await.expect("it answers");
        assert!(read > 0, "the stream goes on: {events}");
        events.push_str(&String::from_utf8_lossy(&seen[..read]));
    }
    assert!(events.starts_with("HTTP/1.1 200 "), "{events}");
    assert_eq!(app.stop().await, Some(0));
}
