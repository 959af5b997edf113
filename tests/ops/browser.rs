//! A real browser.

use crate::client::status;
use fantoccini::{Client, ClientBuilder, Locator, key::Key, wd::Capabilities};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use stampede_guard_support::{eventually, program::program, signal};
use std::time::Duration;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Child,
    time::{Instant, sleep},
};

/// The programs that it needs.
pub(crate) const PROGRAMS: [&str; 2] = ["chromium", "chromedriver"];

/// A headless Chromium with a profile of its own.
pub(crate) struct Browser {
    client: Client,
    /// Of chromedriver.
    address: String,
    /// Of the browser, unless it is closed.
    pid: Option<u32>,
    _driver: Child,
    _files: TempDir,
}

impl Browser {
    /// Starts a browser and opens a page on a desk, in light colours.
    pub(crate) async fn open(url: &str) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let mut driver = program("chromedriver");
        let mut driver = driver.arg("--port=0").env("TMPDIR", files.path()).spawn().expect("chromedriver starts");
        let mut log = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let address = loop {
            let line = log.next_line().await.expect("the log is UTF-8").expect("the log names the port");
            if let Some(port) = line.strip_prefix("ChromeDriver was started successfully on port ") {
                break format!("127.0.0.1:{}", port.trim_end_matches('.'));
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });

        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities(&files))
            .connect(&format!("http://{address}"))
            .await
            .expect("the browser starts");
        let pid = client.capabilities().and_then(|all| all["goog:processID"].as_u64()).expect("the browser has an id");
        let browser = Self { client, address, pid: Some(pid as u32), _driver: driver, _files: files };
        browser.show_on(Screen::Desk, "light").await;
        browser.client.goto(url).await.expect("the page loads");
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
        let session = self.client.session_id().await.expect("the browser answers").expect("there is a session");
        let body = json!({ "cmd": command, "params": params }).to_string();
        let (path, length) = (format!("/session/{session}/goog/cdp/execute"), body.len());
        let head = format!("POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n", self.address);
        let mut stream = TcpStream::connect(&self.address).await.expect("chromedriver listens");
        stream.write_all((head + &body).as_bytes()).await.expect("it reads");
        // It leaves the connection open.
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await.expect("it answers");
        assert_eq!(status(&answer), 200, "{command}: {answer}");
    }

    /// Presses a key, as a user does without a mouse.
    pub(crate) async fn press(&self, key: Key) {
        let focused = self.client.active_element().await.expect("the page has one");
        focused.send_keys(&key.to_string()).await.expect("it takes keys");
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
