//! The origin of a simulation, and the record of its callers, calls and answers.

use crate::plan::{Ask, How};
use serde::{Deserialize, Serialize};
use stampede_guard::{Error, ErrorKind};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// A cached value, which identifies its origin call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) key: u64,
    pub(crate) version: u64,
    pub(crate) call: usize,
}

/// Clones share one world.
#[derive(Clone)]
pub(crate) struct World(Arc<Mutex<Record>>);

pub(crate) struct Record {
    began: Instant,
    pub(crate) writes: Vec<Write>,
    pub(crate) calls: Vec<Call>,
    pub(crate) asked: Vec<Asked>,
    /// For each node and key, the newest version whose invalidation it completed. Older versions must not be
    /// returned to it.
    floors: Vec<Vec<u64>>,
    /// In order, with times, and without anything that differs between two runs of one seed.
    pub(crate) trace: Vec<(Duration, String)>,
}

pub(crate) struct Write {
    pub(crate) at: Duration,
    pub(crate) key: u64,
    pub(crate) version: u64,
}

/// A call of the origin.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: u64,
    pub(crate) node: usize,
    pub(crate) caller: usize,
    pub(crate) how: How,
    pub(crate) began: Duration,
    /// `None` if the call did not end before the end of the simulation.
    pub(crate) ended: Option<Duration>,
    pub(crate) well: bool,
    /// The call whose value this call has called unchanged.
    pub(crate) renews: Option<usize>,
}

/// A request of a caller.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) key: u64,
    pub(crate) node: usize,
    pub(crate) at: Duration,
    /// Whether it is nested in the fetch of another caller.
    pub(crate) within: bool,
    /// Whether its future is not polled for a while.
    pub(crate) held: bool,
    pub(crate) refreshes: bool,
    /// The oldest version that it may get: for a refresh, the version of the origin at its call.
    pub(crate) floor: u64,
    pub(crate) answer: Option<(Duration, Answer)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Value),
    Error(ErrorKind),
    /// Its own fetch panicked, which no other caller notices.
    Panicked,
    /// It was dropped.
    Dropped,
    /// It got no answer for longer than any caller may take.
    Never,
}

impl World {
    pub(crate) fn new(nodes: usize, keys: u64) -> Self {
        Self(Arc::new(Mutex::new(Record::new(nodes, keys))))
    }

    pub(crate) fn now(&self) -> Duration {
        self.record().now()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("nothing panics here")
    }

    /// Takes the record at the end of the run.
    pub(crate) fn take(&self) -> Record {
        std::mem::replace(&mut *self.record(), Record::new(0, 0))
    }

    pub(crate) fn say(&self, what: impl fmt::Display) {
        self.record().say(what);
    }

    /// Writes a new version at the origin and returns it.
    pub(crate) fn write(&self, key: u64) -> u64 {
        let mut record = self.record();
        let (at, version) = (record.now(), record.version(key) + 1);
        record.writes.push(Write { at, key, version });
        record.say(format_args!("origin: k{key} is at version {version}"));
        version
    }

    /// Records that an invalidation through this node has returned. The origin was at `version` when it began.
    pub(crate) fn invalidated(&self, node: usize, key: u64, version: u64) {
        let mut record = self.record();
        let floor = &mut record.floors[node][key as usize];
        *floor = version.max(*floor);
        record.say(format_args!("node {node}: k{key} is invalidated up to version {version}"));
    }

    pub(crate) fn ask(&self, ask: &Ask, within: bool) -> usize {
        let mut record = self.record();
        let Ask { node, key, held, how, .. } = *ask;
        let (number, at, refreshes) = (record.asked.len(), record.now(), how == How::Refreshing);
        let floor = if refreshes { record.version(key) } else { record.floors[node][key as usize] };
        record.asked.push(Asked { key, node, at, within, held: held.is_some(), refreshes, floor, answer: None });
        record.say(format_args!("node {node}: caller {number} asks for k{key}"));
        number
    }

    pub(crate) fn answered(&self, caller: usize, answer: Answer) {
        let mut record = self.record();
        let at = record.now();
        record.asked[caller].answer = Some((at, answer));
        record.say(format_args!("caller {caller}: {answer:?}"));
    }

    /// Calls the origin: it reads its version at once, and answers when the call is [ended](Calling::ended).
    pub(crate) fn call(&self, caller: usize, ask: &Ask) -> Calling {
        let mut record = self.record();
        let (number, began, version) = (record.calls.len(), record.now(), record.version(ask.key));
        let Ask { key, node, how, .. } = *ask;
        record.calls.push(Call { key, node, caller, how, began, ended: None, well: false, renews: None });
        record.say(format_args!("origin: call {number} for k{key} by caller {caller}, at version {version}"));
        Calling { world: self.clone(), value: Value { key, version, call: number }, well: false }
    }
}

impl Record {
    fn new(nodes: usize, keys: u64) -> Self {
        Self {
            began: Instant::now(),
            writes: Vec::new(),
            calls: Vec::new(),
            asked: Vec::new(),
            floors: vec![vec![0; keys as usize]; nodes],
            trace: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn version(&self, key: u64) -> u64 {
        self.writes.iter().rev().find(|write| write.key == key).map_or(0, |write| write.version)
    }

    fn say(&mut self, what: impl fmt::Display) {
        let now = self.now();
        self.trace.push((now, what.to_string()));
    }
}

/// A call of the origin. It ends when this is dropped.
pub(crate) struct Calling {
    world: World,
    value: Value,
    well: bool,
}

impl Calling {
    pub(crate) fn ended(mut self) -> Value {
        self.well = true;
        self.value
    }

    /// Reports whether the stored value has the version that the call has read. The call then renews that value.
    pub(crate) fn renews(&self, stored: Option<&Value>) -> bool {
        let renewed = stored.filter(|stored| stored.version == self.value.version);
        self.world.record().calls[self.value.call].renews = renewed.map(|stored| stored.call);
        renewed.is_some()
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let mut record = self.world.record();
        let now = record.now();
        let call = &mut record.calls[self.value.call];
        (call.ended, call.well) = (Some(now), self.well);
        record.say(format_args!("origin: call {} ends{}", self.value.call, if self.well { "" } else { " badly" }));
    }
}

impl From<Result<Value, Error>> for Answer {
    fn from(answer: Result<Value, Error>) -> Self {
        match answer {
            Ok(value) => Self::Value(value),
            Err(error) => Self::Error(error.kind()),
        }
    }
}
