//! The state of flights, and their tables.

use crate::{
    clock::{self, Timestamp},
    engine::{fill_set::FillSet, frontend::Failure},
    error::Error,
    key::CacheKey,
    outage_cache::InvalidationCounts,
    policy::{Freshness, freshness},
    store::{
        entry::{Audience, Entry, SharedValue},
        error::StoreError,
    },
    sync::{mutex::Mutex, pulse::Pulse, watch::Watched},
};
use quick_cache::DefaultHashBuilder;
use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The result of a lookup in the store.
pub(crate) type Found = Result<Option<Entry>, StoreError>;

/// The progress of a flight. Each waiter sees the latest state.
#[derive(Clone)]
pub(crate) enum Progress {
    /// The caller that opened the flight looks up the entry.
    LookingUp,
    /// The result of that lookup, or an entry that the leader has found. Each waiter continues with it.
    LookedUp(Found),
    /// A leader drives the flight.
    Running,
    /// Waits for a `max_fallback_fetches` permit. Nested callers do not wait with it, because the enclosing fetch may
    /// hold the permit.
    Queued,
    /// The entry that the leader fills, or that another leader has filled. It answers each waiter whose request is
    /// older than the response, however short its lifetime is.
    Filled(Arc<FillSet>),
    /// The response head has arrived, and the response will be shared at its end. A waiter that the head redirects to
    /// another variant leaves; all other waiters stay. A caller that joins from now on waits for a short time only.
    HeadersReady(Option<SharedValue>),
    /// A value without an entry, or whose entry is not stored yet.
    Shared(SharedValue),
    /// The response is private. Each caller of this audience makes a call of its own; other callers try again.
    Uncacheable(Audience),
    /// The fetch failed, or its response is private, but perhaps only because of the leader's request. Each waiter tries
    /// again once, and one of them leads. A waiter for which this is the second such result continues with this state.
    Inconclusive(Arc<Self>),
    /// The fetch failed. The entry is the confirmed stale one, for waiters that allow stale-if-error.
    Failed(Failure, Option<Entry>),
    /// The flight ended without a result. Each waiter tries again, and one of them may lead.
    Abandoned,
    /// The settings of the leader's caller allow no answer except perhaps the confirmed stale entry. Each waiter tries
    /// again under its own settings.
    Refused(Error, Option<Entry>),
}

impl Progress {
    pub(super) fn is_incomplete(&self) -> bool {
        matches!(self, Self::LookingUp | Self::Running | Self::Queued | Self::HeadersReady(_))
    }
}

/// The scope of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The fetch is coordinated through the store, across the fleet.
    Fleet,
    /// The fetch is for this process only, because the store does not answer, or must not keep the response.
    Local,
    /// No fetch: a lookup beside the flight of the fleet.
    Lookup,
}

/// The criteria for joining a flight.
#[derive(Clone, Copy, Default)]
pub(crate) struct JoinCriteria {
    /// The caller is nested in another fetch.
    pub(crate) nested: bool,
    /// The flight has no response yet.
    pub(crate) incomplete_only: bool,
    /// For a caller that needs a lookup. A caller that has looked up the entry (`None`) joins no lookup: it would learn
    /// the same again.
    pub(crate) lookup: Option<LookupCriteria>,
}

/// The criteria for joining a lookup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LookupCriteria {
    /// The `store_timeout` of the caller. It joins only lookups with the same timeout, until that is over.
    pub(crate) timeout: Duration,
    /// The number of remembered redirects that lead to the cache key. They are read with the entry, and the caller joins
    /// only lookups that read them too: otherwise nothing would show that they have been invalidated.
    pub(crate) remembered: usize,
}

/// The flights of one engine. The table keeps nothing of a flight that has ended.
#[derive(Default)]
pub(crate) struct Flights {
    pub(super) tables: Mutex<Tables>,
    /// Invalidations that this process has requested or heard of.
    pub(in crate::engine) invalidations: InvalidationCounts,
}

/// PERF: with the hasher of `quick_cache`, a hit takes fewer instructions than with that of the standard library.
pub(super) type Table = HashMap<CacheKey, Arc<FlightState>, DefaultHashBuilder>;

/// The flights that callers may join, by [`Scope`].
#[derive(Default)]
pub(super) struct Tables {
    pub(super) fleet: Table,
    pub(super) local: Table,
    pub(super) lookups: Table,
}

/// The state shared by the leader and the waiters of a flight.
pub(crate) struct FlightState {
    pub(super) flights: Arc<Flights>,
    /// The scope in which the flight was opened.
    pub(super) scope: Scope,
    /// Whether the flight has become a local one since.
    pub(super) is_local: AtomicBool,
    pub(super) key: CacheKey,
    /// When the lookup began, and what it reads. `None` for a flight that was opened after a lookup.
    pub(super) lookup: Option<(Instant, LookupCriteria)>,
    pub(super) progress: Watched<Progress>,
    pub(super) waiters: AtomicUsize,
    /// Whether a waiter of the lookup has reached its limit for waiting.
    pub(super) has_late_waiters: AtomicBool,
    /// Whether the flight may be in its table. Changed under the lock of the tables. PERF: a flight that has left its
    /// table is dropped without this lock.
    pub(super) is_listed: AtomicBool,
    /// The entry that the lookup has found and that the fetch replaces, and when the leader began. The store may have
    /// dropped the entry since.
    pub(super) seen: OnceLock<(Entry, Timestamp)>,
    /// The number of invalidations of the resource before the fetch began.
    pub(super) invalidations: AtomicU64,
    /// Whether the leader waits for the leader of another process, and no request for the lease is in flight.
    pub(super) is_between_questions: AtomicBool,
    /// The stale candidate: the stored entry that may be served if no newer one comes. Set once the store has confirmed
    /// it, until the store has dropped it.
    pub(super) stale_candidate: Mutex<Option<Entry>>,
    /// Shows whether the leader is alive.
    pub(super) pulse: OnceLock<Arc<Pulse>>,
    /// Whether an extension has found that the lease is lost.
    pub(super) lease_lost: AtomicBool,
    /// Whether a nested caller has left the flight, because the leader may wait for a fetch that the caller is part of.
    /// Only one of them leaves after half of its time; see [`Waiter::is_first_to_leave`].
    pub(super) left_by_nested: AtomicBool,
    /// Number of callers that want the result. The caller that opened the flight counts as well.
    pub(super) callers: AtomicUsize,
    /// Number of these callers that want the leader to fetch although another process leads.
    pub(super) demands: AtomicUsize,
    /// Notified when the first caller comes, when the last caller leaves, and when a caller demands a fetch.
    pub(super) callers_changed: Notify,
}

impl Flights {
    /// Makes sure that no caller joins a flight of the resources that began before now, in any layout. Flights of their
    /// variants leave the table too, because callers reach them through remembered redirects. A flight stays if its
    /// leader waits for another process, and no request for the lease is in flight: its next answer is newer.
    pub(crate) fn forget(&self, keys: &[CacheKey]) {
        keys.iter().for_each(|key| self.invalidations.increment(key));
        let is_dropped = |listed: &CacheKey| keys.iter().any(|key| key.covers(listed));
        let tables = &mut *self.tables.lock();
        tables.local.retain(|listed, _| !is_dropped(listed));
        tables.lookups.retain(|listed, _| !is_dropped(listed));
        tables.fleet.retain(|listed, flight_state| {
            if !is_dropped(listed) {
                return true;
            }
            *flight_state.stale_candidate.lock() = None;
            flight_state.is_between_questions.load(Acquire)
        });
    }

    /// Returns the number of flights.
    pub(crate) fn len(&self) -> usize {
        let tables = self.tables.lock();
        tables.fleet.len() + tables.local.len() + tables.lookups.len()
    }
}

impl Tables {
    pub(super) fn of(&mut self, scope: Scope) -> &mut Table {
        match scope {
            Scope::Fleet => &mut self.fleet,
            Scope::Local => &mut self.local,
            Scope::Lookup => &mut self.lookups,
        }
    }
}

impl FlightState {
    pub(super) fn new(flights: Arc<Flights>, scope: Scope, key: CacheKey, lookup: Option<LookupCriteria>) -> Self {
        Self {
            flights,
            scope,
            is_local: AtomicBool::new(false),
            key,
            lookup: lookup.map(|criteria| (clock::now(), criteria)),
            progress: Watched::new(if lookup.is_some() { Progress::LookingUp } else { Progress::Running }),
            waiters: AtomicUsize::new(0),
            has_late_waiters: AtomicBool::new(false),
            is_listed: AtomicBool::new(true),
            seen: OnceLock::new(),
            invalidations: AtomicU64::new(0),
            is_between_questions: AtomicBool::new(false),
            stale_candidate: Mutex::default(),
            pulse: OnceLock::new(),
            lease_lost: AtomicBool::new(false),
            left_by_nested: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            demands: AtomicUsize::new(0),
            callers_changed: Notify::new(),
        }
    }

    pub(super) fn matches(&self, criteria: JoinCriteria) -> bool {
        let would_block = criteria.nested && self.is_queued();
        let too_late = criteria.incomplete_only && !self.progress.is(Progress::is_incomplete);
        !(would_block || too_late || self.is_outdated() || self.is_other_lookup(criteria.lookup))
    }

    /// Reports whether the flight is a lookup that a caller with these criteria does not join.
    pub(super) fn is_other_lookup(&self, needed: Option<LookupCriteria>) -> bool {
        let suits = |(began, read): (Instant, LookupCriteria)| {
            let is_same =
                |needed: LookupCriteria| needed.timeout == read.timeout && needed.remembered <= read.remembered;
            needed.is_some_and(is_same) && clock::now() < clock::after(began, read.timeout)
        };
        self.is_looking_up() && !self.lookup.is_some_and(suits)
    }

    pub(super) fn set_seen(&self, seen: Option<&Entry>) {
        if let Some(entry) = seen {
            let _ = self.seen.set((entry.clone(), Timestamp::now()));
        }
    }

    /// Reports whether the filled entry has expired while the flight is still listed: it is of no use to new callers.
    pub(super) fn is_outdated(&self) -> bool {
        let now = Timestamp::now();
        self.progress.is(
            |state| matches!(state, Progress::Filled(fill_set) if freshness(&fill_set.entry, now) != Freshness::Fresh),
        )
    }

    pub(super) fn pulse(&self) -> &Arc<Pulse> {
        self.pulse.get_or_init(Arc::default)
    }

    pub(super) fn is_looking_up(&self) -> bool {
        self.progress.is(|state| matches!(state, Progress::LookingUp))
    }

    pub(super) fn is_queued(&self) -> bool {
        self.progress.is(|state| matches!(state, Progress::Queued))
    }

    /// Leaves the table: the waiters stay, and no other caller joins.
    pub(super) fn unlist(self: &Arc<Self>) {
        if !self.is_listed.load(Acquire) {
            return;
        }
        let mut tables = self.flights.tables.lock();
        let table = tables.of(if self.is_local.load(Acquire) { Scope::Local } else { self.scope });
        if let Some(listed) = table.remove(&self.key)
            && !Arc::ptr_eq(&listed, self)
        {
            table.insert(self.key.clone(), listed);
        }
        self.is_listed.store(false, Release);
    }

    /// Unlists a flight whose lookup is not driven any more. `false` if a leader has begun meanwhile.
    pub(super) fn abandon_lookup(self: &Arc<Self>) -> bool {
        let mut tables = self.flights.tables.lock();
        let is_looking_up = self.is_looking_up();
        if is_looking_up && tables.of(self.scope).get(&self.key).is_some_and(|listed| Arc::ptr_eq(listed, self)) {
            tables.of(self.scope).remove(&self.key);
        }
        is_looking_up
    }

    /// Unlists a flight that its leader does not drive any more.
    pub(super) fn abandon(self: &Arc<Self>) -> Progress {
        self.unlist();
        Progress::Abandoned
    }

    /// Unlists a flight that has lost its lease: its result will not be stored.
    pub(crate) fn lose_lease(self: &Arc<Self>) {
        self.lease_lost.store(true, Release);
        self.unlist();
    }

    pub(crate) fn has_lost_lease(&self) -> bool {
        self.lease_lost.load(Acquire)
    }

    /// Waits until the condition on the callers holds.
    pub(super) async fn callers_meet(&self, condition: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.callers_changed.notified(); // before the condition is checked, so that no change is missed
            if condition(self) {
                return;
            }
            changed.await;
        }
    }
}
