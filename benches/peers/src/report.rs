//! docs/comparison.md, and the line of JSON.

use crate::{
    Result,
    scenarios::{
        embedded::{self, BARE, FETCH_ARC, LAYER, NEAR, NEAR_LAYER},
        herd::{ERROR_HERD, HERD},
        leader, memory, outage, throughput,
    },
    subjects::{self, own},
    table::{Row, Table},
};
use serde_json::{Value, json};
use std::{fmt::Write, fs, path::Path, process::Command};

/// One table as Markdown: medians, and in brackets the least and the most.
pub(crate) fn table(table: &Table) -> String {
    let mut text = format!("## {}\n\n{}\n\n| |", table.title, wrapped(&table.how));
    for column in table.columns {
        let _ = write!(text, " {} |", column.name);
    }
    text += " |\n|---|";
    text += &"--:|".repeat(table.columns.len());
    text += "---|\n";
    for row in &table.rows {
        let _ = write!(text, "| {} |", row.subject);
        for column in table.columns {
            let _ = write!(text, " {} |", spread(row, column.name, column.digits));
        }
        let _ = writeln!(text, " {} |", row.notes.join("; "));
    }
    text
}

fn spread(row: &Row, column: &str, digits: usize) -> String {
    let figures = row.figures(column);
    let Some(median) = row.median(column) else { return "-".to_owned() };
    let (least, most) = (figures[0], figures[figures.len() - 1]);
    match least == most {
        true => format!("{median:.digits$}"),
        false => format!("{median:.digits$} ({least:.digits$}-{most:.digits$})"),
    }
}

/// Our own figures.
pub(crate) fn json(tables: &[Table]) -> Result<Value> {
    let own = Own::of(tables)?;
    Ok(json!({
        "herd": {
            "origin_calls": count(own.herd_calls),
            "last_answer_ms": rounded(own.herd_last),
            "compute_ms": 50,
            "redis_commands": count(own.herd_commands),
        },
        "redis_hit_vs_raw_get": rounded(own.hit),
        "near_hit_vs_moka": rounded(own.near),
        "miss_vs_raw_get": rounded(own.miss),
        "error_herd": { "origin_calls": count(own.error_calls), "last_answer_ms": rounded(own.error_last) },
        "leader_dropped": { "origin_calls": count(own.leader_calls), "recovery_ms": rounded(own.recovery) },
        "sigstop": { "failed": count(own.stop_failed), "worst_ms": rounded(own.stop_worst) },
        "sigkill": { "failed": count(own.kill_failed), "worst_ms": rounded(own.kill_worst), "back_ms": rounded(own.back) },
    }))
}

/// A median of counts may be half-way between two.
fn count(figure: f64) -> Value {
    if figure.fract() == 0.0 { json!(figure as u64) } else { json!(figure) }
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// What the line of JSON and the first table are about.
struct Own {
    herd_calls: f64,
    herd_last: f64,
    herd_commands: f64,
    /// Of moka, in the same herd.
    moka_last: f64,
    hit: f64,
    /// Of one key.
    same: f64,
    near: f64,
    embedded: f64,
    /// Nanoseconds that the layer adds to a service.
    near_layer: f64,
    embedded_layer: f64,
    miss: f64,
    error_calls: f64,
    error_last: f64,
    leader_calls: f64,
    recovery: f64,
    stop_failed: f64,
    stop_worst: f64,
    kill_failed: f64,
    kill_worst: f64,
    back: f64,
}

impl Own {
    /// The medians of `fetch`; of the leader, the worse of both places; of failures, all of them.
    fn of(tables: &[Table]) -> Result<Self> {
        let find = |name: &str| tables.iter().find(|table| table.name == name);
        let figure = |name: &str, subject: &str, column: &str| {
            let figure = find(name).and_then(|table| table.figure(subject, column));
            figure.ok_or_else(|| format!("{name}: {subject} has no {column}"))
        };
        let fetch = |name: &str, column: &str| figure(name, own::FETCH.name, column);
        let most = |name: &str, column: &str| {
            let row = find(name).and_then(|table| table.rows.iter().find(|row| row.subject == own::FETCH.name));
            let most = row.and_then(|row| row.figures(column).last().copied());
            most.ok_or_else(|| format!("{name}: nothing under {column}"))
        };
        let local = |subject: &str, column: &str| figure(embedded::NAME, subject, column);
        Ok(Self {
            herd_calls: fetch(HERD, "origin calls")?,
            herd_last: fetch(HERD, "last answer, ms")?,
            herd_commands: fetch(HERD, "Redis commands")?,
            moka_last: figure(HERD, "moka", "last answer, ms")?,
            same: fetch(throughput::SAME, "of raw GET")?,
            hit: fetch(throughput::HIT, "of raw GET")?,
            near: local(NEAR, "of moka get")?,
            embedded: local(FETCH_ARC, "of moka get")?,
            near_layer: local(NEAR_LAYER, "ns")? - local(BARE, "ns")?,
            embedded_layer: local(LAYER, "ns")? - local(BARE, "ns")?,
            miss: fetch(throughput::MISS, "of raw GET")?,
            error_calls: fetch(ERROR_HERD, "origin calls")?,
            error_last: fetch(ERROR_HERD, "last answer, ms")?,
            leader_calls: fetch(leader::NAME, leader::CALLS)?.max(fetch(leader::NAME, leader::CALLS_THERE)?),
            recovery: fetch(leader::NAME, leader::RECOVERY)?.max(fetch(leader::NAME, leader::RECOVERY_THERE)?),
            stop_failed: most(outage::SIGSTOP, "failed")?,
            stop_worst: fetch(outage::SIGSTOP, "worst, ms")?,
            kill_failed: most(outage::SIGKILL, "failed")?,
            kill_worst: fetch(outage::SIGKILL, "worst, ms")?,
            back: fetch(outage::SIGKILL, "back, ms").or_else(|_| most(outage::SIGKILL, "back, ms"))?,
        })
    }
}

/// Writes the whole document.
pub(crate) fn write(path: &Path, tables: &[Table]) -> Result<()> {
    let mut text = String::from("# Compared with its peers\n\n");
    let _ = writeln!(
        text,
        "{}\n",
        wrapped(&format!(
            "{}, on {}; {}; {}. Written by `scripts/compare.sh`, which repeats all of it in less than twenty minutes; \
         `--quick` repeats our own rows, redis-rs and moka in less than three.",
            run("date", &["-u", "+%Y-%m-%d"]),
            machine(),
            run("rustc", &["--version"]),
            run("redis-server", &["--version"]).split(" sha").next().unwrap_or_default(),
        ))
    );
    let _ = writeln!(text, "{}\n", wrapped(READ));
    let _ = writeln!(text, "![Herd: origin calls and last answer](comparison_herd.svg)\n");
    let _ = writeln!(text, "## What was to be reached\n\n{}\n", reached(tables)?);
    for one in tables {
        let _ = writeln!(text, "{}", self::table(one));
        let picture = match one.name {
            throughput::HIT => "![Hits per second](comparison_hit.svg)\n\n",
            outage::SIGKILL => "![Worst latency while Redis is away](comparison_outage.svg)\n\n",
            _ => "",
        };
        text += picture;
    }
    let _ = writeln!(text, "## What was compared\n\n| | configured as |\n|---|---|");
    for entry in subjects::ALL {
        let _ = writeln!(text, "| {} | {} |", entry.name, entry.how);
    }
    let _ = writeln!(text, "\n{}", wrapped(LEFT_OUT));
    let _ = writeln!(text, "\nVersions, from `benches/peers/Cargo.lock`: {}.", versions());
    Ok(fs::write(path, text)?)
}

/// The rows of the table that this crate was to reach.
fn reached(tables: &[Table]) -> Result<String> {
    let own = Own::of(tables)?;
    let mut text = String::from("| work | limit | to reach | measured | reached |\n|---|---|---|---|---|\n");
    let mut row = |work: &str, limit: &str, to_reach: &str, measured: String, reached: bool, why_not: &str| {
        let reached = if reached { "yes".to_owned() } else { format!("**no**: {why_not}") };
        let _ = writeln!(text, "| {work} | {limit} | {to_reach} | {measured} | {reached} |");
    };
    row(
        "2 processes x 500 on one cold key, 50 ms: origin calls / last answer / Redis commands",
        "1 / 50 ms / about 6",
        "1 / 55 ms / 12",
        format!("{:.0} / {:.1} ms / {:.0}", own.herd_calls, own.herd_last, own.herd_commands),
        own.herd_calls <= 1.0 && own.herd_last <= 55.0 && own.herd_commands <= 12.0,
        &format!(
            "so long it takes these cores to start and answer a thousand callers; moka, without Redis: {:.1} ms",
            own.moka_last
        ),
    );
    row(
        "Redis hit, 64 callers, 64 keys, 1 KiB, against raw GET",
        "1.00",
        "0.95",
        format!("{:.2}; of one key {:.2}", own.hit, own.same),
        own.hit >= 0.95,
        "a hit looks into the flights, decodes and judges an entry: more than twice the instructions of the GET (docs/measured.md)",
    );
    row(
        "near hit, embedded hit against moka `get`; through the layer",
        "1.00",
        "0.8; 1 µs",
        format!(
            "{:.2}, {:.2}; {:.2} µs, {:.2} µs",
            own.near,
            own.embedded,
            own.near_layer / 1e3,
            own.embedded_layer / 1e3
        ),
        own.near >= 0.8 && own.near_layer <= 1e3,
        "the layer makes a key and a response by RFC 9111; how fast this machine is, says the service without the layer",
    );
    row(
        "miss, compute 0, 64 callers, against raw GET",
        "0.33",
        "0.22",
        format!("{:.2}", own.miss),
        own.miss >= 0.22,
        "both scripts together take 40 to 55 µs of Redis, and the client 90 µs: the lease, its fence, a task of its own",
    );
    row(
        "500 callers in 2 processes, failing origin: calls / last answer",
        "1 / 50 ms",
        "1 / 60 ms",
        format!("{:.0} / {:.1} ms", own.error_calls, own.error_last),
        own.error_calls <= 1.0 && own.error_last <= 60.0,
        "see the first row",
    );
    row(
        "caller that leads is dropped, 100 waiters: calls / recovery",
        "1 / 0",
        "1 / 0 extra",
        format!("{:.0} / {:.1} ms", own.leader_calls, own.recovery),
        own.leader_calls <= 1.0 && own.recovery <= SLACK,
        "the computation went on, the answer took its time to a hundred waiters",
    );
    row(
        "Redis SIGSTOPped 3 s, 16 clients: failed / worst latency",
        "0 / 50 ms",
        "0 / 300 ms",
        format!("{:.0} / {:.0} ms", own.stop_failed, own.stop_worst),
        own.stop_failed == 0.0 && own.stop_worst <= 300.0 + SLACK,
        "the operation timeout of 250 ms, the 50 ms, and what the other subjects took of these cores",
    );
    row(
        "Redis SIGKILLed 15 s: failed / worst latency / back",
        "0 / 50 ms / 0",
        "0 / 300 ms / 1.5 s",
        format!("{:.0} / {:.0} ms / {:.1} s", own.kill_failed, own.kill_worst, own.back / 1e3),
        own.kill_failed == 0.0 && own.kill_worst <= 300.0 + SLACK && own.back <= 1_500.0,
        "see the table below",
    );
    if let Some(memory) = tables.iter().find(|table| table.name == memory::NAME) {
        let figure = |column| memory.figure(own::FETCH.name, column).ok_or("no figures of memory");
        let (waiter, idle, future) = (figure(memory::WAITER)?, figure(memory::IDLE)?, figure(memory::FUTURE)?);
        row(
            "memory per waiting caller; per idle key",
            "task size; 0",
            "under 1 KiB over the caller's own future; 0",
            format!("{waiter:.0} bytes over a future of {future:.0}; {idle:.0} bytes"),
            waiter < 1024.0 && idle < PAGE_NOISE,
            "see the table below",
        );
    }
    let _ = write!(
        text,
        "\n{}",
        wrapped(&format!(
            "A recovery counts as none, and latencies of an outage as reached, up to {SLACK:.0} ms beyond: timers are of whole \
             milliseconds, and an answer takes its time to a hundred waiters. Of a dropped leader the worse of both places is \
             shown; failures are those of all repeats; the hits of the third row are asked for by one thread.",
        ))
    );
    Ok(text)
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("an unknown CPU", |line| line.trim_matches([':', '\t', ' ']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format!(
        "{cores} cores of {model} (Linux {}, load average {load} at the end)",
        run("uname", &["-r"]).split('-').next().unwrap_or_default()
    )
}

fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().trim().to_owned()
}

fn versions() -> String {
    let lock = include_str!("../Cargo.lock");
    let packages = lock.split("[[package]]").filter_map(|package| {
        let field =
            |name: &str| package.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim_matches('"'));
        let (name, version) = (field("name = ")?, field("version = ")?);
        PEERS.contains(&name).then(|| format!("{name} {version}"))
    });
    packages.collect::<Vec<_>>().join(", ")
}

/// Lines of at most 120 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, String::len);
        if line > 0 && line + 1 + word.len() > 120 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// Milliseconds.
const SLACK: f64 = 5.0;
/// Bytes per key that whole pages make of nothing.
const PAGE_NOISE: f64 = 8.0;
const PEERS: &[&str] = &[
    "amalgam-cache",
    "axum",
    "axum-response-cache",
    "cached",
    "foyer",
    "hitbox",
    "hitbox-http",
    "hitbox-redis",
    "hitbox-tower",
    "moka",
    "redis",
    "stampede-guard",
    "tokio",
    "tower",
    "tower-http-cache",
];
const READ: &str = "Figures are medians of interleaved repeats, with the least and the most in brackets. Redis, clients and \
    origin share the cores, so absolute figures say little and a ratio is of one repeat; counts are exact. Every cell is a \
    process of its own, which has made its connections before anything is counted.";
const LEFT_OUT: &str = "Not in a scenario: what keeps its values in the process is not in the outages, as it does not use \
    Redis, and not on another instance; the plain GET only where something is compared with it. The values are 1 KiB. Layers \
    over HTTP get a request and give a body, so they do more than functions do. redis-rs has its default timeouts (500 ms for \
    an answer, 1 s to connect) unless the row says otherwise.";
