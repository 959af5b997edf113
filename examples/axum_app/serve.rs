//! Serves the app: in the foreground, or as one process of a herd.

use crate::{
    Result,
    app::app,
    args::Args,
    demo::{self, Demo, Store},
    metrics,
    origin::Origin,
};
use axum::Router;
use example_support::RedisServer;
use stampede_guard::{NearCacheConfig, StampedeGuard};
use std::{io, net::Ipv4Addr, sync::Arc};
use tokio::{
    net::TcpListener,
    sync::{Mutex, watch},
};

/// Serves on the address of the arguments until Ctrl-C, with the live page.
pub(crate) async fn until_interrupted(args: &Args) -> Result<()> {
    let metrics = if args.metrics { metrics::routes()? } else { Router::new() };
    let own_redis = if args.own_redis { Some(RedisServer::start().await?) } else { None };
    let redis = args.redis.as_deref().or(own_redis.as_ref().map(|own| own.url.as_str()));
    let guard = guard(redis)?.named("reports").http(demo::options()).track_hot_keys(demo::HOT_KEYS);
    let guard = if redis.is_some() { guard.near_cache(NearCacheConfig::max_bytes(NEAR_CACHE)) } else { guard };
    let store = match own_redis {
        Some(own) => Store::OwnRedis(Box::new(Mutex::new(own))),
        None if redis.is_some() => Store::Redis,
        None => Store::Embedded,
    };
    let listener =
        TcpListener::bind(args.listen).await.map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}\nopen it in a browser, or try: curl -i http://{address}/report/1");

    let origin = Arc::new(Origin::new(args.delay()));
    let (running, stopped) = watch::channel(());
    let demo = Arc::new(Demo::new(guard.clone(), origin.clone(), address, store, stopped));
    let routes = app(guard.clone(), origin).merge(demo.clone().routes()).merge(metrics);
    let told = example_support::told_to_stop();
    let stop = async {
        told.await;
        drop(running);
    };
    serve(listener, routes, guard, stop).await?;
    demo.stop().await
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
    let routes = app(guard.clone(), Arc::new(Origin::new(args.delay())));
    Ok(serve(listener, routes, guard, parent_leaves).await?)
}

/// Serves until `stop`, then finishes the open requests and the background work of the guard.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    guard: StampedeGuard,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;
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

/// In bytes. A copy is used for at most 1 s without Redis, so it does not hide an outage from the page.
const NEAR_CACHE: u64 = 1 << 20;
