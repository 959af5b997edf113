//! The guard in front of a client: any number of concurrent requests become one request to the server.
//!
//! ```console
//! cargo run --release --example tower_client
//! ```

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use stampede_guard::StampedeGuard;
use std::{
    convert::Infallible,
    net::SocketAddr,
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower::{ServiceBuilder, ServiceExt};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    example_support::log();
    let rates = upstream().await?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let client = ServiceBuilder::new().layer(StampedeGuard::in_memory()).service(client);

    let ask = || {
        let client = client.clone();
        async move {
            let request = Request::get(format!("http://{rates}/rates")).body(Empty::new())?;
            let response = client.oneshot(request).await?;
            let status = response.headers()["cache-status"].to_str()?.to_owned();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        }
    };
    let mut herd = JoinSet::new();
    for _ in 0..HERD {
        herd.spawn(ask());
    }
    let mut answers = herd.join_all().await.into_iter().collect::<Result<Vec<(String, Bytes)>>>()?;
    answers.push(ask().await?); // a later request
    answers.sort_by_key(|(status, _)| status.contains("collapsed"));

    for (status, body) in [&answers[0], &answers[1], &answers[HERD]] {
        println!("{} | {status}", String::from_utf8_lossy(body));
    }
    let calls = CALLS.load(Relaxed);
    println!("requests: {}, upstream calls: {calls}", answers.len());
    let as_promised = calls == 1 && answers.iter().all(|(_, body)| body == RATES);
    Ok(if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts a slow server on a free port.
async fn upstream() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(rates)));
        }
    });
    Ok(address)
}

async fn rates(_: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    CALLS.fetch_add(1, Relaxed);
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(Response::builder().header("cache-control", "max-age=60").body(Full::from(RATES)).expect("a response"))
}

static CALLS: AtomicU32 = AtomicU32::new(0);
const RATES: &str = "1 EUR = 1.09 USD";
const HERD: usize = 200;
