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

/// Closes its connection when it is dropped.
pub(crate) struct Client(SendRequest<Empty<Bytes>>);

impl Client {
    /// Connects, and waits until the server has answered once: a connection may sit in a full backlog for long while it
    /// looks established to its client.
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

    /// The body of a good answer.
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

/// All processes serve one site, as behind a load balancer: the host is a part of what names a resource.
const SITE: &str = "reports.example";
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);
