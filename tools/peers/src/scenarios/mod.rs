//! The scenarios, one file each: first the work of the parent, then that of its children.

pub(crate) mod embedded;
pub(crate) mod herd;
pub(crate) mod leader;
pub(crate) mod memory;
pub(crate) mod outage;
pub(crate) mod throughput;

use crate::{
    Args, Result,
    child::Job,
    origin::Origin,
    redis_server::RedisServer,
    subject::{Entry, Kind, Setting, Subject},
    subjects,
    table::Table,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::timeout;

/// The task of a child.
#[derive(Serialize, Deserialize)]
pub(crate) enum Task {
    Herd(herd::Task),
    Throughput(throughput::Task),
    Embedded(embedded::Task),
    Leader(leader::Task),
    StoreFailure(outage::Task),
    Memory(memory::Task),
}

/// Runs all scenarios that the arguments select, in the order of the tables.
pub(crate) async fn run(args: &Args) -> Result<Vec<Table>> {
    let bench = Bench { args: args.clone(), server: RedisServer::start().await? };
    let mut tables = Vec::new();
    macro_rules! scenario {
        ($name:expr, $run:expr) => {
            if args.only.as_ref().is_none_or(|only| $name.contains(only.as_str())) {
                bench.progress($name, "begins");
                tables.push($run.await?);
            }
        };
    }
    scenario!(herd::HERD, herd::run(&bench, false));
    scenario!(throughput::HIT, throughput::run(&bench, throughput::HIT));
    scenario!(throughput::SAME, throughput::run(&bench, throughput::SAME));
    scenario!(embedded::NAME, embedded::run(&bench));
    scenario!(throughput::MISS, throughput::run(&bench, throughput::MISS));
    scenario!(herd::ERROR_HERD, herd::run(&bench, true));
    scenario!(leader::NAME, leader::run(&bench));
    scenario!(outage::SIGSTOP, outage::run(&bench, outage::SIGSTOP));
    scenario!(outage::SIGKILL, outage::run(&bench, outage::SIGKILL));
    if !args.quick {
        scenario!(memory::NAME, memory::run(&bench));
    }
    Ok(tables)
}

/// Runs the child's side.
pub(crate) async fn be(Job { subject, url, task }: Job) -> Result<()> {
    let entry = subjects::named(&subject).ok_or("no such subject")?;
    match task {
        Task::Herd(task) => task.be(entry, url).await,
        Task::Throughput(task) => task.be(entry, url).await,
        Task::Embedded(task) => task.be(url).await,
        Task::Leader(task) => task.be(entry, url).await,
        Task::StoreFailure(task) => task.be(entry, url).await,
        Task::Memory(task) => task.be(url).await,
    }
}

/// What all scenarios need.
pub(crate) struct Bench {
    args: Args,
    server: RedisServer,
}

impl Bench {
    fn repeats(&self) -> usize {
        self.args.repeats.unwrap_or(if self.args.quick { 3 } else { 5 }).max(1)
    }

    fn quick(&self) -> bool {
        self.args.quick
    }

    /// Returns the subjects of a scenario, in the order of the tables.
    fn subjects(&self, kinds: &[Kind]) -> Vec<&'static Entry> {
        let asked = |entry: &&Entry| {
            let named = self.args.subject.as_ref().is_none_or(|name| entry.name.contains(name.as_str()));
            (named || entry.kind == Kind::Floor)
                && kinds.contains(&entry.kind)
                && (!self.quick() || subjects::is_quick(entry))
        };
        subjects::ALL.iter().filter(asked).collect()
    }

    fn progress(&self, scenario: &str, what: &str) {
        eprintln!("{scenario}: {what}");
    }
}

/// Creates the subject with open connections, and its origin.
async fn warm(entry: &Entry, url: String, compute: Duration, fails: bool) -> Result<(Box<dyn Subject>, Origin)> {
    let origin = Origin::new(compute, fails);
    let subject = (entry.make)(Setting { url, origin: origin.clone() }).await?;
    for _ in 0..3 {
        asked(&*subject, &format!("warm-{}", std::process::id()), CAP).await?;
        subject.settle().await;
    }
    Ok((subject, origin))
}

/// Sends a request and waits for at most `cap`.
async fn asked(subject: &dyn Subject, key: &str, cap: Duration) -> Result<usize, String> {
    timeout(cap, subject.get(key)).await.unwrap_or_else(|_| Err(HANGS.to_owned()))
}

const COMPUTE: Duration = Duration::from_millis(50);
const CAP: Duration = Duration::from_secs(10);
/// The error of a request without an answer within the cap.
const HANGS: &str = "no answer";
