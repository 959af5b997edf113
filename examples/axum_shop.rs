//! A small shop on axum: a guard for each route, and handlers that state what may be shared.
//!
//! ```console
//! cargo run --release --example axum_shop                                     # embedded store
//! cargo run --release --example axum_shop -- --redis redis://127.0.0.1:6379   # shared with other processes
//! ```
//!
//! It prints how each request was answered. To try it, use the port that it prints:
//!
//! ```console
//! curl -i http://127.0.0.1:PORT/                                # the window, one for each language
//! curl -i http://127.0.0.1:PORT/ -H 'Accept-Language: de'
//! curl -i http://127.0.0.1:PORT/tea -d 450                      # another price: three URLs show it
//! ```

use axum::{
    Router,
    extract::{Request, State},
    http::{
        HeaderMap, StatusCode, Uri,
        header::{ACCEPT_LANGUAGE, CACHE_CONTROL, VARY},
    },
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard, http::HttpOptions};
use std::{
    convert::Infallible,
    env,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Shop {
    guard: StampedeGuard,
    /// In euro cents.
    price_of_tea: Arc<AtomicU32>,
}

fn app(guard: StampedeGuard) -> Router {
    // Clones differ in their settings only: they share the store and running fetches.
    let for_a_minute = guard.clone().policy(Policy::fresh_for(Duration::from_secs(60)));
    let impatient = guard.clone().wait_timeout(Duration::from_secs(5));

    Router::new()
        .route("/", get(window).route_layer(for_a_minute))
        .route("/prices", get(prices).route_layer(impatient))
        .route("/tea", get(tea).post(reprice).route_layer(guard.clone()))
        .route("/basket", get(basket).route_layer(guard.clone()))
        .layer(middleware::from_fn(log))
        .with_state(Shop { guard, price_of_tea: Arc::new(AtomicU32::new(300)) })
}

/// States its own freshness lifetime.
async fn tea(State(shop): State<Shop>) -> impl IntoResponse {
    ([(CACHE_CONTROL, "max-age=300, stale-if-error=3600")], format!("tea: {} EUR\n", shop.price()))
}

/// States no freshness lifetime, so the policy of its guard applies. There is one variant for each language.
async fn window(State(shop): State<Shop>, request: HeaderMap) -> impl IntoResponse {
    let german = request.get(ACCEPT_LANGUAGE).is_some_and(|languages| languages.as_bytes().starts_with(b"de"));
    let welcome = if german { "Willkommen! Tee" } else { "Welcome! Tea" };
    ([(VARY, "accept-language")], format!("{welcome}: {} EUR\n", shop.price()))
}

/// Also uses the guard for a part of the response. The bank is asked once, even if prices change. If it takes longer
/// than five seconds, the requests that wait for the response get a 503 with `Retry-After`.
async fn prices(State(shop): State<Shop>) -> Result<impl IntoResponse, StatusCode> {
    let rate: f64 = shop.guard.fetch("usd per eur", ask_the_bank).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let (eur, usd) = (shop.price(), shop.price() * rate);
    Ok(([(CACHE_CONTROL, "max-age=300")], format!("tea: {eur} EUR, {usd:.2} USD\n")))
}

/// A response for one client only.
async fn basket() -> impl IntoResponse {
    ([(CACHE_CONTROL, "private")], "one pot of tea\n")
}

/// A POST that succeeds is noticed by the layer, which invalidates the same URL, `/tea`. The layer cannot know which other
/// pages show the price, so the handler invalidates them.
async fn reprice(State(shop): State<Shop>, cents: String) -> Result<Redirect, StatusCode> {
    let cents = cents.trim().parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    shop.price_of_tea.store(cents, Relaxed);
    for page in ["/", "/prices"] {
        // All languages. If the store does not acknowledge it, the guard sends it again until it does; the price has
        // changed anyway.
        if let Err(error) = shop.guard.invalidate_url(&Uri::from_static(page)).await {
            eprintln!("other processes may show the old price for a while: {error}");
        }
    }
    Ok(Redirect::to("/prices"))
}

/// Runs outside of the guards, which add the cache status to the response as an extension.
async fn log(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    match response.extensions().get::<CacheStatus>() {
        Some(status) => println!("{method} {path}: {status:?}"),
        None => println!("{method} {path}: {}", response.status()),
    }
    response
}

async fn ask_the_bank() -> Result<f64, Infallible> {
    println!("asking the bank");
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(1.09)
}

impl Shop {
    fn price(&self) -> f64 {
        f64::from(self.price_of_tea.load(Relaxed)) / 100.0
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let guard = match env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => StampedeGuard::in_memory(),
        [flag, url] if flag == "--redis" => StampedeGuard::new(redis::Client::open(url.as_str())?),
        _ => {
            eprintln!("usage: axum_shop [--redis URL]");
            return Ok(ExitCode::from(2));
        }
    };
    // The cache key ignores the host, so that URLs can be invalidated by their paths.
    let guard = guard.namespace("example-shop").http(HttpOptions::default().ignore_host());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("listening on {}", listener.local_addr()?);
    let interrupted = async { _ = tokio::signal::ctrl_c().await };
    axum::serve(listener, app(guard.clone())).with_graceful_shutdown(interrupted).await?;
    guard.drain().await;
    Ok(ExitCode::SUCCESS)
}
