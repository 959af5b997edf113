//! The commands of WebDriver that the tests need. A crate with all commands would bring 21 others into the build.

use crate::client::status;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// A browser that chromedriver has started.
pub(crate) struct Session {
    /// Of chromedriver.
    address: String,
    path: String,
}

impl Session {
    /// Starts a browser. Returns its capabilities as well.
    pub(crate) async fn begin(address: String, capabilities: &Value) -> (Self, Value) {
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let mut begun = send(&address, "POST", "/session", Some(&wanted)).await;
        let id = begun["sessionId"].as_str().expect("the session has an id");
        let path = format!("/session/{id}");
        (Self { address, path }, begun["capabilities"].take())
    }

    /// Ends the browser, and waits for its end.
    pub(crate) async fn end(&self) {
        send(&self.address, "DELETE", &self.path, None).await;
    }

    pub(crate) async fn get(&self, command: &str) -> Value {
        send(&self.address, "GET", &format!("{}/{command}", self.path), None).await
    }

    pub(crate) async fn post(&self, command: &str, arguments: &Value) -> Value {
        send(&self.address, "POST", &format!("{}/{command}", self.path), Some(arguments)).await
    }

    /// Clicks the element of a CSS selector.
    pub(crate) async fn click(&self, selector: &str) {
        let found = self.post("element", &json!({ "using": "css selector", "value": selector })).await;
        self.post(&format!("{}/click", element(&found)), &json!({})).await;
    }

    /// Returns the path of the element that has the focus, for its commands.
    pub(crate) async fn active_element(&self) -> String {
        element(&self.get("element/active").await)
    }
}

/// Returns the path of an element for its commands.
fn element(found: &Value) -> String {
    format!("element/{}", found[ELEMENT].as_str().expect("a reference to an element"))
}

/// Sends a command, which has to succeed, and returns its value.
async fn send(address: &str, method: &str, path: &str, arguments: Option<&Value>) -> Value {
    let body = arguments.map(Value::to_string).unwrap_or_default();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut stream = TcpStream::connect(address).await.expect("chromedriver listens");
    stream.write_all((head + &body).as_bytes()).await.expect("it reads");
    // It leaves the connection open, so that the answer ends with its length.
    let (mut stream, mut head, mut length) = (BufReader::new(stream), String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let start = head.len();
        assert!(stream.read_line(&mut head).await.expect("it answers in UTF-8") > 0, "{path}: {head}");
        if let Some(value) = head[start..].to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length is a number");
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await.expect("it answers to the end");
    assert_eq!(status(&head), 200, "{method} {path}: {}", String::from_utf8_lossy(&answer));
    serde_json::from_slice::<Value>(&answer).expect("it answers with JSON")["value"].take()
}

/// The name under which WebDriver refers to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
