//! The table of invalidations of one engine: the pending ones, and the ones that were acknowledged recently.
//!
//! An invalidation is pending from its request until the store acknowledges it, or one of the same name that was requested
//! later. Until then the store's answers about the name do not count in this process. It has no age.
//!
//! An acknowledged invalidation becomes pending again if another connection serves its name, because its
//! server may have lost it. It is kept until the connection that has acknowledged it has answered an operation
//! of ten seconds later. Then a server that takes over has it, too. Without answers its age does not count, so that a
//! long silence forgets nothing.

use crate::{
    clock::Timestamp,
    config::Config,
    key::CacheKey,
    store::{error::StoreError, lease::Lease},
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
    telemetry::{self, PendingInvalidation},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

/// The invalidations of one engine.
#[derive(Default)]
pub(super) struct PendingInvalidations {
    table: Mutex<Names>,
    /// Whether the table has a name. PERF: a read looks at nothing else while nothing was invalidated.
    has_names: AtomicBool,
    /// The second of the last sweep, and the newest connection that has answered until then.
    swept: AtomicI64,
    newest: AtomicU64,
}

/// A name is in one of the maps at most.
#[derive(Default)]
struct Names {
    pending: HashMap<CacheKey, Pending>,
    acknowledged: HashMap<CacheKey, Acknowledged>,
    /// The number of the last request, and that of the last one when an answer was last looked at.
    requests: u64,
    requests_before: u64,
    /// The claim of the task that sends pending invalidations again.
    sender: Weak<()>,
}

/// The invalidation of one name. It holds no [`Resource`](super::resource::Resource), which would keep its engine alive.
struct Invalidation {
    config: Arc<Config>,
    /// The number of its last request.
    request: u64,
    /// When it was first acknowledged.
    first: Option<Timestamp>,
}

struct Pending {
    invalidation: Invalidation,
    /// The last attempt. Its callers have it.
    attempt: WeakShared<Attempted>,
    /// The connection of the last request, if it is an expiry and no invalidation is pending.
    expires_over: Option<u64>,
    _gauge: PendingInvalidation,
}

struct Acknowledged {
    invalidation: Invalidation,
    /// The connection that has acknowledged it last, and when.
    by: u64,
    last: Timestamp,
}

/// An attempt to send an invalidation, which its callers and the readers of its name share.
pub(super) type Attempt = Shared<Attempted>;

/// The lease that a put has asked for, once the store has acknowledged the invalidation.
type Attempted = Result<Option<Lease>, StoreError>;

/// A name to be invalidated, with the settings of its request.
pub(super) type Name = (CacheKey, Arc<Config>);

impl PendingInvalidations {
    /// Reports whether nothing is pending, and nothing was acknowledged recently.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_names.load(Acquire)
    }

    /// Returns the number of pending invalidations.
    pub(super) fn pending(&self) -> usize {
        self.table.lock().pending.len()
    }

    /// Reports whether answers of the store about this cache key do not count: its invalidation is pending, or was
    /// acknowledged by another connection than its present one, or the table is full.
    pub(super) fn concerns(&self, key: &CacheKey, connection_of: impl Fn(&CacheKey) -> u64) -> bool {
        let (table, name) = (self.table.lock(), key.to_invalidated());
        let is_elsewhere = |known: &Acknowledged| known.by != connection_of(key);
        let is_pending = table.pending.len() >= MAX_PENDING || table.pending.contains_key(&name);
        is_pending || table.acknowledged.get(&name).is_some_and(is_elsewhere)
    }

    /// Records a request, which is pending from now on, unless the table is full. `expires_over` is the connection of an
    /// expiry. Begins an attempt with the number of the request, and whether it may leave values: not if an invalidation is
    /// pending, which its acknowledgement would end, nor if another connection has acknowledged one, whose server may have
    /// lost it.
    pub(super) fn request(
        &self,
        (key, config): Name,
        expires_over: Option<u64>,
        begin: impl FnOnce(u64, bool) -> Attempt,
    ) -> Attempt {
        self.change(|Names { pending, acknowledged, requests, .. }| {
            *requests += 1;
            let expires_over = expires_over.filter(|by| match pending.get(&key) {
                Some(known) => known.expires_over == Some(*by),
                None => acknowledged.get(&key).is_none_or(|known| known.by == *by),
            });
            let attempt = begin(*requests, expires_over.is_some());
            if pending.len() < MAX_PENDING || pending.contains_key(&key) {
                acknowledged.remove(&key);
                let invalidation = Invalidation { config, request: *requests, first: None };
                let last = attempt.downgrade();
                pending.insert(key, Pending { expires_over, ..Pending::new(invalidation, last) });
            }
            attempt
        })
    }

    /// Records that this connection has acknowledged the request.
    pub(super) fn acknowledged(&self, key: &CacheKey, request: u64, by: u64, now: Timestamp) {
        self.change(|Names { pending, acknowledged, .. }| {
            // One that was requested later stays pending.
            if pending.get(key).is_none_or(|known| known.invalidation.request != request) {
                return;
            }
            let Some((key, Pending { mut invalidation, .. })) = pending.remove_entry(key) else { return };
            let first = *invalidation.first.get_or_insert(now);
            if now.since(first) < REPEATED_FOR {
                acknowledged.insert(key, Acknowledged { invalidation, by, last: now });
            }
            // PERF: many at once, because each one is looked at.
            if acknowledged.len() > MAX_ACKNOWLEDGED {
                let mut requests: Vec<_> = acknowledged.values().map(|known| known.invalidation.request).collect();
                let (_, oldest, _) = requests.select_nth_unstable(MAX_ACKNOWLEDGED / 10);
                acknowledged.retain(|_, known| known.invalidation.request > *oldest);
            }
        });
    }

    /// Makes invalidations pending if their names have another connection than the acknowledging one. Returns
    /// them. After an answer, with its connection and the time when its request was sent, forgets what this connection
    /// has acknowledged long before.
    ///
    /// `None` if no task has to send any. One has to, too, if an invalidation was pending at the last answer already: the
    /// runtime of the task that was to send it may have ended.
    ///
    /// PERF: after an answer only once a second, or if the connection is new.
    pub(super) fn take_lost(
        &self,
        answer: Option<(u64, Timestamp)>,
        connection_of: impl Fn(&CacheKey) -> u64,
    ) -> Option<Vec<Name>> {
        if let Some((connection, sent_at)) = answer {
            let is_new = self.newest.fetch_max(connection, AcqRel) < connection;
            let second = sent_at.as_micros() >> 20;
            if self.swept.fetch_max(second, Relaxed) >= second && !is_new {
                return None;
            }
        }
        self.change(|Names { pending, acknowledged, requests, requests_before, .. }| {
            let mut lost = Vec::new();
            for (key, known) in acknowledged.extract_if(|key, known| known.by != connection_of(key)) {
                lost.push((key.clone(), known.invalidation.config.clone()));
                pending.insert(key, Pending::new(known.invalidation, WeakShared::default()));
            }
            let mut is_left = !lost.is_empty();
            if let Some((connection, sent_at)) = answer {
                acknowledged.retain(|_, known| known.by != connection || sent_at.since(known.last) <= KEPT_FOR);
                is_left |= pending.values().any(|known| known.invalidation.request <= *requests_before);
                *requests_before = *requests;
            }
            is_left.then_some(lost)
        })
    }

    /// Returns the attempt at a pending invalidation that is in flight, or begins one with its number. `None` if the
    /// invalidation is not pending any more.
    pub(super) fn attempt(&self, key: &CacheKey, begin: impl FnOnce(u64) -> Attempt) -> Option<Attempt> {
        let mut table = self.table.lock();
        let Pending { attempt, invalidation, .. } = table.pending.get_mut(key)?;
        let in_flight = attempt.upgrade().filter(|attempt| !attempt.is_done_and(|_| true));
        let in_flight = in_flight.unwrap_or_else(|| begin(invalidation.request));
        *attempt = in_flight.downgrade();
        Some(in_flight)
    }

    /// Returns the claim to send pending invalidations again, until it is dropped. `None` if there are none, or if another
    /// task has the claim.
    pub(super) fn claim_sender(&self) -> Option<Arc<()>> {
        let mut table = self.table.lock();
        let claim = (!table.pending.is_empty() && table.sender.strong_count() == 0).then(Arc::default)?;
        table.sender = Arc::downgrade(&claim);
        Some(claim)
    }

    /// Returns the pending invalidations, the oldest first. If nothing is pending, ends the claim of the sender and returns
    /// `None`. In one step: an invalidation that fails in between would find the claim, and no task would send it.
    pub(super) fn to_send(&self) -> Option<Vec<Name>> {
        let mut table = self.table.lock();
        if table.pending.is_empty() {
            table.sender = Weak::new();
            return None;
        }
        let mut pending: Vec<_> = table.pending.iter().map(|(key, known)| (key, &known.invalidation)).collect();
        pending.sort_unstable_by_key(|(_, invalidation)| invalidation.request);
        Some(pending.into_iter().map(|(key, invalidation)| (key.clone(), invalidation.config.clone())).collect())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Names) -> T) -> T {
        let mut table = self.table.lock();
        let result = change(&mut table);
        self.has_names.store(!table.pending.is_empty() || !table.acknowledged.is_empty(), Release);
        result
    }
}

impl Pending {
    fn new(invalidation: Invalidation, attempt: WeakShared<Attempted>) -> Self {
        Self { invalidation, attempt, expires_over: None, _gauge: telemetry::pending_invalidation() }
    }
}

/// Maximum time from the last acknowledgement of an invalidation to an operation whose answer forgets it.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Maximum time from its first acknowledgement until it is not kept any more.
const REPEATED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of acknowledged invalidations in the table; the last 9,000 are always kept. A [`Key`](crate::Key) is
/// short, so this is a bound of memory, too.
const MAX_ACKNOWLEDGED: usize = 10_000;
/// Maximum number of pending invalidations. At this number, further ones are sent only once, and no answer of
/// the store counts.
pub(super) const MAX_PENDING: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::schedules::explore;
    use shuttle::{
        sync::atomic::{AtomicU64, Ordering::SeqCst},
        thread,
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0).after(Duration::from_secs(seconds))
    }

    fn name(key: &str) -> Name {
        (CacheKey::new("n", 0, key), Arc::default())
    }

    /// Requests an invalidation, whose attempt fails. Returns its number.
    fn request(table: &PendingInvalidations, key: &str) -> u64 {
        let mut number = 0;
        let attempt = table.request(name(key), None, |request, _| {
            number = request;
            Shared::new(async { Err(StoreError::new("down")) })
        });
        drop(attempt);
        number
    }

    /// Requests an invalidation, which this connection acknowledges.
    fn acknowledge(table: &PendingInvalidations, key: &str, connection: u64, seconds: u64) {
        let request = request(table, key);
        table.acknowledged(&name(key).0, request, connection, at(seconds));
    }

    /// A table with an invalidation of `k`, acknowledged by connection 1 at this second.
    fn acknowledged(seconds: u64) -> PendingInvalidations {
        let table = PendingInvalidations::default();
        acknowledge(&table, "k", 1, seconds);
        table
    }

    /// Returns how many invalidations an answer makes pending, if `connection` serves all names.
    fn lost(table: &PendingInvalidations, connection: u64, sent_at: u64) -> usize {
        table.take_lost(Some((connection, at(sent_at))), |_| connection).map_or(0, |lost| lost.len())
    }

    /// Acknowledges what is pending over this connection.
    fn acknowledge_pending(table: &PendingInvalidations, connection: u64, seconds: u64) {
        let mut request = 0;
        let attempt = table.attempt(&name("k").0, |of_last| {
            request = of_last;
            Shared::new(async { Ok(None) })
        });
        assert!(attempt.is_some(), "it is pending");
        table.acknowledged(&name("k").0, request, connection, at(seconds));
    }

    /// Seen to fail when the claim is not released, and when an acknowledgement ends later invalidations.
    #[test]
    fn invalidation_that_fails_while_the_sender_ends_is_sent() {
        let name = name("k"); // too large for the stack of an explored thread
        explore(move || {
            let table = Arc::new(PendingInvalidations::default());
            let sent = Arc::new(AtomicU64::new(0));
            let failing = [(); 3].map(|()| {
                let (table, sent, name) = (table.clone(), sent.clone(), name.clone());
                thread::spawn(move || {
                    drop(table.request(name, None, |_, _| Shared::new(async { Err(StoreError::new("down")) })));
                    let Some(_claim) = table.claim_sender() else { return };
                    while let Some(names) = table.to_send() {
                        for (key, _) in names {
                            let mut request = 0;
                            let _ = table.attempt(&key, |of_last| {
                                request = of_last;
                                Shared::new(async { Ok(None) })
                            });
                            sent.fetch_max(request, SeqCst);
                            thread::yield_now(); // the attempt of the request may be in flight
                            table.acknowledged(&key, request, 1, at(0));
                        }
                    }
                    thread::yield_now(); // the claim is dropped later
                })
            });
            failing.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((sent.load(SeqCst), table.pending()), (3, 0));
        });
    }

    #[test]
    fn pending_invalidation_ends_with_the_last_request() {
        let table = PendingInvalidations::default();
        let [first, second] = [(); 2].map(|()| request(&table, "k"));
        table.acknowledged(&name("k").0, first, 1, at(1));
        assert!(table.concerns(&name("k").0, |_| 1), "only an earlier one is acknowledged");
        table.acknowledged(&name("k").0, second, 1, at(1));
        assert_eq!((table.pending(), table.concerns(&name("k").0, |_| 1)), (0, false));
    }

    #[test]
    fn invalidation_is_lost_once_per_connection() {
        let table = acknowledged(1);
        assert_eq!([1, 2, 2].map(|connection| lost(&table, connection, 2)), [0, 1, 0]);
        assert!(table.concerns(&name("k").0, |_| 2), "no answer counts until it is acknowledged");
        acknowledge_pending(&table, 2, 5);
        assert!(!table.concerns(&name("k").0, |_| 2));
        assert!(table.concerns(&name("k").0, |_| 3), "before an answer of the next connection, too");
        assert_eq!([2, 3].map(|connection| lost(&table, connection, 6)), [0, 1]);
    }

    #[test]
    fn invalidation_is_lost_however_long_the_store_was_silent() {
        let table = acknowledged(1);
        assert_eq!([(1, 11), (2, 1000)].map(|(connection, sent_at)| lost(&table, connection, sent_at)), [0, 1]);
    }

    #[test]
    fn invalidation_long_before_the_last_answer_is_not_lost() {
        let table = acknowledged(1);
        assert_eq!([(1, 12), (2, 13)].map(|(connection, sent_at)| lost(&table, connection, sent_at)), [0, 0]);
        assert!(table.is_empty());
    }

    /// Seen to fail if a repetition has a time of its own: one that is repeated every second is repeated for ever.
    #[test]
    fn invalidation_is_repeated_for_a_minute_at_most() {
        let table = acknowledged(0);
        let repeated = (1..100).filter(|second| {
            let is_lost = lost(&table, 1 + second, *second) > 0;
            if is_lost {
                acknowledge_pending(&table, 1 + second, *second);
            }
            is_lost
        });
        assert_eq!((repeated.count(), table.is_empty()), (60, true));
    }

    /// One node of two is replaced every second.
    ///
    /// Seen to fail if what a new connection does not serve is repeated as well.
    #[test]
    fn invalidation_of_another_node_is_not_repeated() {
        let table = acknowledged(0);
        acknowledge(&table, "other", 2, 0);
        let connection_of = |second| move |key: &CacheKey| if **key.primary() == *b"k" { 1 } else { 2 + second };
        let lost = (1..9).filter_map(|second| table.take_lost(Some((2 + second, at(second))), connection_of(second)));
        assert_eq!(lost.flatten().count(), 1);
        assert!(!table.concerns(&name("k").0, connection_of(9)), "it is with its node");
    }

    /// Seen to fail with keys that are kept whole, and if an answer forgets nothing.
    #[test]
    fn invalidations_of_long_keys_take_5_mb_for_ten_seconds() {
        let table = acknowledged(1);
        for n in 0..MAX_ACKNOWLEDGED + 100 {
            acknowledge(&table, &format!("{n}{}", "x".repeat(600)), 1, 1);
        }
        let bytes = || {
            let names = &table.table.lock().acknowledged;
            let size = size_of::<CacheKey>() + size_of::<Acknowledged>();
            (names.len(), names.keys().map(|key| size + key.primary().len()).sum::<usize>())
        };
        let kept = bytes().0;
        assert!(
            (MAX_ACKNOWLEDGED * 9 / 10..=MAX_ACKNOWLEDGED).contains(&kept) && bytes().1 < 5_000_000,
            "{:?}",
            bytes()
        );
        assert_eq!((lost(&table, 1, 11), bytes().0), (0, kept));
        assert_eq!((lost(&table, 1, 13), bytes().0), (0, 0));
    }

    /// Seen to fail if the newest is sent first.
    #[test]
    fn oldest_pending_invalidation_is_sent_first() {
        let table = PendingInvalidations::default();
        (0..3).for_each(|n| _ = request(&table, &n.to_string()));
        request(&table, "0");
        let sent: Vec<_> = table.to_send().expect("three").into_iter().map(|(key, _)| key).collect();
        assert_eq!(sent, ["1", "2", "0"].map(|key| name(key).0));
    }

    /// The node that has acknowledged it may fail over, however often other nodes answer meanwhile.
    ///
    /// Seen to fail if the answers of any node forget it.
    #[test]
    fn invalidation_is_kept_until_its_own_node_answers() {
        let table = acknowledged(1);
        let connection_of = |of_k| move |key: &CacheKey| if **key.primary() == *b"k" { of_k } else { 2 };
        assert!(table.take_lost(Some((2, at(60))), connection_of(1)).is_none());
        assert_eq!(table.take_lost(Some((3, at(61))), connection_of(3)).map(|lost| lost.len()), Some(1));
    }

    /// The connection changes after the second request, and before an answer shows it.
    ///
    /// Seen to fail (it stays pending) if a request leaves the acknowledged one in the table.
    #[test]
    fn request_takes_the_place_of_an_acknowledged_one() {
        let table = acknowledged(1);
        let second = request(&table, "k");
        assert_eq!(lost(&table, 2, 2), 0, "it is pending already");
        table.acknowledged(&name("k").0, second, 2, at(2));
        assert_eq!((table.pending(), table.concerns(&name("k").0, |_| 2)), (0, false));
    }

    #[test]
    fn attempt_is_shared_for_as_long_as_it_is_in_flight() {
        let (table, mut begun) = (PendingInvalidations::default(), 0);
        request(&table, "k");
        let mut attempt = || {
            let begin = |_| {
                begun += 1;
                Shared::new(std::future::pending())
            };
            (table.attempt(&name("k").0, begin), begun)
        };
        let (first, second) = (attempt(), attempt());
        assert_eq!((first.1, second.1), (1, 1));
        drop((first, second));
        assert_eq!(attempt().1, 2);
    }

    #[test]
    fn last_invalidations_are_kept() {
        let table = PendingInvalidations::default();
        let names: Vec<_> = (0..MAX_ACKNOWLEDGED * 3 / 2).map(|n| name(&n.to_string())).collect();
        (0..names.len()).for_each(|n| acknowledge(&table, &n.to_string(), 1, 1));
        let last = &names[names.len() - MAX_ACKNOWLEDGED * 9 / 10..];
        assert!(last.iter().all(|name| table.concerns(&name.0, |_| 2)));
    }

    /// Seen to fail if a full table takes no request of a name that it has.
    #[test]
    fn full_table_concerns_every_name() {
        let table = PendingInvalidations::default();
        let requests: Vec<_> = (0..MAX_PENDING).map(|n| request(&table, &n.to_string())).collect();
        request(&table, "k");
        assert_eq!(table.pending(), MAX_PENDING);
        assert!(table.concerns(&name("k").0, |_| 1));
        let later = request(&table, "0");
        table.acknowledged(&name("0").0, requests[0], 1, at(1));
        assert_eq!(table.pending(), MAX_PENDING, "a later request of a name that it has is pending");
        table.acknowledged(&name("0").0, later, 1, at(1));
        assert!(!table.concerns(&name("k").0, |_| 1));
    }
}
