//! The parent: origin, Redis, faults, and the sum of the workers' messages.

use crate::{
    Result,
    args::{Args, Duty},
    faults::Faults,
    fleet::Fleet,
    message::{Count, Message},
    origin::Origin,
    worker::LEASE,
};
use example_support::RedisServer;
use std::{collections::HashMap, time::Duration};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{Instant, interval, sleep_until, timeout},
};

/// Runs the soak. Returns `true` if every check held.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    let seed = args.seed();
    println!("seed {seed}, {:?}, {} processes", args.duration(), args.processes);
    let origin = Origin::start().await?;
    let server = match args.redis {
        None => Some(RedisServer::start().await?),
        Some(_) => None,
    };
    let redis = args.redis.clone().or_else(|| server.as_ref().map(|server| server.url.clone())).unwrap_or_default();
    let namespace = format!("soak-{seed}");
    let duty = Duty { seed, redis, origin: origin.address, namespace, sabotage: args.sabotage };
    let (inbox, messages) = mpsc::unbounded_channel();
    let fleet = Fleet::start(args.processes.get(), duty.clone(), inbox)?;
    let tally = Tally { origin, counts: HashMap::new(), violations: Vec::new(), began: Instant::now() };
    let mut soak = Soak { fleet, faults: Faults::new(seed, server), messages, tally };
    soak.break_things(args.duration()).await?;
    soak.come_to_rest(&duty).await?;
    soak.tally.row(&soak.faults);
    soak.fleet.leave().await?;
    for (what, times) in &soak.faults.done {
        println!("{what:>16}: {times}");
    }
    soak.tally.print_result();
    Ok(soak.tally.violations.is_empty())
}

struct Soak {
    fleet: Fleet,
    faults: Faults,
    messages: UnboundedReceiver<(usize, Option<Message>)>,
    tally: Tally,
}

impl Soak {
    /// Injects faults. Ends with a calm period, in which the leases of killed workers expire.
    async fn break_things(&mut self, duration: Duration) -> Result<()> {
        let end = self.tally.began + duration;
        let calm = end - CALM;
        let mut next = self.faults.next();
        let mut rows = interval(ROW);
        rows.tick().await;
        println!("{HEADINGS}");
        loop {
            let mending = self.faults.mending();
            tokio::select! {
                biased;
                () = sleep_until(end) => return Ok(()),
                () = sleep_until(mending.unwrap_or(calm).min(calm)), if mending.is_some() => {
                    let due = Instant::now();
                    self.faults.mend(&self.fleet, (due < calm).then_some(due)).await?;
                }
                () = sleep_until(next), if next < calm => {
                    self.faults.strike(&mut self.fleet).await?;
                    next = self.faults.next();
                }
                _ = rows.tick() => self.tally.row(&self.faults),
                Some((worker, message)) = self.messages.recv() => self.note(worker, message),
            }
        }
    }

    /// Ends the load, and searches for anything that is left.
    async fn come_to_rest(&mut self, duty: &Duty) -> Result<()> {
        self.fleet.end().await?;
        let mut working: Vec<usize> = self.fleet.workers.keys().copied().collect();
        let rest = async {
            while !working.is_empty() {
                let Some((worker, message)) = self.messages.recv().await else { return };
                if matches!(message, None | Some(Message::Done(_))) {
                    working.retain(|working| *working != worker);
                }
                match message {
                    Some(message) => self.tally.note(worker, message),
                    None => self.tally.violations.push(format!("worker {worker} ended by itself")),
                }
            }
        };
        if timeout(PATIENCE, rest).await.is_err() {
            self.tally.violations.push(format!("workers {working:?} did not come to rest within {PATIENCE:?}"));
        }
        for lease in timeout(PATIENCE, leases(duty)).await?? {
            self.tally.violations.push(format!("the lease {lease} is left"));
        }
        Ok(())
    }

    fn note(&mut self, worker: usize, message: Option<Message>) {
        match message {
            Some(message) => self.tally.note(worker, message),
            None if self.fleet.workers.contains_key(&worker) => {
                self.tally.violations.push(format!("worker {worker} ended by itself"));
            }
            None => {} // a fault killed it
        }
    }
}

/// Returns the leases that are held, without failure markers.
async fn leases(duty: &Duty) -> Result<Vec<String>> {
    let mut connection = redis::Client::open(&*duty.redis)?.get_multiplexed_async_connection().await?;
    let names: Vec<String> =
        redis::cmd("KEYS").arg(format!("{{{}:*}}:l*", duty.namespace)).query_async(&mut connection).await?;
    let mut held = Vec::new();
    for name in names {
        let lease: Option<Vec<u8>> = redis::cmd("GET").arg(&name).query_async(&mut connection).await?;
        if lease.is_some_and(|lease| lease.first() == Some(&b'H')) {
            held.push(name);
        }
    }
    Ok(held)
}

struct Tally {
    origin: Origin,
    /// Of all workers, including killed ones.
    counts: HashMap<usize, Count>,
    violations: Vec<String>,
    began: Instant,
}

impl Tally {
    fn note(&mut self, worker: usize, message: Message) {
        match message {
            Message::Count(count) | Message::Done(count) => _ = self.counts.insert(worker, count),
            Message::Violation(what) => {
                if self.violations.len() < PRINTED {
                    println!("VIOLATION in worker {worker} after {:?}: {what}", self.began.elapsed());
                }
                self.violations.push(what);
            }
        }
    }

    fn sum(&self) -> Count {
        let mut sum = Count::default();
        self.counts.values().for_each(|count| sum.add(count));
        sum
    }

    fn row(&self, faults: &Faults) {
        let (sum, calls) = (self.sum(), self.origin.reads());
        let saved = sum.answers.saturating_sub(calls);
        println!(
            "{:>5.0} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>8} {:>6} {:>6} {:>7} {:>6} {:>10}",
            self.began.elapsed().as_secs_f64(),
            sum.answers,
            sum.hits,
            sum.stale,
            sum.coalesced,
            calls,
            saved,
            sum.failed_open,
            sum.errors,
            sum.dropped,
            sum.invalidations,
            sum.unacknowledged,
            sum.fenced,
            faults.done.values().sum::<u32>(),
            sum.memory / 1024,
            self.violations.len(),
        );
    }

    fn print_result(&self) {
        match self.violations.len() {
            0 => println!("everything held"),
            n => {
                println!("{n} VIOLATIONS, of which the first:");
                self.violations.iter().take(PRINTED).for_each(|what| println!("- {what}"));
            }
        }
    }
}

const HEADINGS: &str = "    s   answers      hits    stale coalesced    origin    saved failopen  errors dropped  invalid  unack fenced  faults    MiB violations";
/// During this time the leases of killed workers expire, and commands that were given up arrive.
const CALM: Duration = Duration::from_millis(2 * LEASE.as_millis() as u64);
const ROW: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);
const PRINTED: usize = 20;
