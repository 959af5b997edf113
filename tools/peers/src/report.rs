//! Writes docs/lab/comparison.md.

use crate::{
    Result, reached,
    scenarios::{outage, throughput},
    subjects,
    table::{Row, Table},
};
use std::{fmt::Write, fs, path::Path, process::Command};

/// Returns one table as Markdown: medians, with the minimum and maximum in brackets.
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

/// Writes the whole document, with the table that README.md quotes.
pub(crate) fn write(path: &Path, summary: &str, tables: &[Table]) -> Result<()> {
    let mut text = String::from("# Compared with its peers\n\n");
    let _ = writeln!(
        text,
        "{}\n",
        wrapped(&format!(
            "{}, on {}; {}; {}. Written by `scripts/compare.sh`, which repeats everything in less than twenty \
             minutes. `--quick` repeats our own rows, redis-rs and moka in a minute, plus the build.",
            run("date", &["-u", "+%Y-%m-%d"]),
            machine(),
            run("rustc", &["--version"]),
            run("redis-server", &["--version"]).split(" sha").next().unwrap_or_default(),
        ))
    );
    let _ = writeln!(text, "{}\n\n## In short\n\n{summary}", wrapped(READ));
    let _ = writeln!(text, "![Herd: origin calls and last answer](comparison_herd.svg)\n");
    let _ = writeln!(text, "## Goals\n\n{}\n", reached::table(tables)?);
    for one in tables {
        let _ = writeln!(text, "{}", self::table(one));
        let picture = match one.name {
            throughput::HIT => "![Hits per second](comparison_hit.svg)\n\n",
            outage::SIGKILL => "![Worst latency while Redis is away](comparison_outage.svg)\n\n",
            _ => "",
        };
        text += picture;
    }
    let _ = writeln!(text, "## Configurations\n\n| | configured as |\n|---|---|");
    for entry in subjects::ALL {
        let _ = writeln!(text, "| {} | {} |", entry.name, entry.how);
    }
    let _ = writeln!(text, "\n{}", wrapped(LEFT_OUT));
    let _ = writeln!(text, "\nVersions, from `tools/peers/Cargo.lock`: {}.", versions());
    Ok(fs::write(path, text)?)
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

pub(crate) fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().trim().to_owned()
}

fn versions() -> String {
    let shown = locked().filter(|(name, _)| PEERS.contains(name)).map(|(name, version)| format!("{name} {version}"));
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns the version of the package that is built.
pub(crate) fn version(name: &str) -> Option<&'static str> {
    locked().find_map(|(other, version)| (other == name).then_some(version))
}

/// Returns the names and versions in the lock file.
fn locked() -> impl Iterator<Item = (&'static str, &'static str)> {
    include_str!("../Cargo.lock").split("[[package]]").filter_map(|package| {
        let field = |name| package.lines().find_map(|line: &str| line.strip_prefix(name)?.strip_prefix(" = "));
        Some((field("name")?.trim_matches('"'), field("version")?.trim_matches('"')))
    })
}

/// Wraps the text into lines of at most 120 characters.
pub(crate) fn wrapped(text: &str) -> String {
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
const READ: &str = "Figures are medians of interleaved repeats, with the minimum and maximum in brackets. Redis, \
    clients and origin share the cores, so absolute figures mean little. A ratio compares figures of one repeat. \
    Counts are exact. Every cell is a separate process, which opens its connections before counting starts.";
const LEFT_OUT: &str = "Not in every scenario: subjects that keep their values in the process take no part in the \
    outages, because they do not use Redis, and have no other instance. The plain GET is only in scenarios that \
    compare with it. Values have 1 KiB. Layers over HTTP receive a request and return a body, so they do more work \
    than functions. redis-rs has its default timeouts (500 ms for an answer, 1 s to connect) unless the row says \
    otherwise.";
