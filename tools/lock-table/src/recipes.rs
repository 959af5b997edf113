//! The recipes that are measured, one per line.

use crate::args::Duty;
use lock_table::{Counter, ExistsSetex, GetSet, Redlock, Rename, SetMembership, SetnxExpire, Watch};
use stampede_guard::{
    Lock,
    lock::{FencedLock, SetPx},
};

/// A row of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) how: How,
}

pub(crate) enum How {
    /// A lock without this crate.
    Bare,
    /// No lock at all.
    None,
    /// Tries repeatedly.
    Spins(fn(Lock, &Client) -> Lock),
    /// Tries once with a script, which also queues the client.
    Queued(fn(Lock, &Client) -> Lock),
    /// Tries once with a command, and is then queued by a script.
    TriesThenQueued(fn(Lock, &Client) -> Lock),
}

/// Further connections and servers that some recipes need.
pub(crate) struct Client {
    pub(crate) redis: redis::Client,
    pub(crate) others: Vec<redis::Client>,
}

impl Client {
    pub(crate) fn new(duty: &Duty) -> redis::RedisResult<Self> {
        let others: redis::RedisResult<_> = duty.others.iter().map(|url| redis::Client::open(&**url)).collect();
        Ok(Self { redis: redis::Client::open(&*duty.redis)?, others: others? })
    }
}

static ROWS: [Row; 12] = [
    Row { name: "bare", how: How::Bare },
    Row { name: "set-px", how: How::TriesThenQueued(|lock, _| lock.recipe(SetPx)) },
    Row { name: "fused", how: How::Queued(|lock, _| lock.recipe(FencedLock)) },
    Row { name: "exists-setex", how: How::Spins(|lock, _| lock.recipe(ExistsSetex)) },
    Row { name: "setnx-expire", how: How::Spins(|lock, client| lock.recipe(SetnxExpire::new(client.redis.clone()))) },
    Row { name: "watch", how: How::Spins(|lock, client| lock.recipe(Watch::new(client.redis.clone()))) },
    Row { name: "rename", how: How::Spins(|lock, _| lock.recipe(Rename)) },
    Row { name: "getset", how: How::Spins(|lock, _| lock.recipe(GetSet::new())) },
    Row { name: "set-membership", how: How::Spins(|lock, _| lock.recipe(SetMembership::default())) },
    Row { name: "counter", how: How::Spins(|lock, _| lock.recipe(Counter)) },
    Row { name: REDLOCK, how: How::Spins(|lock, client| lock.recipe(Redlock::with(client.others.clone()))) },
    Row { name: "none", how: How::None },
];

/// Returns the recipes that are measured by default.
pub(crate) fn all() -> Vec<&'static Row> {
    ROWS.iter().filter(|row| !matches!(row.how, How::None)).collect()
}

pub(crate) fn find(name: &str) -> Result<&'static Row, String> {
    let found = ROWS.iter().find(|row| row.name == name);
    found.ok_or_else(|| {
        let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        format!("there are {}", known.join(", "))
    })
}

impl Row {
    /// Returns the number of servers it needs besides the first.
    pub(crate) fn others(&self) -> usize {
        if self.name == REDLOCK { 2 } else { 0 }
    }
}

const REDLOCK: &str = "redlock";
