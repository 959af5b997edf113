//! The live page of `axum_app` in a real browser.

use crate::{
    app::App,
    browser::{self, Browser, ENTER, Screen, TAB},
    programs::{installed, repository},
};
use serde_json::{Value, json};
use stampede_guard_support::eventually;
use std::{env, fs, time::Duration};
use tokio::time::sleep;

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
    // On a busy machine the server may take no sample while the only call runs: the next herd repeats it.
    eventually("each area has a height", async || {
        let heights = page.run(drawn).await;
        let heights: Vec<_> = heights.as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
        let is_drawn = heights.len() == 4 && heights.iter().all(|height| *height > 1.0);
        if !is_drawn {
            page.click("#send-with").await;
            sleep(Duration::from_secs(1)).await; // the herd takes its time, and would begin again with each click
        }
        is_drawn
    })
    .await;
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
    keep("live_page", &page.screenshot().await);
    page.close().await;
}

/// Seen to fail when a label was too long for its card, and when the quiet text was paler.
#[tokio::test]
async fn page_fits_a_telephone_and_a_desk_in_light_and_dark() {
    if !installed(&browser::PROGRAMS) {
        return;
    }
    let app = App::start(&[]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    page.shows("#store", "embedded store").await;
    for screen in [Screen::Telephone, Screen::Desk] {
        page.show_on(screen, "light").await;
        page.shows("#without .hint", "Press Send without guard").await;
        page.shows("#with .hint", "Then press Send with guard").await;
        assert_fits(&page, screen, "light, before the first herd").await;
    }
    for (herd, lane) in [("#send-without", "#without"), ("#send-with", "#with")] {
        page.click(herd).await;
        page.shows(&format!("{lane} .status"), "1,000 requests, ").await;
        let hint = format!("return document.querySelector('{lane} .hint').checkVisibility()");
        assert_eq!(page.run(&hint).await, false);
    }
    page.click("#fail").await;
    page.shows("#origin", "origin fails").await;
    for screen in [Screen::Telephone, Screen::Desk] {
        for colors in ["light", "dark"] {
            page.show_on(screen, colors).await;
            let is_dark = page.run("return matchMedia('(prefers-color-scheme: dark)').matches").await;
            assert_eq!(is_dark, colors == "dark");
            assert_fits(&page, screen, colors).await;
            keep(&format!("{screen:?}-{colors}").to_lowercase(), &page.screenshot().await);
        }
    }
    assert_no_errors(&page).await;
    page.close().await;
}

/// Seen to fail when the table had no name, and when the focus was not visible.
#[tokio::test]
async fn page_is_used_with_the_keyboard_alone() {
    if !installed(&browser::PROGRAMS) {
        return;
    }
    let app = App::start(&[]).await;
    let page = Browser::open(&format!("http://{}/", app.address)).await;
    page.shows("#store", "embedded store").await;
    let nameless = "return [...document.querySelectorAll('button, select, input, svg, section, table')]
        .filter(e => !(e.ariaLabel || e.hasAttribute('aria-labelledby') || e.labels?.length || e.matches('button') && e.textContent))
        .map(e => e.outerHTML)";
    assert_eq!(page.run(nameless).await, json!([]));

    let focus = "const e = document.activeElement; return [e.id, getComputedStyle(e).outlineStyle]";
    for control in ["requests", "cold", "send-without", "send-with"] {
        page.press(TAB).await;
        assert_eq!(page.run(focus).await, json!([control, "solid"]));
    }
    page.press(ENTER).await;
    page.shows("#with .status", "1,000 requests, 1 origin call").await;
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

/// Nothing scrolls sideways, each text stays in its card, and has the contrast that WCAG 2.2 asks for.
async fn assert_fits(page: &Browser, screen: Screen, what: &str) {
    let width = page.run("return document.documentElement.scrollWidth").await;
    assert_eq!(width, screen.size().0, "{screen:?}, {what}");
    assert_eq!(page.run(FAULTS).await, json!([]), "{screen:?}, {what}");
}

/// Returns the texts that leave their card, and the ones whose contrast with their background is below 4.5.
const FAULTS: &str = "
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (color) => {
        const [r, g, b] = channels(color).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const background = (e) => {
        const color = getComputedStyle(e).backgroundColor;
        return (channels(color)[3] ?? 1) === 1 ? color : background(e.parentElement);
    };
    const faults = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode, e = text.parentElement, style = getComputedStyle(e);
        const range = document.createRange();
        range.selectNodeContents(text);
        const at = range.getBoundingClientRect();
        if (!text.data.trim() || at.width === 0 || e.matches('script, :disabled')) continue;
        const card = (e.closest('.card') ?? document.body).getBoundingClientRect();
        const leaves = at.left < card.left || at.right > card.right || at.top < card.top || at.bottom > card.bottom;
        if (leaves && style.overflowX === 'visible') faults.push(`leaves its card: ${text.data}`);
        const [light, dark] = [e.closest('svg') ? style.fill : style.color, background(e)].map(luminance).sort((a, b) => b - a);
        const contrast = (light + .05) / (dark + .05);
        if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${text.data}`);
    }
    return faults;";

/// The page keeps what scripts throw and what its policy blocks.
async fn assert_no_errors(page: &Browser) {
    let errors = page.run("return window.pageErrors").await;
    assert_eq!((errors, page.text("#notice").await), (json!([]), String::new()));
}

/// Keeps a picture if `STAMPEDE_SCREENSHOTS` names a folder, relative to the repository. The README shows `live_page.png`.
fn keep(name: &str, picture: &[u8]) {
    assert!(picture.starts_with(b"\x89PNG"), "it is a PNG");
    if let Some(folder) = env::var_os("STAMPEDE_SCREENSHOTS") {
        fs::write(repository("").join(folder).join(format!("{name}.png")), picture).expect("the folder is writable");
    }
}
