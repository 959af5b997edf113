//! HTTP requests to the programs under test.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Sends a request without a body. Returns the status and the body of its response.
pub(crate) async fn send(method: &str, address: &str, path: &str) -> (u16, String) {
    send_with(method, address, path, "").await
}

/// As [`send`], with further header fields, each a whole line.
pub(crate) async fn send_with(method: &str, address: &str, path: &str, fields: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // HTTP/1.0, so that a response ends with its connection and has no chunks.
    let request = format!("{method} {path} HTTP/1.0\r\nhost: {address}\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("it answers in UTF-8");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head, then a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status line"), body.to_owned())
}

/// Sends a GET request, which has to succeed.
pub(crate) async fn get(address: &str, path: &str) -> String {
    let (status, body) = send("GET", address, path).await;
    assert_eq!(status, 200, "GET {path}: {body}");
    body
}
