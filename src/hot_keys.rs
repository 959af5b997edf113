//! The busiest keys, in bounded memory.
//!
//! Each stripe is a *space-saving* sketch (Metwally, Agrawal and El Abbadi, 2005) of n keys. A request for a key that it
//! lacks replaces the key with the smallest count, and takes over that count, because the new key may have been
//! requested as often before. So the counts of a stripe add up to its requests, the smallest count is at most one n-th
//! of them, and a key that was requested more often is never replaced. The sum over stripes has the same bound (Agarwal
//! et al., Mergeable Summaries, 2012).

use crate::{
    clock,
    key::CacheKeyRef,
    sync::{
        mutex::Mutex,
        stripes::{self, STRIPES},
    },
};
use std::{cmp::Reverse, collections::BTreeMap, fmt, time::Duration};

/// One of the busiest keys of a guard. See [`StampedeGuard::track_hot_keys`](crate::StampedeGuard::track_hot_keys).
///
/// All figures count from the last time that the key began to be tracked. With the feature `bincode`, `json` or
/// `postcard` it implements `Serialize`, with durations as seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "_typed", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HotKey {
    /// The [namespace](crate::StampedeGuard::namespace) of the key.
    pub namespace: String,
    /// The key as text, cut after 256 bytes: method and URL of HTTP requests. Control characters, and bytes that are not
    /// UTF-8, are replaced.
    pub key: String,
    /// Requests for the key, however they were answered.
    pub requests: u64,
    /// Maximum number of further requests for the key that are not counted, because it was not among the tracked keys
    /// then. At most the number of all requests, divided by the number of tracked keys.
    pub max_uncounted: u64,
    /// Requests that were answered without a call of the origin of their own: hits, stale hits, and requests that
    /// shared the fetch of another request. A stale answer of a request that has fetched, or that begins a
    /// refresh in the background, does not count.
    pub saved_calls: u64,
    /// Calls of the origin that this process has made.
    pub fetches: u64,
    /// The longest time that a request waited for its answer; over HTTP, for the head of its response.
    #[cfg_attr(feature = "_typed", serde(serialize_with = "crate::codec::serialize_seconds"))]
    pub longest_wait: Duration,
    /// The time that all these [`fetches`](Self::fetches) took; over HTTP, until the head of the response.
    #[cfg_attr(feature = "_typed", serde(serialize_with = "crate::codec::serialize_seconds"))]
    pub fetch_time: Duration,
}

impl HotKey {
    /// The count of the sketch, by which keys are replaced.
    fn count(&self) -> u64 {
        self.requests + self.max_uncounted
    }
}

/// The hot keys of a clone of the guard.
pub(crate) struct HotKeys {
    /// Number of keys that are tracked.
    keys: usize,
    /// Random, so that a client cannot choose keys that count as one.
    seed: u64,
    stripes: [Stripe; STRIPES],
}

/// PERF: each thread has its own sketch, because threads that are hit by a herd would wait for one lock.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(Mutex<Sketch>);

#[derive(Default)]
struct Sketch {
    /// The keys by falling count.
    tracked: Vec<Tracked>,
    /// The place of each key in `tracked`, by the hash of the resource.
    places: BTreeMap<u64, usize>,
}

struct Tracked {
    hash: u64,
    figures: HotKey,
}

impl HotKeys {
    pub(crate) fn new(keys: usize) -> Self {
        Self { keys, seed: u64::from_le_bytes(clock::random_bytes()), stripes: Default::default() }
    }

    /// Records an answer, whether it saved a call of the origin, and how long its request has waited for it.
    pub(crate) fn record_answer(&self, key: CacheKeyRef<'_>, is_saved: bool, waited: Duration) {
        let hash = key.resource_hash(self.seed);
        let mut sketch = self.stripes[stripes::of_this_thread()].0.lock();
        let place = sketch.track(hash, key, self.keys);
        let figures = sketch.rise(place);
        figures.requests += 1;
        figures.saved_calls += u64::from(is_saved);
        figures.longest_wait = figures.longest_wait.max(waited);
    }

    /// Records a call of the origin that took this time.
    pub(crate) fn record_fetch(&self, key: CacheKeyRef<'_>, took: Duration) {
        let hash = key.resource_hash(self.seed);
        let mut sketch = self.stripes[stripes::of_this_thread()].0.lock();
        let place = sketch.track(hash, key, self.keys);
        let figures = &mut sketch.tracked[place].figures;
        figures.fetches += 1;
        figures.fetch_time = figures.fetch_time.saturating_add(took);
    }

    /// Returns the busiest keys, the one with most requests first.
    pub(crate) fn snapshot(&self) -> Vec<HotKey> {
        let (mut merged, mut smallest) = (BTreeMap::<u64, HotKey>::new(), 0);
        for stripe in &self.stripes {
            let sketch = stripe.0.lock();
            let own_smallest = sketch.smallest_count(self.keys);
            smallest += own_smallest;
            for Tracked { hash, figures } in &sketch.tracked {
                // Until the end, `max_uncounted` is the part of `smallest` that does not apply to the key.
                let part = HotKey { max_uncounted: own_smallest - figures.max_uncounted, ..figures.clone() };
                merged.entry(*hash).and_modify(|sum| add(sum, &part)).or_insert(part);
            }
        }
        let rest = |key: HotKey| HotKey { max_uncounted: smallest - key.max_uncounted, ..key };
        let mut keys: Vec<_> = merged.into_values().map(rest).collect();
        keys.sort_by_key(|key| Reverse(key.count()));
        keys.truncate(self.keys);
        keys.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.key.cmp(&b.key)));
        keys
    }
}

/// Adds the figures of another stripe for the same key.
fn add(sum: &mut HotKey, part: &HotKey) {
    sum.requests += part.requests;
    sum.max_uncounted += part.max_uncounted;
    sum.saved_calls += part.saved_calls;
    sum.fetches += part.fetches;
    sum.longest_wait = sum.longest_wait.max(part.longest_wait);
    sum.fetch_time = sum.fetch_time.saturating_add(part.fetch_time);
}

impl Sketch {
    /// Returns the place of the key, which replaces the last key if it is not tracked yet and the sketch is full.
    fn track(&mut self, hash: u64, key: CacheKeyRef<'_>, keys: usize) -> usize {
        if let Some(place) = self.places.get(&hash) {
            return *place;
        }
        let figures = HotKey {
            namespace: key.namespace().to_owned(),
            key: key.to_readable(),
            max_uncounted: self.smallest_count(keys),
            ..HotKey::default()
        };
        if self.tracked.len() == keys
            && let Some(replaced) = self.tracked.pop()
        {
            self.places.remove(&replaced.hash);
        }
        let place = self.tracked.len();
        self.tracked.push(Tracked { hash, figures });
        self.places.insert(hash, place);
        place
    }

    /// Moves the key to the first of the places whose keys have the same count, so that its count may grow by one.
    /// Returns its figures.
    fn rise(&mut self, place: usize) -> &mut HotKey {
        let count = self.tracked[place].figures.count();
        let first = self.tracked[..place].partition_point(|other| other.figures.count() > count);
        if first < place {
            self.tracked.swap(first, place);
            for moved in [first, place] {
                self.places.insert(self.tracked[moved].hash, moved);
            }
        }
        &mut self.tracked[first].figures
    }

    /// Returns the smallest count; zero if there is room for another key.
    fn smallest_count(&self, keys: usize) -> u64 {
        match self.tracked.last() {
            Some(last) if self.tracked.len() == keys => last.figures.count(),
            _ => 0,
        }
    }
}

/// Shows the setting only: keys may contain what must not be logged.
impl fmt::Debug for HotKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotKeys").field("keys", &self.keys).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
