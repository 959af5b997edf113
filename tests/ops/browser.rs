//! A real browser.

use fantoccini::{Client, ClientBuilder, Locator, wd::Capabilities};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use stampede_guard_support::{eventually, program::program, signal};
use std::time::Duration;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    time::{Instant, sleep},
};

/// The programs that it needs.
pub(crate) const PROGRAMS: [&str; 2] = ["chromium", "chromedriver"];

/// A headless Chromium with a profile of its own.
pub(crate) struct Browser {
    client: Client,
    /// Of the browser, unless it is closed.
    pid: Option<u32>,
    _driver: Child,
    _files: TempDir,
}

impl Browser {
    /// Starts a browser and opens a page in a window of 1280 by 800 pixels.
    pub(crate) async fn open(url: &str) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let mut driver = program("chromedriver");
        let mut driver = driver.arg("--port=0").env("TMPDIR", files.path()).spawn().expect("chromedriver starts");
        let mut log = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = loop {
            let line = log.next_line().await.expect("the log is UTF-8").expect("the log names the port");
            if let Some(port) = line.strip_prefix("ChromeDriver was started successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });

        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities(&files))
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("the browser starts");
        let pid = client.capabilities().and_then(|all| all["goog:processID"].as_u64()).expect("the browser has an id");
        let browser = Self { client, pid: Some(pid as u32), _driver: driver, _files: files };
        browser.client.goto(url).await.expect("the page loads");
        browser.resize().await;
        browser
    }

    /// Gives the page 1280 by 800 pixels, whatever the frame of the window takes.
    async fn resize(&self) {
        let frame = self.run("return [outerWidth - innerWidth, outerHeight - innerHeight]").await;
        let frame = |side: usize| frame[side].as_u64().expect("a number") as u32;
        self.client.set_window_size(1280 + frame(0), 800 + frame(1)).await.expect("the window can be resized");
    }

    /// Runs a script in the page, and returns its value.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.client.execute(script, vec![]).await.expect("the script runs")
    }

    /// Clicks an element, as soon as a user could.
    pub(crate) async fn click(&self, element: &str) {
        let found = self.client.wait().for_element(Locator::Css(element)).await.expect("the element is there");
        eventually(&format!("{element} can be clicked"), async || {
            found.is_enabled().await.expect("it is in the page")
                && found.is_displayed().await.expect("it is in the page")
        })
        .await;
        found.click().await.expect("it can be clicked");
    }

    /// Chooses an option of a `select` by its value.
    pub(crate) async fn choose(&self, select: &str, value: &str) {
        let found = self.client.find(Locator::Css(select)).await.expect("the element is there");
        found.select_by_value(value).await.expect("it has this option");
    }

    /// Returns the text of an element, as a user sees it. In one step, because the page may replace the element.
    pub(crate) async fn text(&self, element: &str) -> String {
        let text = self.client.execute("return document.querySelector(arguments[0])?.innerText", vec![element.into()]);
        text.await.expect("the script runs").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the text of an element contains this.
    pub(crate) async fn shows(&self, element: &str, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.text(element).await;
            if shown.contains(text) {
                return;
            }
            assert!(Instant::now() < deadline, "{element} shows `{shown}` and not `{text}` after {PATIENCE:?}");
            sleep(TICK).await;
        }
    }

    /// Returns a picture of the page, as PNG.
    pub(crate) async fn screenshot(&self) -> Vec<u8> {
        self.client.screenshot().await.expect("the browser takes a picture")
    }

    /// Ends the browser, and waits for its end.
    pub(crate) async fn close(mut self) {
        self.client.clone().close().await.expect("the browser ends");
        self.pid = None;
    }
}

/// If a test fails, it has not closed the browser, which outlives chromedriver.
impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            signal("TERM", pid);
        }
    }
}

fn capabilities(files: &TempDir) -> Capabilities {
    let args = json!([
        "--headless=new",
        "--disable-gpu",
        // Its sandbox does not run as root, as which CI runs. The page is ours.
        "--no-sandbox",
        // Containers have a small /dev/shm.
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        format!("--user-data-dir={}", files.path().display()),
    ]);
    Capabilities::from_iter([("goog:chromeOptions".to_owned(), json!({ "args": args }))])
}

const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);
