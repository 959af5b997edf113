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
use std::{collections::BTreeSet, fs, time::SystemTime};

/// Drives the app through a herd, an invalidation during a fetch, a failing origin and an outage of Redis.
#[tokio::test]
async fn each_panel_has_data_after_the_demo() {
    if !installed(&["prometheus"]) {
        return;
    }
    let start = SystemTime::now();
    let app = App::start(&["--metrics", "--own-redis", "--delay", "1500"]).await;
    let prometheus = Prometheus::scraping(&app.address).await;
    // Twice, because a rate needs two values of a series, and some series begin with their first event.
    for id in ["1", "2"] {
        drive(&app, id).await;
    }

    for panel in panels() {
        for query in &panel.queries {
            let what = format!("data for `{}`: {query}", panel.title);
            eventually(&what, async || {
                prometheus.values(query, start).await.iter().any(|value| value.is_finite() && *value != 0.0)
            })
            .await;
        }
    }
    for rule in prometheus.rules().await {
        assert_eq!((&rule["health"], &rule["lastError"]), (&"ok".into(), &Value::Null), "{rule}");
    }
    let scrape = app.get("/metrics").await;
    let samples: String = scrape.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(metrics(&samples), metrics(&section("Metrics")), "{scrape}");
}

#[test]
fn dashboard_shows_exactly_the_documented_metrics() {
    let queries = panels().into_iter().flat_map(|panel| panel.queries).collect::<Vec<_>>().join("\n");
    assert_eq!(metrics(&queries), metrics(&section("Metrics")));
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
    let documented = section("Metrics");
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

/// Makes everything happen once that a panel shows.
async fn drive(app: &App, id: &str) {
    // An invalidation during the fetch takes the lease from it, which its next heartbeat finds out.
    let calls = app.origin_calls().await;
    let herd = format!("herd?guard=true&requests=100&id={id}");
    let invalidate = format!("invalidate?id={id}");
    let invalidation = async {
        eventually("the origin is called", async || app.origin_calls().await > calls).await;
        app.demo(&invalidate).await
    };
    assert_eq!(tokio::join!(app.demo(&herd), invalidation), (200, 204));

    // A miss, a read from Redis that is copied, and a hit in the process.
    let report = format!("/report/{id}");
    for _ in 0..3 {
        app.get(&report).await;
    }
    app.get("/basket").await;

    assert_eq!(app.demo("origin?failing=true").await, 204);
    assert_eq!(client::send("GET", &app.address, &format!("{report}failing")).await.0, 503);
    assert_eq!(app.demo("origin?failing=false").await, 204);

    assert_eq!(app.demo("redis/stop").await, 204);
    assert_eq!(app.demo(&format!("{herd}outage")).await, 200);
    assert_eq!(app.demo("redis/start").await, 204);
    eventually("the guard reaches Redis again", async || app.demo(&invalidate).await == 204).await;
}

struct Panel {
    title: String,
    queries: Vec<String>,
}

/// Returns the panels of the dashboard, with their variables replaced as Grafana does.
fn panels() -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(&read("grafana/stampede-guard.json")).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("a list").iter().filter(|panel| panel["type"] != "row");
    panels.map(Panel::of).collect()
}

impl Panel {
    fn of(panel: &Value) -> Self {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        assert!(text(&panel["description"]).len() > 80, "{panel} says what to look for and what to do");
        let targets = panel["targets"].as_array().expect("a list").iter();
        let queries = targets.map(|target| replaced(text(&target["expr"]))).collect();
        Self { title: text(&panel["title"]), queries }
    }
}

fn replaced(query: String) -> String {
    let variables = [("$__rate_interval", "5s"), ("$job", ".*"), ("$namespace", ".*"), ("$name", ".*")];
    let query = variables.iter().fold(query, |query, (variable, value)| query.replace(variable, value));
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

/// Returns a section of docs/operations.md.
fn section(title: &str) -> String {
    let operations = fs::read_to_string(repository("docs/operations.md")).expect("the document is there");
    let (_, section) = operations.split_once(&format!("\n## {title}\n")).expect("the section is there");
    section.split("\n## ").next().expect("a text").to_owned()
}

fn read(file: &str) -> String {
    fs::read_to_string(ops(file)).expect("the file is there")
}
