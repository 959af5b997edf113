//! A real Prometheus.

use crate::{client, programs::ops};
use serde_json::Value;
use stampede_guard_support::{eventually, program::program};
use std::{
    fs::{self, File},
    time::SystemTime,
};
use tempfile::TempDir;
use tokio::process::Child;

/// A Prometheus with the configuration in `ops/prometheus`, killed on drop.
pub(crate) struct Prometheus {
    address: String,
    _process: Child,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts it with the app as its target. It scrapes once a second, and so sees what lasts longer. A shorter interval is
    /// also a shorter timeout, which a busy machine exceeds.
    pub(crate) async fn scraping(app: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut config = fs::read_to_string(ops("prometheus/prometheus.yml")).expect("the example is there");
        for (example, test) in [("127.0.0.1:3000", app.to_owned()), ("interval: 5s", "interval: 1s".to_owned())] {
            assert!(config.contains(example), "the example has `{example}`");
            config = config.replace(example, &test);
        }
        let at = |name: &str| dir.path().join(name);
        fs::write(at("prometheus.yml"), config).expect("the directory is writable");
        fs::copy(ops("prometheus/alerts.yml"), at("alerts.yml")).expect("the rules are there");

        let log = File::create(at("log")).expect("the directory is writable");
        let mut prometheus = program("prometheus");
        prometheus.arg("--config.file").arg(at("prometheus.yml")).arg("--storage.tsdb.path").arg(at("data"));
        prometheus.arg("--web.listen-address=127.0.0.1:0").stdout(log.try_clone().expect("a file")).stderr(log);
        let process = prometheus.spawn().expect("it starts");
        let log = || fs::read_to_string(at("log")).expect("the log is UTF-8");
        // In either order: the second line comes from another task.
        let lines = ["ready to receive web requests", "\"Listening on\""];
        eventually("Prometheus is ready", async || lines.iter().all(|line| log().contains(line))).await;
        let log = log();
        let address =
            log.lines().find(|line| line.contains("\"Listening on\"")).and_then(|line| line.split("address=").nth(1));
        Self { address: address.expect("the log has the address").to_owned(), _process: process, _dir: dir }
    }

    /// Returns the values of all series of a query from `start` until now, as a panel draws them.
    pub(crate) async fn values(&self, query: &str, start: SystemTime) -> Vec<f64> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (start, end) = (unix_time(start), unix_time(SystemTime::now()));
        let data = self.get(&format!("query_range?query={query}&start={start}&end={end}&step=1")).await;
        let series = data["result"].as_array().expect("a list of series").iter();
        let points = series.flat_map(|series| series["values"].as_array().expect("a list of points"));
        points.map(|point| point[1].as_str().and_then(|value| value.parse().ok()).expect("a number")).collect()
    }

    /// Returns the rules that it has loaded.
    pub(crate) async fn rules(&self) -> Vec<Value> {
        let data = self.get("rules").await;
        let groups = data["groups"].as_array().expect("a list of groups").iter();
        groups.flat_map(|group| group["rules"].as_array().expect("a list of rules").clone()).collect()
    }

    async fn get(&self, path: &str) -> Value {
        let answer = client::get(&self.address, &format!("/api/v1/{path}")).await;
        let mut answer: Value = serde_json::from_str(&answer).expect("Prometheus answers with JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }
}

fn unix_time(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_secs_f64()
}
