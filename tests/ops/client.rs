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
    let response = exchange(address, &format!("{method} {path} HTTP/1.0\r\nhost: {address}\r\n{fields}\r\n")).await;
    let (_, body) = response.split_once("\r\n\r\n").expect("a head, then a body");
    (status(&response), body.to_owned())
}

/// Sends a request of HTTP/1.0, so that the response ends with its connection and has no chunks. Returns the response.
pub(crate) async fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("it answers in UTF-8");
    response
}

/// Returns the status of a response.
pub(crate) fn status(response: &str) -> u16 {
    response.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line")
}

/// Sends a GET request, which has to succeed.
pub(crate) async fn get(address: &str, path: &str) -> String {
    let (status, body) = send("GET", address, path).await;
    assert_eq!(status, 200, "GET {path}: {body}");
    body
}
