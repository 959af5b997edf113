//! One client: a process that acquires and releases, and does nothing else.

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

/// What a client has done.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    /// As far as the client sees them.
    pub(crate) tries: u64,
    pub(crate) acquires: u64,
    /// How often somebody else held the lock at the same time.
    pub(crate) violations: u64,
}

/// Gets ready, says so, waits for the start, and says at last what it has done.
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
                sleep(duty.delay).await; // so that it is sure to be seen
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

/// When the parent says so. From then on its end is this process's end.
fn start() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        if lines.next().is_some() {
            let _ = tell.send(()); // it may be over
        }
        lines.for_each(drop);
        process::exit(1);
    });
    told
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
        let lock = Lock::new(client.redis.clone()).namespace("lock-table").ttl(TTL).op_timeout(TTL).wait(PATIENCE);
        Ok(match recipes::find(&duty.recipe)?.how {
            How::Bare => Self::Bare(Bare::connect(&client.redis).await?),
            How::None => Self::Nothing,
            How::Spins(recipe) => Self::Spinning(recipe(lock, &client)),
            How::Queued(recipe) => Self::Queued { lock: recipe(lock, &client), tries_first: false },
            How::TriesThenQueued(recipe) => Self::Queued { lock: recipe(lock, &client), tries_first: true },
        })
    }

    /// Tries until it has the lock; `None` if the time is over.
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

/// What a client says when it has connected.
pub(crate) const READY: &str = "ready";
/// The book's, far longer than anybody holds it here.
const TTL: Duration = Duration::from_secs(10);
/// Longer than anybody waits in the queue.
const PATIENCE: Duration = Duration::from_secs(60);
