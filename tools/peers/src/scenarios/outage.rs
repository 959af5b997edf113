//! Redis stops answering, or is killed and restarts empty, while clients keep asking.

use super::{Bench, COMPUTE, asked, warm};
use crate::{
    Result,
    child::{self, Child},
    redis_server::RedisServer,
    subject::{Entry, Kind, Subject},
    table::{Cell, Column, Table},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

pub(crate) const SIGSTOP: &str = "sigstop";
pub(crate) const SIGKILL: &str = "sigkill";

#[derive(Serialize, Deserialize)]
pub(crate) struct Task;

/// The times of the outage, which the parent sends after it; milliseconds since 1970.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct StoreFailure {
    began: f64,
    ended: f64,
}

/// The requests that were in progress when the outage began, or came later.
#[derive(Serialize, Deserialize)]
struct Done {
    requests: usize,
    failed: usize,
    worst: f64,
    errors: BTreeMap<String, usize>,
}

pub(crate) async fn run(bench: &Bench, name: &'static str) -> Result<Table> {
    let plan = Plan::of(name, bench.quick());
    let mut table = Table::new(name, plan.title, plan.how(), plan.columns);
    let repeats = if bench.quick() { 1 } else { bench.repeats() };
    for repeat in 1..=repeats {
        // All subjects run at the same time, each with its own server, because an outage is mostly waiting.
        let entries = bench.subjects(&[Kind::Shared]);
        let mut running = JoinSet::new();
        for entry in &entries {
            running.spawn(one(entry, plan));
        }
        let cells = running.join_all().await;
        for entry in entries {
            let at = cells.iter().position(|cell| cell.as_ref().is_ok_and(|(name, ..)| *name == entry.name));
            let Some(Ok((_, cell, notes))) = at.map(|at| &cells[at]) else { continue };
            bench.progress(name, &format!("{repeat}/{repeats}: {}: {cell:.1?}", entry.name));
            let row = table.row(entry.name);
            row.cells.push(cell.clone());
            notes.iter().for_each(|note| row.note(note));
        }
        if let Some(Err(error)) = cells.into_iter().find(Result::is_err) {
            return Err(error);
        }
    }
    Ok(table)
}

/// The durations of the outage.
#[derive(Clone, Copy)]
struct Plan {
    title: &'static str,
    kill: bool,
    away: Duration,
    watched: Duration,
    columns: &'static [Column],
}

impl Plan {
    fn of(name: &str, quick: bool) -> Self {
        let s = Duration::from_secs;
        match name {
            SIGSTOP => Self {
                title: "Redis stopped for 3 s (SIGSTOP), 16 clients",
                kill: false,
                away: s(3),
                watched: s(2),
                columns: &COLUMNS[..3],
            },
            _ => Self {
                title: "Redis killed (SIGKILL), later restarted empty, 16 clients",
                kill: true,
                away: s(if quick { 5 } else { 15 }),
                watched: s(6),
                columns: COLUMNS,
            },
        }
    }

    fn how(self) -> String {
        let what = match self.kill {
            false => {
                "is stopped, so that it neither answers nor closes its connections, and continues after 3 s.".to_owned()
            }
            true => format!("is killed, and restarted on the same port after {} s.", self.away.as_secs()),
        };
        let back = match self.kill {
            false => "",
            true => {
                " Back is the time from the moment at which the new server is ready until a client first reads an \
                 entry that a client has stored there (`keyspace_hits`, checked every 10 ms)."
            }
        };
        format!(
            "Redis {what} Eight clients ask for four hot keys, eight for new keys, each 20 ms after its last answer; \
             the origin takes 50 ms. The figures cover requests that were in progress at the beginning of the outage \
             or came later, until {} s after its end. Errors, and answers that took more than {} s, count as failed. \
             All subjects run at the same time, each with its own server and process.{back}",
            self.watched.as_secs(),
            GIVES_UP.as_secs()
        )
    }
}

async fn one(entry: &'static Entry, plan: Plan) -> Result<(&'static str, Cell, Vec<String>)> {
    let mut server = RedisServer::start().await?;
    let mut child = Child::start(entry, server.url(), super::Task::StoreFailure(Task))?;
    let () = child.hear().await?;
    child.tell(&child::soon()).await?;
    sleep(Duration::from_millis(1_000)).await;
    let began = child::now();
    let mut back = None;
    let ended;
    if plan.kill {
        server.kill().await?;
        sleep(plan.away).await;
        server.start_again().await?;
        ended = child::now();
        back = first_hit(&server, plan.watched).await?;
        sleep(plan.watched.saturating_sub(Duration::from_secs_f64((child::now() - ended) / 1e3))).await;
    } else {
        server.stop()?;
        sleep(plan.away).await;
        server.go_on()?;
        ended = child::now();
        sleep(plan.watched).await;
    }
    child.tell(&StoreFailure { began, ended }).await?;
    let Done { requests, failed, worst, errors } = child.hear().await?;
    let mut cell = Cell::from([("requests", requests as f64), ("failed", failed as f64), ("worst, ms", worst)]);
    cell.extend(back.map(|back| ("back, ms", back)));
    let mut notes = Vec::new();
    if let Some((error, _)) = errors.iter().max_by_key(|(_, n)| **n) {
        notes.push(format!("errors, mostly: {error}"));
    }
    if plan.kill && back.is_none() {
        notes.push(format!("not back within {} s", plan.watched.as_secs()));
    }
    Ok((entry.name, cell, notes))
}

async fn first_hit(server: &RedisServer, within: Duration) -> Result<Option<f64>> {
    let began = Instant::now();
    while began.elapsed() < within {
        if server.hits().await? > 0 {
            return Ok(Some(began.elapsed().as_secs_f64() * 1e3));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(None)
}

/// One request, with times in milliseconds since 1970.
struct Request {
    began: f64,
    ended: f64,
    error: Option<String>,
}

impl Task {
    pub(super) async fn be(self, entry: &Entry, url: String) -> Result<()> {
        let (subject, _) = warm(entry, url, COMPUTE, false).await?;
        let subject: Arc<dyn Subject> = subject.into();
        for hot in 0..HOT {
            asked(&*subject, &format!("hot-{hot}"), GIVES_UP).await?;
        }
        subject.settle().await;
        child::ready().await?;
        let (over, is_over) = watch::channel(false);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(ask(subject.clone(), client, is_over.clone()));
        }
        let StoreFailure { began, .. } = child::hear().await?;
        over.send_replace(true);
        let mut done = Done { requests: 0, failed: 0, worst: 0.0, errors: BTreeMap::new() };
        for request in clients.join_all().await.into_iter().flatten().filter(|request| request.ended >= began) {
            done.requests += 1;
            done.worst = done.worst.max(request.ended - request.began);
            if let Some(error) = request.error {
                done.failed += 1;
                *done.errors.entry(error).or_default() += 1;
            }
        }
        child::say(&done)
    }
}

async fn ask(subject: Arc<dyn Subject>, client: usize, over: watch::Receiver<bool>) -> Vec<Request> {
    let mut requests = Vec::new();
    while !*over.borrow() {
        let key = match client.checked_sub(CLIENTS / 2) {
            None => format!("hot-{}", client % HOT),
            Some(client) => format!("cold-{client}-{}", requests.len()),
        };
        let began = child::now();
        let error = asked(&*subject, &key, GIVES_UP).await.err();
        requests.push(Request { began, ended: child::now(), error });
        sleep(PAUSE).await;
    }
    requests
}

const CLIENTS: usize = 16;
const HOT: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
const GIVES_UP: Duration = Duration::from_secs(30);
const COLUMNS: &[Column] = &[
    Column { name: "requests", digits: 0 },
    Column { name: "failed", digits: 0 },
    Column { name: "worst, ms", digits: 0 },
    Column { name: "back, ms", digits: 0 },
];
