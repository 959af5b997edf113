//! One client: a process that only acquires and releases the lock.

use crate::{
    Result,
    args::Duty,
    bare::{self, Bare},
    oracle::Oracle,
    recipes::{self, Client, How},
};
use serde::{Deserialize, Serialize};
use stampede_guard::{Lock, LockGuard};
use std::{
    io::{self, BufRead},
    process, thread,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, time::sleep};

/// The counters of a client.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    /// The tries that the client sees.
    pub(crate) tries: u64,
    pub(crate) acquires: u64,
    /// How many times another client held the lock at the same time.
    pub(crate) violations: u64,
}

/// Connects, prints [`READY`], waits for the start, and prints its counters at the end.
pub(crate) async fn work(duty: &Duty) -> Result<()> {
    let start = start();
    let oracle = Oracle::open(&duty.oracle)?;
    let mut contender = Contender::new(duty).await?;
    let mut ignored = Count::default();
    let own = format!("{}-{}", duty.lock, process::id());
    if let Some(held) = contender.acquire(&own, duty, Instant::now() + TTL, &mut ignored).await? {
        contender.release(&own, held).await?;
    }
    println!("{READY}");
    start.await?;
    let (end, mut count) = (Instant::now() + duty.lasts, Count::default());
    while let Some(held) = contender.acquire(&duty.lock, duty, end, &mut count).await? {
        count.acquires += 1;
        if oracle.lock()? {
            if matches!(held, Held::Nothing) {
                sleep(duty.delay).await; // long enough for other clients to notice
            }
            oracle.unlock()?;
        } else {
            count.violations += 1;
        }
        contender.release(&duty.lock, held).await?;
    }
    println!("{}", serde_json::to_string(&count)?);
    Ok(())
}

/// Returns a receiver that resolves when the parent says so. After the start, this process ends when the parent ends.
fn start() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        if lines.next().is_some() {
            let _ = sender.send(()); // the receiver may have been dropped already
        }
        lines.for_each(drop);
        process::exit(1);
    });
    receiver
}

enum Contender {
    Bare(Bare),
    Nothing,
    Spinning(Lock),
    Queued { lock: Lock, tries_first: bool },
}

enum Held {
    Bare(bare::Token),
    Nothing,
    Guard(LockGuard),
}

impl Contender {
    async fn new(duty: &Duty) -> Result<Self> {
        let client = Client::new(duty)?;
        let lock =
            Lock::new(client.redis.clone()).namespace("lock-table").ttl(TTL).store_timeout(TTL).wait(WAIT_TIMEOUT);
        Ok(match recipes::find(&duty.recipe)?.how {
            How::Bare => Self::Bare(Bare::connect(&client.redis).await?),
            How::None => Self::Nothing,
            How::Spins(recipe) => Self::Spinning(recipe(lock, &client)),
            How::Queued(recipe) => Self::Queued { lock: recipe(lock, &client), tries_first: false },
            How::TriesThenQueued(recipe) => Self::Queued { lock: recipe(lock, &client), tries_first: true },
        })
    }

    /// Tries until it has the lock. Returns `None` at the end of the time.
    async fn acquire(&mut self, name: &str, duty: &Duty, end: Instant, count: &mut Count) -> Result<Option<Held>> {
        while Instant::now() < end {
            let held = match self {
                Self::Nothing => Some(Held::Nothing),
                Self::Queued { lock, tries_first } => {
                    count.tries += u64::from(*tries_first);
                    return Ok(Some(Held::Guard(lock.acquire(name).await?)));
                }
                Self::Bare(bare) => bare.try_acquire(name, TTL).await?.map(Held::Bare),
                Self::Spinning(lock) => lock.try_acquire(name).await?.map(Held::Guard),
            };
            count.tries += 1;
            if held.is_some() {
                return Ok(held);
            }
            sleep(duty.delay).await;
        }
        Ok(None)
    }

    async fn release(&mut self, name: &str, held: Held) -> Result<()> {
        let released = match (self, held) {
            (Self::Bare(bare), Held::Bare(token)) => bare.release(name, &token).await?,
            (_, Held::Guard(guard)) => guard.release().await.map(|()| true)?,
            _ => true,
        };
        if released { Ok(()) } else { Err("the lock was lost before it was released".into()) }
    }
}

/// The line that a client prints once it has connected.
pub(crate) const READY: &str = "ready";
/// The TTL of the book, far longer than a client holds the lock here.
const TTL: Duration = Duration::from_secs(10);
/// Longer than a client waits in the queue.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
