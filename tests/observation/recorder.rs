//! A Prometheus recorder for one thread.

use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// The metrics of the thread of a test.
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    _installed: LocalRecorderGuard<'static>,
}

impl Metrics {
    /// Installs a recorder. It is never freed, because the guard of a recorder borrows it.
    pub(crate) fn record() -> Self {
        let recorder: &PrometheusRecorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        Self { handle: recorder.handle(), _installed: metrics::set_default_local_recorder(recorder) }
    }

    /// Returns the sum over all series of the metric that have these labels.
    pub(crate) fn get(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let text = self.handle.render();
        let series = text.lines().filter_map(|line| line.split_once(['{', ' ']).map(|(name, rest)| (line, name, rest)));
        let of_metric = series.filter(|(_, name, rest)| {
            *name == format!("stampede_guard_{metric}") && labels.iter().all(|label| rest.contains(label.as_str()))
        });
        of_metric.map(|(line, ..)| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number")).sum()
    }

    pub(crate) fn text(&self) -> String {
        self.handle.render()
    }
}
