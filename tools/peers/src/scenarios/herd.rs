//! Many callers of one cold key in two processes. The origin answers, or fails.

use super::{Bench, CAP, COMPUTE, HANGS, asked, warm};
use crate::{
    Result,
    child::{self, Child},
    monitor::Monitor,
    subject::{Entry, Kind},
    table::{Cell, Column, Table},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use tokio::task::JoinSet;

pub(crate) const HERD: &str = "herd";
pub(crate) const ERROR_HERD: &str = "error herd";

#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    callers: usize,
    fails: bool,
}

#[derive(Serialize, Deserialize)]
struct Part {
    calls: usize,
    began: f64,
    ended: f64,
    errors: BTreeMap<String, usize>,
}

pub(crate) async fn run(bench: &Bench, fails: bool) -> Result<Table> {
    let (name, callers) = if fails { (ERROR_HERD, 250) } else { (HERD, 500) };
    let title = match fails {
        false => "Herd: two processes, 500 callers each, one cold key",
        true => "Error herd: two processes, 250 callers each, the origin fails",
    };
    let mut table = Table::new(name, title, how(fails), COLUMNS);
    // A subject that hangs takes the whole cap, so it is measured at most twice.
    let mut slow = BTreeMap::new();
    for repeat in 1..=bench.repeats() {
        for entry in bench.subjects(&[Kind::Shared, Kind::Local]) {
            let hung: &mut usize = slow.entry(entry.name).or_default();
            if *hung == 2 {
                continue;
            }
            let (cell, errors) = one(bench, entry, callers, fails).await?;
            bench.progress(name, &format!("{repeat}/{}: {}: {cell:.1?}", bench.repeats(), entry.name));
            let row = table.row(entry.name);
            if let Some(left) = errors.get(HANGS) {
                *hung += 1;
                let callers = PROCESSES * callers;
                row.note(format!("repeat {repeat}: {left} of {callers} without an answer after {} s", CAP.as_secs()));
            }
            let errors = errors.iter().filter(|(error, _)| error.as_str() != HANGS);
            errors.filter(|_| !fails).for_each(|(error, n)| row.note(format!("{n} failed: {error}")));
            row.cells.push(cell);
        }
    }
    Ok(table)
}

async fn one(
    bench: &Bench,
    entry: &'static Entry,
    callers: usize,
    fails: bool,
) -> Result<(Cell, BTreeMap<String, usize>)> {
    bench.server.flush().await?;
    let task = || super::Task::Herd(Task { callers, fails });
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        children.push(Child::start(entry, bench.server.url(), task())?);
    }
    for child in &mut children {
        let () = child.hear().await?;
    }
    let monitor = Monitor::start(&bench.server).await?;
    let at = child::soon();
    for child in &mut children {
        child.tell(&at).await?;
    }
    let mut parts: Vec<Part> = Vec::new();
    for child in &mut children {
        parts.push(child.hear().await?);
    }
    let commands = monitor.stop(&bench.server).await?;
    let began = parts.iter().map(|part| part.began).fold(f64::INFINITY, f64::min);
    let ended = parts.iter().map(|part| part.ended).fold(0.0, f64::max);
    let mut errors = BTreeMap::new();
    for (error, n) in parts.iter().flat_map(|part| &part.errors) {
        *errors.entry(error.clone()).or_default() += n;
    }
    let mut cell = Cell::from([("origin calls", parts.iter().map(|part| part.calls).sum::<usize>() as f64)]);
    if !errors.contains_key(HANGS) {
        cell.insert("last answer, ms", ended - began);
    }
    if entry.kind == Kind::Shared {
        cell.insert("Redis commands", commands as f64);
    }
    Ok((cell, errors))
}

impl Task {
    pub(super) async fn be(self, entry: &Entry, url: String) -> Result<()> {
        let (subject, origin) = warm(entry, url, COMPUTE, self.fails).await?;
        let subject: Arc<dyn crate::subject::Subject> = subject.into();
        child::ready().await?;
        let began = child::now();
        let mut callers = JoinSet::new();
        for _ in 0..self.callers {
            let subject = subject.clone();
            callers.spawn(async move { asked(&*subject, "cold", CAP).await });
        }
        let answers = callers.join_all().await;
        let ended = child::now();
        // Background work of the answers counts as well.
        subject.settle().await;
        let mut errors = BTreeMap::new();
        for error in answers.into_iter().filter_map(Result::err) {
            *errors.entry(error).or_default() += 1;
        }
        child::say(&Part { calls: origin.calls(), began, ended, errors })
    }
}

fn how(fails: bool) -> String {
    let what = match fails {
        false => "All callers ask at the same time for a key that takes the origin 50 ms.",
        true => {
            "All callers ask at the same time for a key for which the origin fails after 50 ms. For layers over HTTP \
             the failure is a response 500, for functions an `Err`; every caller must get it."
        }
    };
    format!(
        "{what} Connections are open before. The table shows the origin calls of both processes together, the time \
         of the last answer in either process, and the Redis commands that clients send (`MONITOR`; a script counts \
         as one), including background work after the answers. Without Redis, the minimum is two calls. A caller \
         gives up after {} s.",
        CAP.as_secs()
    )
}

const PROCESSES: usize = 2;
const COLUMNS: &[Column] = &[
    Column { name: "origin calls", digits: 0 },
    Column { name: "last answer, ms", digits: 1 },
    Column { name: "Redis commands", digits: 0 },
];
