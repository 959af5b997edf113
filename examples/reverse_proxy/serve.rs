//! Connections: each is served until it ends, and no further once we are told to stop.

use crate::{args::Args, front, upstream::Origin};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use stampede_guard::BoxError;
use std::{convert::Infallible, time::Duration};
use tokio::{net::TcpListener, time};
use tower::Layer;

/// Serves as the arguments say until it is told to stop. Then it takes no more connections, lets the requests at hand
/// end, and after them what the guard does behind them.
pub(crate) async fn until_stopped(args: Args) -> Result<(), BoxError> {
    let guard = args.guard();
    let origin = Origin::new(args.origin, args.origin_timeout);
    let service = guard.layer(tower::service_fn(move |request: Request<Incoming>| {
        let origin = origin.clone();
        async { Ok::<_, Infallible>(origin.ask(request).await) }
    }));
    let listener =
        TcpListener::bind(args.listen).await.map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let connections = GracefulShutdown::new();
    let mut told = Box::pin(told_to_stop()?);
    println!("listening on {}", listener.local_addr()?);
    loop {
        let stream = tokio::select! {
            () = &mut told => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // No more files, likely: some connection has to end before the next one is tried.
                Err(_) => {
                    time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        let answer = service_fn(move |request| front::answer(service.clone(), request));
        // The timer limits how long a head may take to come.
        let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
        // An error is a client that went away or cannot speak HTTP; hyper has told it so where that is possible.
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);
    connections.shutdown().await;
    guard.shutdown().await;
    Ok(())
}

/// Ctrl-C, or SIGTERM from a supervisor; listened to from now on.
#[cfg(unix)]
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Ctrl-C.
#[cfg(not(unix))]
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        _ = tokio::signal::ctrl_c().await;
    })
}

const PAUSE: Duration = Duration::from_millis(50);
