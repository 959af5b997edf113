//! Spans of layers above reach the handler, although it runs in a task of its own.

use crate::{
    kit::{Answer, ask, at_rest, get, site},
    support::Origin,
};
use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::{
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};
use tokio::time;
use tracing::{Dispatch, Instrument, Span, info_span, subscriber::NoSubscriber};
use tracing_subscriber::{Registry, registry::LookupSpan, util::SubscriberInitExt};

/// Returns an app whose responses name the request span that the handler runs in, below a layer with a span per request, as
/// `TraceLayer` is. The layer names its span in `X-Span`.
fn traced(guard: &StampedeGuard, origin: &Origin, control: &'static str) -> Router {
    let spans = Arc::<Mutex<Vec<Span>>>::default();
    let trace = move |request: Request, next: Next| {
        let span = info_span!("request");
        // The id of a span that has ended may be used again.
        spans.lock().expect("no panic").push(span.clone());
        async move {
            let mut response: Response = next.run(request).instrument(span.clone()).await;
            response.headers_mut().insert("x-span", name(&span).parse().expect("a value"));
            response
        }
    };
    let app = site(origin, move |_, _| ([("cache-control", control)], own_request()));
    app.layer(guard.clone()).layer(middleware::from_fn(trace))
}

fn name(span: &Span) -> String {
    span.id().map_or_else(|| "none".to_owned(), |id| id.into_u64().to_string())
}

/// Returns the name of the nearest span of a request. Between it and the handler is the span of the fetch.
fn own_request() -> String {
    let found = Span::current().with_subscriber(|(id, subscriber)| {
        let spans = subscriber.downcast_ref::<Registry>().expect("a registry").span(id).expect("an open span");
        spans.scope().find(|span| span.name() == "request").map(|span| span.id().into_u64().to_string())
    });
    found.flatten().unwrap_or_else(|| "none".to_owned())
}

/// Seen to fail without the feature `tracing`, which was not in the default set: the handler had no span.
#[tokio::test(start_paused = true)]
async fn the_handler_runs_in_the_span_of_its_request() {
    // While tracing knows of one subscriber only, a thread without a subscriber that is the first to reach a span
    // switches that span off for all threads.
    static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&SECOND_SUBSCRIBER);
    let _recording = tracing_subscriber::registry().set_default();
    let is_own = |answer: &Answer| answer.text() == answer.header("x-span");

    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let private = traced(&guard, &origin, "private");
    for cache_status in [CacheStatus::Miss, CacheStatus::Bypass] {
        let answer = ask(&private, get("/private")).await;
        assert_eq!(answer.cache_status(), cache_status);
        assert!(is_own(&answer), "{answer:?}");
        at_rest(&guard).await;
    }

    let guard = guard.policy(Policy::default().stale_while_revalidate(Duration::from_secs(60)));
    let shared = traced(&guard, &origin, "max-age=5");
    assert!(is_own(&ask(&shared, get("/shared")).await), "the leader");
    at_rest(&guard).await;
    time::advance(Duration::from_secs(6)).await;
    let stale = ask(&shared, get("/shared")).await;
    assert_eq!(stale.cache_status(), CacheStatus::Stale);
    at_rest(&guard).await;
    let refreshed = ask(&shared, get("/shared")).await;
    assert_eq!((refreshed.cache_status(), origin.calls()), (CacheStatus::Hit, 4));
    assert_eq!(refreshed.text(), "none", "a refresh outlives its request, so its span is below no other one");
}
