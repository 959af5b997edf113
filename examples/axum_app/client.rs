//! One HTTP/1.1 connection to a server.

use crate::Result;
use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1::{self, SendRequest},
    header::HOST,
};
use hyper_util::rt::TokioIo;
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpStream;

/// An HTTP client with one connection, which is closed on drop.
pub(crate) struct Client(SendRequest<Empty<Bytes>>);

impl Client {
    /// Connects, and waits until the server has answered once. A connection may stay in a full backlog for a long time
    /// while it looks established to the client.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let mut attempt = 1;
        loop {
            match Self::try_open(address).await {
                Ok(client) => return Ok(client),
                Err(_) if attempt < ATTEMPTS => tokio::time::sleep(PAUSE * attempt).await,
                Err(error) => return Err(format!("no connection to the server at {address}: {error}").into()),
            }
            attempt += 1;
        }
    }

    async fn try_open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut client = Self(sender);
        client.get("/healthz").await?;
        Ok(client)
    }

    /// Sends a GET request and returns the body of a 200 response.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        let request = Request::get(path).header(HOST, SITE).body(Empty::new())?;
        self.0.ready().await?;
        let response = self.0.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        match status {
            StatusCode::OK => Ok(String::from_utf8(body.into())?),
            refused => Err(format!("the server answered {refused}").into()),
        }
    }
}

/// All processes serve one site, as with a load balancer in front: the host is part of the cache key.
const SITE: &str = "reports.example";
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);
