//! The dashboard and the alerts, against a real Prometheus that scrapes `axum_app`.

use crate::{
    app::App,
    client,
    programs::{installed, ops, repository},
    prometheus::Prometheus,
};
use serde_json::Value;
use stampede_guard_support::{
    eventually,
    program::{printed, program},
};
use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime},
};
use tokio::task::JoinSet;

/// Drives the app through herds, invalidations during a fetch, failures of the origin and outages of Redis, until all
/// queries have data.
#[tokio::test]
async fn each_panel_has_data_after_the_demo() {
    if !installed(&["prometheus"]) {
        return;
    }
    let start = SystemTime::now();
    let app = App::start(&["--metrics", "--own-redis", "--delay", "1500"]).await;
    let prometheus = Prometheus::scraping(&app.address).await;
    let mut without_data = queries();
    eventually("the hit ratio is zero without a hit", async || {
        app.get("/basket").await;
        prometheus.values(&without_data[0], start).await.contains(&0.0)
    })
    .await;
    for round in 1.. {
        drive(&app, round).await;
        let mut still = Vec::new();
        for query in without_data {
            let values = prometheus.values(&query, start).await;
            still.extend((!values.iter().any(|value| value.is_finite() && *value != 0.0)).then_some(query));
        }
        without_data = still;
        if without_data.is_empty() {
            break;
        }
        assert!(start.elapsed().expect("a later time") < BOUND, "no data after round {round}: {without_data:#?}");
    }

    let rules = prometheus.rules().await;
    assert_eq!(rules.len(), alerts(&read("prometheus/alerts.yml")).len(), "{rules:?}");
    for rule in rules {
        assert_eq!((&rule["health"], &rule["lastError"]), (&"ok".into(), &Value::Null), "{rule}");
    }
    let scrape = app.get("/metrics").await;
    let samples: String = scrape.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(metrics(&samples), metrics(&section("Metrics")), "{scrape}");
}

#[test]
fn dashboard_shows_exactly_the_documented_metrics() {
    assert_eq!(metrics(&queries().join("\n")), metrics(&section("Metrics")));
}

#[test]
fn each_alert_is_documented_with_its_severity() {
    let (rules, documented) = (read("prometheus/alerts.yml"), section("Boards and alerts"));
    let rows = documented.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let documented: BTreeSet<_> = rows.filter_map(|(name, rest)| Some((name, rest.split(" |").next()?))).collect();
    assert_eq!(alerts(&rules), documented);
}

#[test]
fn alerts_name_only_documented_metrics() {
    let locks = fs::read_to_string(repository("src/guide/locks.md")).expect("the page is there");
    let documented = section("Metrics") + &locks;
    for file in ["prometheus/alerts.yml", "prometheus/alerts_test.yml"] {
        let rules = read(file);
        let unknown: Vec<_> = metrics(&rules).difference(&metrics(&documented)).copied().collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

/// The unit tests of promtool fail if one of their alerts does not fire, or fires for a job that is in order.
#[tokio::test]
async fn each_alert_fires_in_the_unit_tests_of_promtool() {
    let (rules, tests) = (read("prometheus/alerts.yml"), read("prometheus/alerts_test.yml"));
    for (name, _) in alerts(&rules) {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not in alerts_test.yml");
    }
    if !installed(&["promtool"]) {
        return;
    }
    for (what, file) in [("check", "alerts.yml"), ("test", "alerts_test.yml")] {
        let mut promtool = program("promtool");
        promtool.args([what, "rules"]).arg(ops("prometheus").join(file));
        printed(promtool).await;
    }
}

/// Lets everything happen that a panel shows. On a busy machine a step may miss its effect, because Redis seems to be
/// down: the next round repeats it.
async fn drive(app: &App, round: u32) {
    let demo = async |path: &str| {
        let status = app.demo(path).await;
        assert!(matches!(status, 200 | 204 | 503), "POST /demo/{path}: {status}");
        status
    };
    // An invalidation during the fetch takes the lease from it, which its next heartbeat finds out.
    let calls = app.origin_calls().await;
    let (herd, invalidate) = (format!("herd?guard=true&requests=100&id={round}"), format!("invalidate?id={round}"));
    let invalidation = async {
        eventually("the origin is called", async || app.origin_calls().await > calls).await;
        demo(&invalidate).await
    };
    tokio::join!(demo(&herd), invalidation);

    // A miss, a read from Redis that is copied, and a hit in the process.
    let report = format!("/report/{round}");
    for _ in 0..3 {
        app.get(&report).await;
    }
    app.get("/basket").await;

    demo("origin?failing=true").await;
    client::send("GET", &app.address, &format!("{report}failing")).await;
    demo("origin?failing=false").await;

    demo("redis/stop").await;
    demo(&format!("{herd}outage")).await;
    // More keys than the guard fetches at once without Redis: the other ones are rejected after a second.
    let mut others = JoinSet::new();
    for n in 0..100 {
        let (address, path) = (app.address.clone(), format!("{report}overload{n}"));
        others.spawn(async move { client::send("GET", &address, &path).await });
    }
    others.join_all().await;
    demo(&invalidate).await; // pending until Redis is back
    // The port may be taken for a moment.
    eventually("Redis starts again", async || demo("redis/start").await == 204).await;
    eventually("the guard reaches Redis again", async || demo(&invalidate).await == 204).await;
}

/// Returns the queries of all panels, with their variables replaced as Grafana does.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("grafana/stampede-guard.json")).expect("it is JSON");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let panels = list(&dashboard["panels"]).into_iter().filter(|panel| panel["type"] != "row");
    let targets = panels.flat_map(|panel| {
        assert!(text(&panel["description"]).len() > 80, "{panel} says what to look for and what to do");
        list(&panel["targets"])
    });
    targets.map(|target| replaced(text(&target["expr"]))).collect()
}

fn replaced(query: String) -> String {
    let variables = [("$__rate_interval", "5s"), ("$__range", "5m"), ("$job", ".*"), ("$instance", ".*")];
    let variables = variables.into_iter().chain([("$namespace", ".*"), ("$name", ".*")]);
    let query = variables.fold(query, |query, (variable, value)| query.replace(variable, value));
    assert!(!query.contains('$'), "{query} has an unknown variable");
    query
}

/// Returns the metrics that a text names, without the suffixes of the series of a histogram.
fn metrics(text: &str) -> BTreeSet<&str> {
    let name = |(at, _)| {
        let end = text[at..].find(|c: char| !c.is_ascii_lowercase() && c != '_');
        let name = &text[at..end.map_or(text.len(), |end| at + end)];
        ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
    };
    text.match_indices("stampede_guard_").map(name).collect()
}

/// Returns name and severity of each alert.
fn alerts(rules: &str) -> BTreeSet<(&str, &str)> {
    let rules = rules.split("- alert: ").skip(1);
    let alerts: BTreeSet<_> = rules
        .filter_map(|rule| Some((rule.lines().next()?, rule.split("severity: ").nth(1)?.lines().next()?)))
        .collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    alerts
}

/// Returns a section of src/guide/observing.md.
fn section(title: &str) -> String {
    let operations = fs::read_to_string(repository("src/guide/observing.md")).expect("the document is there");
    let (_, section) = operations.split_once(&format!("\n# {title}\n")).expect("the section is there");
    // A snippet may have hidden lines, which begin like a heading.
    section.split("\n\n# ").next().expect("a text").to_owned()
}

fn read(file: &str) -> String {
    fs::read_to_string(ops(file)).expect("the file is there")
}

/// Maximum time until each panel has data. Two rounds take some 15 s.
const BOUND: Duration = Duration::from_secs(180);
