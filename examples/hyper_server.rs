//! A plain hyper server with the guard in front of its handler, without a router.
//!
//! ```console
//! cargo run --release --example hyper_server -- 127.0.0.1:3000
//! curl -i http://127.0.0.1:3000/rates        # the field Cache-Status says how it was answered
//! ```

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming, header::CACHE_CONTROL, server::conn::http1};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown, service::TowerToHyperService};
use stampede_guard::{BoxError, StampedeGuard};
use std::{convert::Infallible, env, pin::pin, time::Duration};
use tokio::{net::TcpListener, time};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    example_support::log();
    // In a fleet: `StampedeGuard::connect("redis://..")?`.
    let guard = StampedeGuard::in_memory();
    let service = ServiceBuilder::new().layer(guard.clone()).service_fn(answer);

    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let (connections, mut stop) = (GracefulShutdown::new(), pin!(example_support::told_to_stop()));
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connections.watch(connection));
    }
    // Requests in progress are answered, and what was fetched is stored.
    time::timeout(Duration::from_secs(10), connections.shutdown()).await.ok();
    guard.drain_within(Duration::from_secs(10)).await;
    println!("stopped after {:?}", guard.stats());
    Ok(())
}

/// The handler. `Cache-Control` says what may be shared, and for how long.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let response = match request.uri().path() {
        "/rates" => Response::builder().header(CACHE_CONTROL, "public, max-age=60").body(rates().await.into()),
        _ => Response::builder().status(StatusCode::NOT_FOUND).body("there is no such page\n".into()),
    };
    Ok(response.expect("valid fields"))
}

/// The expensive work.
async fn rates() -> String {
    println!("asking the bank");
    time::sleep(Duration::from_millis(300)).await;
    "1 EUR = 1.09 USD\n".to_owned()
}
