//! A small shop on axum, over a database: a repository with views of the guard, sessions, and a guard for each page.
//!
//! ```console
//! cargo run --release --example axum_shop                                     # embedded store, a database of its own
//! cargo run --release --example axum_shop -- --redis redis://127.0.0.1:6379 --database 127.0.0.1:PORT
//! ```
//!
//! The second line starts another process of the same shop, if PORT is what the first process has printed and both have
//! the same `--redis`. A process prints how each request was answered. To try it:
//!
//! ```console
//! curl -i http://127.0.0.1:PORT/                                # the window, one for each language
//! curl -i http://127.0.0.1:PORT/login -d owner -c cookies
//! curl -i http://127.0.0.1:PORT/products/tea -d 450 -b cookies  # another price: three URLs show it
//! curl -i http://127.0.0.1:PORT/products/tea/order -X POST -b cookies
//! ```

mod database;
mod pages;
mod shop;

use clap::Parser;
use database::Database;
use shop::Shop;
use stampede_guard::{StampedeGuard, http::HttpOptions};
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpListener;

/// A shop that is protected by stampede-guard.
#[derive(Parser)]
#[command(name = "axum_shop")]
struct Args {
    /// Share the cache through this Redis
    #[arg(long, value_name = "URL")]
    redis: Option<String>,

    /// Use the database of another process
    #[arg(long, value_name = "ADDR")]
    database: Option<SocketAddr>,

    /// How long a statement of the database takes, in milliseconds
    #[arg(long, value_name = "MS", default_value = "20")]
    latency: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    example_support::log();
    let guard = match &args.redis {
        Some(url) => StampedeGuard::connect(url)?,
        None => StampedeGuard::in_memory(),
    };
    // The cache key ignores the host, so that URLs can be invalidated by their paths.
    let guard = guard.namespace("example-shop").http(HttpOptions::default().ignore_host());

    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("listening on {}", listener.local_addr()?);
    let database = match args.database {
        Some(address) => address,
        None => {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            let address = listener.local_addr()?;
            tokio::spawn(database::serve(listener, Duration::from_millis(args.latency)));
            println!("database on {address}");
            address
        }
    };
    let database = Database::new(database);
    let routes = pages::app(guard.clone(), Shop::new(&guard, database.clone()));
    // Requests in progress are answered, and no further ones are accepted.
    axum::serve(listener, routes).with_graceful_shutdown(example_support::told_to_stop()).await?;
    // What clients have left goes on for a while, so that its result is stored.
    let left = guard.drain_within(Duration::from_secs(10)).await;
    if left > 0 {
        eprintln!("{left} tasks are left");
    }
    database.close();
    println!("stopped");
    Ok(())
}
