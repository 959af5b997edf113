//! The table of README.md: six rows of this crate and some peers, which docs/lab/comparison.md has as well.

use crate::{
    Result,
    report::{run, version, wrapped},
    scenarios::{embedded, herd, leader, outage, throughput},
    subjects::own,
    table::{Row, Table},
};
use std::{fmt::Write, fs, path::Path};

struct Column {
    heading: &'static str,
    subject: &'static str,
    /// The row of its hits within the process.
    memory: Option<&'static str>,
    /// Whether its hits in the scenarios over Redis come from Redis.
    reads_redis: bool,
}

const COLUMNS: [Column; 5] = [
    Column { heading: "stampede-guard", subject: own::FETCH.name, memory: Some(embedded::NEAR), reads_redis: true },
    Column { heading: "amalgam-cache", subject: "amalgam-cache", memory: Some(embedded::AMALGAM), reads_redis: false },
    Column { heading: "moka, per process", subject: "moka", memory: Some(embedded::MOKA), reads_redis: false },
    Column { heading: "hitbox", subject: "hitbox", memory: None, reads_redis: true },
    Column { heading: "tower-http-cache", subject: "tower-http-cache", memory: None, reads_redis: true },
];

/// Returns the table between its markers.
pub(crate) fn block(tables: &[Table]) -> Result<String> {
    let mut text =
        format!("{BEGIN}\n| |{}\n|---|{}\n", row(|one| one.heading.to_owned()), "---|".repeat(COLUMNS.len()));
    for (work, cell) in ROWS {
        let cells = row(|one| cell(&Figures { tables, column: one }).unwrap_or_else(|| "-".to_owned()));
        let _ = writeln!(text, "| {work} |{cells}");
    }
    let mut versions = Vec::new();
    for peer in &COLUMNS[1..] {
        let figures = Figures { tables, column: peer };
        figures.row(herd::HERD, peer.subject).ok_or_else(|| format!("no figures of {}", peer.subject))?;
        versions.push(format!("{} {}", peer.subject, version(peer.subject).unwrap_or_default()));
    }
    let versions = versions.join(", ");
    let note = format!(
        "{}: medians of interleaved repeats on two cores. {versions}. {NOTE}",
        run("date", &["-u", "+%Y-%m-%d"])
    );
    let _ = writeln!(text, "\n{}\n{END}", wrapped(&note));
    Ok(text)
}

fn row(cell: impl Fn(&Column) -> String) -> String {
    COLUMNS.iter().fold(String::new(), |row, column| row + " " + &cell(column) + " |")
}

/// Replaces the block of the document.
pub(crate) fn quote(path: &Path, block: &str) -> Result<()> {
    let text = fs::read_to_string(path)?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{} has no `{BEGIN}` before `{END}`", path.display()))?;
    Ok(fs::write(path, format!("{before}{}{after}", block.trim_end()))?)
}

/// The figures of one column.
struct Figures<'a> {
    tables: &'a [Table],
    column: &'a Column,
}

impl Figures<'_> {
    fn row(&self, table: &str, subject: &str) -> Option<&Row> {
        let table = self.tables.iter().find(|one| one.name == table)?;
        table.rows.iter().find(|row| row.subject == subject)
    }

    fn median(&self, table: &str, column: &str) -> Option<f64> {
        self.row(table, self.column.subject)?.median(column)
    }

    fn most(&self, table: &str, column: &str) -> Option<f64> {
        self.row(table, self.column.subject)?.figures(column).last().copied()
    }

    fn herd(&self) -> Option<String> {
        let (calls, last) = (self.median(herd::HERD, "origin calls")?, self.median(herd::HERD, "last answer, ms")?);
        let commands =
            self.median(herd::HERD, "Redis commands").map_or("none".to_owned(), |count| format!("{count:.0}"));
        Some(format!("{calls:.0}; {last:.0} ms; {commands}"))
    }

    fn failing(&self) -> Option<String> {
        let hang = self.median(herd::ERROR_HERD, "last answer, ms").is_none();
        let calls = self.median(herd::ERROR_HERD, "origin calls")?;
        Some(format!("{calls:.0}{}", if hang { ", not all within 10 s" } else { "" }))
    }

    fn leader(&self) -> Option<String> {
        let row = self.row(leader::NAME, self.column.subject)?;
        let calls = row.median(leader::CALLS)?.max(row.median(leader::CALLS_THERE).unwrap_or_default());
        let late = match row.notes.is_empty() {
            true => {
                let there = row.median(leader::RECOVERY_THERE).unwrap_or_default();
                format!("{:.0} ms", row.median(leader::RECOVERY)?.max(there))
            }
            false => "some hang".to_owned(),
        };
        Some(format!("{calls:.0}; {late}"))
    }

    fn hit(&self) -> Option<String> {
        let redis = self.column.reads_redis.then(|| self.median(throughput::HIT, "of raw GET")).flatten();
        let memory = self.column.memory.and_then(|memory| self.row(embedded::NAME, memory)?.median("of moka get"));
        let shown = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        Some(format!("{}; {}", shown(redis), shown(memory)))
    }

    fn miss(&self) -> Option<String> {
        self.median(throughput::MISS, "of raw GET").map(|ratio| format!("{ratio:.2}"))
    }

    fn outage(&self) -> Option<String> {
        let failed = self.most(outage::SIGSTOP, "failed")? + self.most(outage::SIGKILL, "failed")?;
        let worst = |table| self.median(table, "worst, ms").map(|worst| worst / 1e3);
        Some(format!("{failed:.0}; {:.1} s; {:.1} s", worst(outage::SIGSTOP)?, worst(outage::SIGKILL)?))
    }
}

type Cell = fn(&Figures<'_>) -> Option<String>;
const ROWS: [(&str, Cell); 6] = [
    ("2 processes x 500 callers of one cold key, 50 ms of work: origin calls; last answer; Redis commands", |it| {
        it.herd()
    }),
    ("500 callers in 2 processes, the origin fails: origin calls", |it| it.failing()),
    ("the leader is cancelled, 100 waiters: origin calls; delay of the last answer", |it| it.leader()),
    ("throughput of hits: over Redis, of a plain `GET`; from memory, of moka's `get`", |it| it.hit()),
    ("throughput of misses without work, of a plain `GET`", |it| it.miss()),
    ("Redis stopped for 3 s, and killed for 15 s: failed requests; worst latency of each", |it| it.outage()),
];
const NOTE: &str = "amalgam-cache has memory, backplane and locker over Redis, fail-safe, breakers, and timeouts of 250 ms, \
    its locker of 1 s. Its hits come from memory. With its defaults, on 2026-11-22, its herd took 389 ms.";
const BEGIN: &str = "<!-- comparison, written by scripts/compare.sh -->";
const END: &str = "<!-- end of comparison -->";
