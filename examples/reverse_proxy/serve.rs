//! Serves connections until they end. After a stop signal, each connection finishes its open request.

use crate::{args::Args, fields, front, upstream::Origin};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use stampede_guard::BoxError;
use std::{convert::Infallible, time::Duration};
use tokio::{net::TcpListener, time};
use tower::Layer;

/// Serves until a stop signal. Then it accepts no more connections, finishes the open requests, and waits for the
/// background work of the guard.
pub(crate) async fn until_stopped(args: Args) -> Result<(), BoxError> {
    let guard = args.guard();
    let trusted = if args.trust_forwarded { &fields::OF_A_PROXY[..] } else { &[] };
    let origin = Origin::new(args.origin, args.origin_timeout);
    let service = guard.layer(tower::service_fn(move |request: Request<Incoming>| {
        let origin = origin.clone();
        async { Ok::<_, Infallible>(origin.ask(request).await) }
    }));
    let listener =
        TcpListener::bind(args.listen).await.map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let connections = GracefulShutdown::new();
    let mut told = Box::pin(example_support::told_to_stop());
    println!("listening on {}", listener.local_addr()?);
    loop {
        let stream = tokio::select! {
            () = &mut told => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // Probably too many open files: a connection has to end before the next attempt.
                Err(_) => {
                    time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        let answer = service_fn(move |request| front::answer(service.clone(), request, trusted));
        // The timer limits how long the head of a request may take to arrive.
        let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
        // An error means that the client disconnected or does not speak HTTP. If possible, hyper has sent a response.
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);
    connections.shutdown().await;
    guard.drain().await;
    Ok(())
}

const PAUSE: Duration = Duration::from_millis(50);
