//! The checks of an answer.

use serde::{Deserialize, Serialize};
use stampede_guard::{Error, ErrorKind};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A value of the origin. Every byte depends on its key.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Value {
    key: String,
    version: u64,
    /// The only caller that may see the value.
    pub(crate) private_to: Option<u64>,
    padding: Vec<u8>,
}

impl Value {
    pub(crate) fn new(key: &str, version: u64) -> Self {
        Self { key: key.to_owned(), version, private_to: None, padding: vec![mark(key, version); padding(key)] }
    }

    fn is_of(&self, key: &str) -> bool {
        let mark = mark(key, self.version);
        self.key == key && self.padding.len() == padding(key) && self.padding.iter().all(|byte| *byte == mark)
    }
}

fn mark(key: &str, version: u64) -> u8 {
    key.bytes().fold(version as u8, |mark, byte| mark.wrapping_mul(31).wrapping_add(byte))
}

/// Returns the size of the padding, from 1 byte to 64 KiB.
fn padding(key: &str) -> usize {
    1 << (mark(key, 0) % 17)
}

/// The versions whose invalidation was acknowledged. An answer to a later request must be at least as new.
#[derive(Default)]
pub(crate) struct Settled {
    keys: Mutex<HashMap<String, Versions>>,
}

#[derive(Default)]
struct Versions {
    /// Acknowledged to this process, which must respect it at once.
    here: u64,
    /// Acknowledged to other processes, with the time at which this process learned of it.
    elsewhere: VecDeque<(Instant, u64)>,
}

impl Settled {
    pub(crate) fn here(&self, key: &str, version: u64) {
        let mut keys = self.lock();
        let versions = keys.entry(key.to_owned()).or_default();
        versions.here = versions.here.max(version);
    }

    pub(crate) fn elsewhere(&self, key: &str, version: u64) {
        self.lock().entry(key.to_owned()).or_default().elsewhere.push_back((Instant::now(), version));
    }

    /// Returns the oldest version that an answer to a request made now may have.
    pub(crate) fn least(&self, key: &str) -> u64 {
        let mut keys = self.lock();
        let Some(versions) = keys.get_mut(key) else { return 0 };
        while let Some((heard, version)) = versions.elsewhere.front().copied()
            && heard.elapsed() >= GRACE
        {
            versions.here = versions.here.max(version);
            versions.elsewhere.pop_front();
        }
        versions.here
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Versions>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The behaviour of the origin for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Answers,
    Fails,
    Panics,
}

/// Returns why the answer violates the guarantees, or `None` if it does not.
pub(crate) fn violation(
    key: &str,
    origin: Origin,
    least: u64,
    caller: u64,
    answer: &Result<Value, Error>,
) -> Option<String> {
    match answer {
        Ok(value) if !value.is_of(key) => Some(format!("{key} was answered with a value of {}", value.key)),
        Ok(value) if value.version < least => {
            Some(format!("{key} was answered with {}, although {least} was settled before", value.version))
        }
        Ok(value) if value.private_to.is_some_and(|owner| owner != caller) => {
            Some(format!("{key} was answered with another caller's private value"))
        }
        Ok(_) => None,
        Err(error) => {
            let expected = match (origin, error.kind()) {
                (Origin::Answers, _) => false,
                (Origin::Fails, kind) => kind == ErrorKind::Origin,
                (Origin::Panics, kind) => kind == ErrorKind::Panicked,
            };
            (!expected).then(|| format!("{key} was not answered, although its origin {origin:?}: {error:?}"))
        }
    }
}

/// A guard that did not learn of an invalidation may serve the old value of a fetch that began before. This ends when
/// the fetch finds its lease lost (a third of the lease TTL), or after a whole fetch if the store does not answer.
const GRACE: Duration = Duration::from_secs(4);
