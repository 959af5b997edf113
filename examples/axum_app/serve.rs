//! Serves the app: in the foreground, or as one process of a herd.

use crate::{Result, app::app, args::Args, metrics};
use axum::Router;
use stampede_guard::StampedeGuard;
use std::{io, net::Ipv4Addr};
use tokio::net::TcpListener;

/// Serves on the address of the arguments until Ctrl-C.
pub(crate) async fn until_interrupted(args: &Args) -> Result<()> {
    let metrics = if args.metrics { metrics::routes()? } else { Router::new() };
    let guard = guard(args.redis.as_deref())?;
    let listener =
        TcpListener::bind(args.listen).await.map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}\ntry: curl -i http://{address}/report/1");
    Ok(serve(listener, app(guard.clone(), args.delay()).merge(metrics), guard, interrupted()).await?)
}

/// Serves on a free port, prints the address on stdout, and stops when stdin ends. Stdin also ends if the parent is
/// killed.
pub(crate) async fn until_parent_leaves(args: &Args) -> Result<()> {
    let guard = guard(args.redis.as_deref())?;
    let listener = on_free_port().await?;
    println!("{}", listener.local_addr()?);
    let parent_leaves = async {
        _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
    };
    Ok(serve(listener, app(guard.clone(), args.delay()), guard, parent_leaves).await?)
}

/// Serves until `stop`, then finishes the open requests and the background work of the guard.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    guard: StampedeGuard,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    guard.drain().await;
    Ok(())
}

/// Returns a guard over that Redis, or over the embedded store. Neither connects yet.
pub(crate) fn guard(redis: Option<&str>) -> Result<StampedeGuard> {
    Ok(match redis {
        Some(url) => StampedeGuard::new(redis::Client::open(url)?),
        None => StampedeGuard::in_memory(),
    })
}

/// Listens on a free port.
pub(crate) async fn on_free_port() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
}

/// Waits for Ctrl-C, or for the same signal from a supervisor.
#[cfg(unix)]
pub(crate) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
}

/// Waits for Ctrl-C.
#[cfg(not(unix))]
pub(crate) async fn interrupted() {
    _ = tokio::signal::ctrl_c().await;
}
