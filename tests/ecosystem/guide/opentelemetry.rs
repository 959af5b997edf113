//! Traces and metrics of a guard for OpenTelemetry, as src/guide/observing.md shows them.

use metrics_exporter_opentelemetry::Recorder;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::{
    metrics::{
        Aggregation, Instrument, InstrumentKind, MeterProviderBuilder, SdkMeterProvider, Stream,
        exporter::PushMetricExporter,
    },
    trace::SdkTracerProvider,
};
use stampede_guard::HISTOGRAM_BUCKETS;
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

/// Returns the layer that sends spans to OpenTelemetry, beside the layer that writes the log.
pub(crate) fn traces<S: Subscriber + for<'a> LookupSpan<'a>>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S> {
    // Spans of the guard have the level `DEBUG`. So have its events about hits, which stay out
    let wanted = filter_fn(|metadata| {
        let level = if metadata.is_span() { Level::DEBUG } else { Level::INFO };
        *metadata.level() <= level
    });
    tracing_opentelemetry::layer().with_tracer(provider.tracer("shop")).with_filter(wanted)
}

/// Returns the recorder of metrics, and its provider, which an application shuts down at its end.
pub(crate) fn metrics(exporter: impl PushMetricExporter + 'static) -> (SdkMeterProvider, Recorder) {
    let in_seconds = |instrument: &Instrument| {
        let is_ours =
            instrument.name().starts_with("stampede_guard_") && instrument.kind() == InstrumentKind::Histogram;
        let (boundaries, record_min_max) = (HISTOGRAM_BUCKETS.to_vec(), true);
        let buckets = Aggregation::ExplicitBucketHistogram { boundaries, record_min_max };
        is_ours.then(|| Stream::builder().with_aggregation(buckets).build().expect("the boundaries increase"))
    };
    let provider = |builder: MeterProviderBuilder| builder.with_periodic_exporter(exporter).with_view(in_seconds);
    Recorder::builder("shop").with_meter_provider(provider).build()
}
