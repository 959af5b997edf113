//! `/metrics`, for Prometheus.

use crate::Result;
use axum::Router;

/// Installs the recorder of the process, and returns the route that renders it.
#[cfg(feature = "metrics")]
pub(crate) fn routes() -> Result<Router> {
    use axum::{http::header::CONTENT_TYPE, routing::get};
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    use stampede_guard::HISTOGRAM_BUCKETS;

    let ours = Matcher::Prefix("stampede_guard_".to_owned());
    let metrics = PrometheusBuilder::new().set_buckets_for_metric(ours, &HISTOGRAM_BUCKETS)?.install_recorder()?;
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        // Without it, samples of histograms take memory until the next scrape.
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    let render = async move || ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render());
    Ok(Router::new().route("/metrics", get(render)))
}

/// Explains how to build the example with metrics.
#[cfg(not(feature = "metrics"))]
pub(crate) fn routes() -> Result<Router> {
    let build = "cargo run --release --example axum_app --features metrics -- --metrics";
    Err(format!("--metrics needs the feature `metrics`: {build}").into())
}

#[cfg(feature = "metrics")]
const UPKEEP: std::time::Duration = std::time::Duration::from_secs(5);
