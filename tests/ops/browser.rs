//! A real browser.

use crate::webdriver::Session;
use base64::{Engine, prelude::BASE64_STANDARD};
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
    session: Session,
    /// Of the browser, unless it is closed.
    pid: Option<u32>,
    _driver: Child,
    _files: TempDir,
}

impl Browser {
    /// Starts a browser and opens a page on a desk, in light colours.
    pub(crate) async fn open(url: &str) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let (driver, address) = start_driver(&files).await;
        let (session, capabilities) = Session::begin(address, &capabilities(&files)).await;
        let pid = capabilities["goog:processID"].as_u64().expect("the browser has an id");
        let browser = Self { session, pid: Some(pid as u32), _driver: driver, _files: files };
        browser.show_on(Screen::Desk, "light").await;
        browser.session.post("url", &json!({ "url": url })).await;
        browser
    }

    /// Shows the page on a screen, in the colours `light` or `dark`.
    pub(crate) async fn show_on(&self, screen: Screen, colors: &str) {
        let (width, height) = screen.size();
        let is_telephone = screen == Screen::Telephone;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_telephone });
        self.set("Emulation.setDeviceMetricsOverride", &metrics).await;
        let colors = json!({ "features": [{ "name": "prefers-color-scheme", "value": colors }] });
        self.set("Emulation.setEmulatedMedia", &colors).await;
    }

    /// Sends a command of the DevTools protocol, for which WebDriver has none.
    async fn set(&self, command: &str, params: &Value) {
        self.session.post("goog/cdp/execute", &json!({ "cmd": command, "params": params })).await;
    }

    /// Presses a key, as a user does without a mouse.
    pub(crate) async fn press(&self, key: char) {
        let focused = self.session.active_element().await;
        self.session.post(&format!("{focused}/value"), &json!({ "text": key })).await;
    }

    /// Runs a script in the page, and returns its value.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.run_with(script, &[]).await
    }

    async fn run_with(&self, script: &str, arguments: &[&str]) -> Value {
        self.session.post("execute/sync", &json!({ "script": script, "args": arguments })).await
    }

    /// Clicks an element, as soon as a user could.
    pub(crate) async fn click(&self, element: &str) {
        let is_ready = "const e = document.querySelector(arguments[0]); return e?.checkVisibility() && !e.disabled";
        eventually(&format!("{element} can be clicked"), async || self.run_with(is_ready, &[element]).await == true)
            .await;
        self.session.click(element).await;
    }

    /// Chooses an option of a `select` by its value.
    pub(crate) async fn choose(&self, select: &str, value: &str) {
        self.session.click(&format!("{select} option[value='{value}']")).await;
    }

    /// Returns the text of an element, as a user sees it. In one step, because the page may replace the element.
    pub(crate) async fn text(&self, element: &str) -> String {
        let text = self.run_with("return document.querySelector(arguments[0])?.innerText", &[element]).await;
        text.as_str().unwrap_or_default().to_owned()
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
        let picture = self.session.get("screenshot").await;
        BASE64_STANDARD.decode(picture.as_str().expect("a picture")).expect("it is in base64")
    }

    /// Ends the browser, and waits for its end.
    pub(crate) async fn close(mut self) {
        self.session.end().await;
        self.pid = None;
    }
}

/// A screen by its size in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Screen {
    Desk,
    Telephone,
}

impl Screen {
    pub(crate) fn size(self) -> (u32, u32) {
        match self {
            Self::Desk => (1280, 800),
            Self::Telephone => (390, 844),
        }
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

/// Starts chromedriver, and returns it with its address. It takes a port that is free on IPv6, and ends at once if the same
/// port is in use on IPv4, so it is started again.
async fn start_driver(files: &TempDir) -> (Child, String) {
    for _ in 0..ATTEMPTS {
        let mut driver = program("chromedriver");
        let mut driver = driver.arg("--port=0").env("TMPDIR", files.path()).spawn().expect("chromedriver starts");
        let mut log = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        while let Some(line) = log.next_line().await.expect("the log is UTF-8") {
            if let Some(port) = line.strip_prefix("ChromeDriver was started successfully on port ") {
                let address = format!("127.0.0.1:{}", port.trim_end_matches('.'));
                tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
                return (driver, address);
            }
        }
    }
    panic!("chromedriver ended {ATTEMPTS} times before its log named a port");
}

fn capabilities(files: &TempDir) -> Value {
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
    json!({ "goog:chromeOptions": { "args": args } })
}

/// The keys as WebDriver sends them.
pub(crate) const TAB: char = '\u{e004}';
pub(crate) const ENTER: char = '\u{e007}';

const ATTEMPTS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);
