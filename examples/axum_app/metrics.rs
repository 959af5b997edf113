//! `/metrics`, for Prometheus.

use crate::Result;
use axum::Router;

/// Installs the recorder of the process, and returns the route that renders it.
#[cfg(feature = "metrics")]
pub(crate) fn routes() -> Result<Router> {
    use axum::{http::header::CONTENT_TYPE, routing::get};
    use metrics_exporter_prometheus::PrometheusBuilder;

    let metrics = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
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

/// The bounds of the buckets of all histograms, in seconds. Without any, the exporter computes quantiles itself, and
/// Prometheus cannot combine the quantiles of several processes.
#[cfg(feature = "metrics")]
const BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
#[cfg(feature = "metrics")]
const UPKEEP: std::time::Duration = std::time::Duration::from_secs(5);
