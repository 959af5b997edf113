//! Traces and metrics of a guard in OpenTelemetry.

use crate::guide::opentelemetry::{metrics, traces};
use opentelemetry::{
    KeyValue,
    trace::{SpanId, SpanKind, Status},
};
use opentelemetry_sdk::{
    metrics::{
        InMemoryMetricExporter,
        data::{AggregatedMetrics, MetricData},
    },
    trace::{InMemorySpanExporter, SdkTracerProvider},
};
use stampede_guard::{HISTOGRAM_BUCKETS, StampedeGuard};
use stampede_guard_support::{Down, SECOND};
use std::{collections::BTreeMap, convert::Infallible, sync::LazyLock};
use tracing::{Dispatch, Instrument as _, info_span, subscriber::NoSubscriber};
use tracing_subscriber::{Layer, layer::SubscriberExt, util::SubscriberInitExt};

#[tokio::test]
async fn spans_of_fetches_reach_opentelemetry_with_errors() {
    // While tracing knows of one subscriber only, a thread without one that is the first to reach a span switches it off.
    static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&SECOND_SUBSCRIBER);
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::sink)
        .with_filter(tracing_subscriber::filter::LevelFilter::INFO);
    let _installed = tracing_subscriber::registry().with(log).with(traces(&provider)).set_default();

    let guard = StampedeGuard::in_memory().namespace("shop");
    let call = async || Ok::<_, Infallible>(info_span!("select").in_scope(|| 1));
    for _ in 0..2 {
        guard.fetch("user:1", call).instrument(info_span!("request")).await.expect("an answer");
        assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    }
    guard.fetch("user:2", async || Err::<u64, _>(Down)).instrument(info_span!("request")).await.expect_err("it fails");
    provider.force_flush().expect("all are exported");

    let spans = exporter.get_finished_spans().expect("not shut down");
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let (requests, fetches, selects) = (named("request"), named("stampede_guard.fetch"), named("select"));
    assert_eq!((requests.len(), fetches.len(), selects.len()), (3, 2, 1), "the hit has no span: {spans:#?}");
    let [works, fails] = fetches[..] else { panic!("two fetches") };
    assert_eq!(selects[0].parent_span_id, works.span_context.span_id());
    assert!(requests.iter().any(|request| request.span_context.span_id() == works.parent_span_id));
    assert!(requests.iter().all(|request| request.parent_span_id == SpanId::INVALID && request.events.is_empty()));
    assert_eq!((&works.span_kind, &works.status), (&SpanKind::Internal, &Status::Unset));
    let has = |wanted: &KeyValue| fails.attributes.contains(wanted);
    assert!(matches!(fails.status, Status::Error { .. }), "{fails:#?}");
    assert!(has(&KeyValue::new("error.type", "origin")) && has(&KeyValue::new("stampede_guard.namespace", "shop")));
}

#[tokio::test]
async fn metrics_reach_opentelemetry_with_buckets_in_seconds() {
    let exporter = InMemoryMetricExporter::default();
    let (provider, recorder) = metrics(exporter.clone());
    let _installed = metrics::set_default_local_recorder(&recorder);
    let guard = StampedeGuard::in_memory().namespace("shop");
    for _ in 0..3 {
        guard.fetch("user:1", async || Ok::<_, Infallible>(1)).await.expect("an answer");
        assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    }
    provider.force_flush().expect("all are exported");

    let exported = exporter.get_finished_metrics().expect("not shut down");
    let all: Vec<_> =
        exported.iter().flat_map(|resource| resource.scope_metrics()).flat_map(|of| of.metrics()).collect();
    let (mut hits, mut bounds) = (0, Vec::new());
    for metric in &all {
        match (metric.name(), metric.data()) {
            ("stampede_guard_requests_total", AggregatedMetrics::U64(MetricData::Sum(sum))) => {
                let status = KeyValue::new("status", "hit");
                let points = sum.data_points().filter(|point| point.attributes().any(|label| *label == status));
                hits += points.map(|point| point.value()).sum::<u64>();
            }
            ("stampede_guard_fetch_seconds", AggregatedMetrics::F64(MetricData::Histogram(histogram))) => {
                bounds.extend(histogram.data_points().flat_map(|point| point.bounds()));
            }
            _ => {}
        }
    }
    assert_eq!((hits, bounds), (2, HISTOGRAM_BUCKETS.to_vec()), "{all:#?}");
    // A metric that is described for some of its series only is exported as two.
    let described: BTreeMap<_, _> = all.iter().map(|metric| (metric.name(), metric.description())).collect();
    assert!(all.len() == described.len() && described.values().all(|help| !help.is_empty()), "{described:#?}");
}
