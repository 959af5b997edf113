//! The origin of a simulation, and the record of who asked it, and of who was answered what.

use crate::plan::{Ask, How};
use serde::{Deserialize, Serialize};
use stampede_guard::{Error, ErrorKind};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// What is cached: enough to tell where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) key: u64,
    pub(crate) version: u64,
    pub(crate) call: usize,
}

/// Clones are one world.
#[derive(Clone)]
pub(crate) struct World(Arc<Mutex<Record>>);

pub(crate) struct Record {
    began: Instant,
    pub(crate) writes: Vec<Write>,
    pub(crate) calls: Vec<Call>,
    pub(crate) asked: Vec<Asked>,
    /// What each process has invalidated with success: versions before that are gone for it.
    floors: Vec<Vec<u64>>,
    /// In order, with times, and without anything that differs between two runs of one seed.
    pub(crate) trace: Vec<(Duration, String)>,
}

pub(crate) struct Write {
    pub(crate) at: Duration,
    pub(crate) key: u64,
    pub(crate) version: u64,
}

/// A fetch that was run.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: u64,
    pub(crate) process: usize,
    pub(crate) caller: usize,
    pub(crate) how: How,
    pub(crate) began: Duration,
    /// None: not before the end of the simulation.
    pub(crate) ended: Option<Duration>,
    pub(crate) well: bool,
}

/// Somebody who asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) key: u64,
    pub(crate) process: usize,
    pub(crate) at: Duration,
    /// As a part of another one's fetch.
    pub(crate) within: bool,
    /// The oldest version that it may get.
    pub(crate) floor: u64,
    pub(crate) answer: Option<(Duration, Answer)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Value),
    Error(ErrorKind),
    /// Its own fetch panicked, for nobody else.
    Panicked,
    /// It went away.
    Dropped,
    /// Nothing, for longer than anything takes.
    Never,
}

impl World {
    pub(crate) fn new(processes: usize, keys: u64) -> Self {
        Self(Arc::new(Mutex::new(Record::new(processes, keys))))
    }

    pub(crate) fn now(&self) -> Duration {
        self.record().now()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("nothing panics here")
    }

    /// All of it, when nobody goes on any more.
    pub(crate) fn take(&self) -> Record {
        std::mem::replace(&mut *self.record(), Record::new(0, 0))
    }

    pub(crate) fn say(&self, what: impl fmt::Display) {
        self.record().say(what);
    }

    /// The origin has something new; returns its version.
    pub(crate) fn write(&self, key: u64) -> u64 {
        let mut record = self.record();
        let (at, version) = (record.now(), record.version(key) + 1);
        record.writes.push(Write { at, key, version });
        record.say(format_args!("origin: k{key} is at version {version}"));
        version
    }

    /// An invalidation through that process, begun when the origin was at that version, was acknowledged.
    pub(crate) fn invalidated(&self, process: usize, key: u64, version: u64) {
        let mut record = self.record();
        let floor = &mut record.floors[process][key as usize];
        *floor = version.max(*floor);
        record.say(format_args!("process {process}: k{key} is invalidated up to version {version}"));
    }

    pub(crate) fn ask(&self, process: usize, key: u64, within: bool) -> usize {
        let mut record = self.record();
        let (number, at, floor) = (record.asked.len(), record.now(), record.floors[process][key as usize]);
        record.asked.push(Asked { key, process, at, within, floor, answer: None });
        record.say(format_args!("process {process}: caller {number} asks for k{key}"));
        number
    }

    pub(crate) fn answered(&self, caller: usize, answer: Answer) {
        let mut record = self.record();
        let at = record.now();
        record.asked[caller].answer = Some((at, answer));
        record.say(format_args!("caller {caller}: {answer:?}"));
    }

    /// The origin is called: it reads its version at once, and answers when the call is [ended](Calling::ended).
    pub(crate) fn call(&self, caller: usize, ask: &Ask) -> Calling {
        let mut record = self.record();
        let (number, began, version) = (record.calls.len(), record.now(), record.version(ask.key));
        let Ask { key, process, how, .. } = *ask;
        record.calls.push(Call { key, process, caller, how, began, ended: None, well: false });
        record.say(format_args!("origin: call {number} for k{key} by caller {caller}, at version {version}"));
        Calling { world: self.clone(), value: Value { key, version, call: number }, well: false }
    }
}

impl Record {
    fn new(processes: usize, keys: u64) -> Self {
        Self {
            began: Instant::now(),
            writes: Vec::new(),
            calls: Vec::new(),
            asked: Vec::new(),
            floors: vec![vec![0; keys as usize]; processes],
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

/// A call of the origin; it ends when this is dropped.
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
