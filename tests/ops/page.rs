//! The live page of `axum_app` in a real browser.

use crate::{
    app::App,
    browser::{self, Browser},
    programs::{installed, repository},
};
use serde_json::{Value, json};
use stampede_guard_support::eventually;
use std::{env, fs};

#[tokio::test]
async fn page_shows_one_origin_call_for_a_herd() {
    if !installed(&browser::PROGRAMS) {
        return;
    }
    let app = App::start(&[]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    page.shows("#store", "embedded store").await;
    assert_eq!(page.run("return document.getElementById('redis').hidden").await, true, "no Redis to stop");

    page.click("#send-with").await;
    page.shows("#with .status", "1,000 requests, 1 origin call").await;
    page.shows("#with [data-of=saved_calls]", "999").await;

    page.choose("#requests", "200").await;
    page.click("#send-without").await;
    page.shows("#without .status", "200 requests, 200 origin calls").await;
    page.shows("#without [data-of=saved_calls]", "0").await;

    page.shows("#keys tr:first-child", "/report/7").await;

    // Each chart has an area of the requests and one of the origin calls.
    let drawn =
        "return [...document.querySelectorAll('svg path.waiting, svg path.running')].map(p => p.getBBox().height)";
    let heights = page.run(drawn).await;
    let heights: Vec<_> = heights.as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
    assert!(heights.len() == 4 && heights.iter().all(|height| *height > 1.0), "{heights:?}");
    assert_no_errors(&page).await;
    page.close().await;
}

#[tokio::test]
async fn page_shows_answers_while_redis_is_stopped() {
    if !installed(&[&browser::PROGRAMS[..], &["redis-server"]].concat()) {
        return;
    }
    let app = App::start(&["--own-redis"]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    page.shows("#last-answer", "200, from the cache").await;

    page.click("#redis").await;
    page.shows("#store", "Redis is stopped").await;
    page.shows("#last-answer", "200, without Redis").await;
    page.shows("#breaker", "breaker open").await;
    page.choose("#requests", "200").await;
    assert_few_calls(&page, "200").await;
    page.click("#redis").await;
    page.shows("#store", "Redis runs").await;
    page.shows("#breaker", "breaker closed").await;
    page.shows("#last-answer", "200, from the cache").await;

    page.click("#fail").await;
    page.shows("#origin", "origin fails").await;
    page.click("#invalidate").await;
    page.shows("#last-answer", "503").await;
    page.click("#fail").await;
    page.shows("#last-answer", "200").await;

    for report in 1..=3 {
        app.get(&format!("/report/{report}")).await;
    }
    page.choose("#requests", "1000").await;
    page.click("#send-without").await;
    page.shows("#without .status", "1,000 requests, 1,000 origin calls").await;
    assert_few_calls(&page, "1,000").await;
    assert_no_errors(&page).await;
    keep(&page.screenshot().await);
    page.close().await;
}

/// Seen to fail when the page kept the herd of the server before, and waited for its end.
#[tokio::test]
async fn page_forgets_the_herd_of_a_server_that_restarts() {
    if !installed(&browser::PROGRAMS) {
        return;
    }
    let app = App::start(&["--delay", "20000"]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    page.click("#send-with").await;
    page.shows("#with .status", "sends 1,000 requests at once").await;
    let address = app.kill().await;
    page.shows("#store", "the server does not answer").await;
    let app = App::start_at(&address, &[]).await;
    page.shows("#with .status", "no herd yet").await;
    page.shows("#with [data-of=answered]", "–").await;
    page.click("#send-with").await;
    page.shows("#with .status", "1,000 requests, 1 origin call").await;
    assert_eq!(app.stop().await, Some(0));
    page.close().await;
}

/// A second stream sends what a reconnected one sends. Seen to fail when the page added the samples to its earlier
/// samples.
#[tokio::test]
async fn page_shows_each_sample_once_after_reconnection() {
    if !installed(&browser::PROGRAMS) {
        return;
    }
    let app = App::start(&[]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    page.choose("#requests", "100").await;
    page.click("#send-with").await;
    page.shows("#with .status", "100 requests, 1 origin call").await;
    let samples = "return lanes.with.samples";
    let before = page.run(samples).await;
    page.run(
        "events.close();
         const again = new EventSource('/demo/events');
         again.onmessage = (event) => { events.onmessage(event); window.reconnected = true; };",
    )
    .await;
    eventually("the stream begins again", async || page.run("return window.reconnected === true").await == true).await;
    assert_eq!(page.run(samples).await, before);
    assert_no_errors(&page).await;
    page.close().await;
}

/// Seen to fail when the page showed a problem only beside failed answers.
#[tokio::test]
async fn page_shows_why_a_herd_cannot_start() {
    if !installed(&browser::PROGRAMS) {
        return;
    }
    let app = App::start(&[]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    let describe = async |sent: u32| {
        let run = json!({ "requests": 10, "sent": sent, "origin_calls": 1, "failed": 0, "ended": true, "problem": "no port" });
        page.run(&format!("return describe({run})")).await
    };
    assert_eq!(describe(0).await, "no request was sent: no port");
    assert_eq!(describe(10).await, "10 requests, 1 origin call: no port");
    page.close().await;
}

/// Sends a herd with the guard. One call is usual. But a result that is not stored in Redis is kept for a second only, and
/// on a busy machine the herd takes longer, or Redis.
async fn assert_few_calls(page: &Browser, requests: &str) {
    page.click("#send-with").await;
    page.shows("#with .status", &format!("{requests} requests, ")).await;
    let calls: u64 = page.text("#with [data-of=origin_calls]").await.parse().expect("a number below 1,000");
    let status = page.text("#with .status").await;
    assert!(calls < 10 && !status.contains("failed"), "{status}");
}

/// The page keeps what scripts throw and what its policy blocks.
async fn assert_no_errors(page: &Browser) {
    let errors = page.run("return window.pageErrors").await;
    assert_eq!((errors, page.text("#notice").await), (json!([]), String::new()));
}

/// Keeps the picture for the README if `STAMPEDE_SCREENSHOT` names a file, relative to the repository.
fn keep(picture: &[u8]) {
    assert!(picture.starts_with(b"\x89PNG"), "it is a PNG");
    if let Some(file) = env::var_os("STAMPEDE_SCREENSHOT") {
        fs::write(repository("").join(file), picture).expect("the file is writable");
    }
}
