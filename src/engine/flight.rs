//! Work in flight in this process: one flight per cache key, joined by all concurrent callers. A flight begins with the
//! lookup of the entry. If the entry does not answer the caller that looks it up, a leader continues the flight.

#[cfg(test)]
mod schedules;

use super::{fill_set::FillSet, frontend::Failure};
use crate::{
    clock::{self, Timestamp},
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
    collections::{HashMap, hash_map},
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

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
    /// another variant leaves; all other waiters stay.
    HeadersReady(SharedValue),
    /// A value without an entry, or whose entry is not stored yet.
    Shared(SharedValue),
    /// The response is private. Each caller of this audience makes a call of its own; other callers try again.
    Uncacheable(Audience),
    /// The fetch failed. The entry is the confirmed stale one, for waiters that allow stale-if-error.
    Failed(Failure, Option<Entry>),
    /// The flight ended without a result. Each waiter tries again, and one of them may lead.
    Abandoned,
    /// The settings of the leader's caller allow no answer except perhaps the confirmed stale entry. Each waiter tries
    /// again under its own settings.
    Refused(Error, Option<Entry>),
}

impl Progress {
    fn is_incomplete(&self) -> bool {
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

/// The result of entering a flight.
pub(crate) enum Entered {
    /// No matching flight: the caller opened one, and drives it.
    Lead(Flight),
    /// A flight in progress, which the caller joined.
    Wait(Waiter),
}

/// The flights of one engine. The table keeps nothing of a flight that has ended.
#[derive(Default)]
pub(crate) struct Flights {
    tables: Mutex<Tables>,
    /// Invalidations that this process has requested or heard of.
    pub(super) invalidations: InvalidationCounts,
}

/// PERF: with the hasher of `quick_cache`, a hit takes fewer instructions than with that of the standard library.
type Table = HashMap<CacheKey, Arc<FlightState>, DefaultHashBuilder>;

/// The flights that callers may join, by [`Scope`].
#[derive(Default)]
struct Tables {
    fleet: Table,
    local: Table,
    lookups: Table,
}

/// The state shared by the leader and the waiters of a flight.
pub(crate) struct FlightState {
    flights: Arc<Flights>,
    /// The scope in which the flight was opened.
    scope: Scope,
    /// Whether the flight has become a local one since.
    is_local: AtomicBool,
    key: CacheKey,
    /// When the lookup began, and what it reads. `None` for a flight that was opened after a lookup.
    lookup: Option<(Instant, LookupCriteria)>,
    progress: Watched<Progress>,
    waiters: AtomicUsize,
    /// Whether a waiter of the lookup has reached its limit for waiting.
    has_late_waiters: AtomicBool,
    /// Whether the flight may be in its table. Changed under the lock of the tables. PERF: a flight that has left its
    /// table is dropped without this lock.
    is_listed: AtomicBool,
    /// The entry that the lookup has found and that the fetch replaces, and when the leader began. The store may have
    /// dropped the entry since.
    seen: OnceLock<(Entry, Timestamp)>,
    /// The number of invalidations of the resource before the fetch began.
    invalidations: AtomicU64,
    /// Whether the leader waits for the leader of another process, and no request for the lease is in flight.
    is_between_questions: AtomicBool,
    /// The stale candidate: the stored entry that may be served if no newer one comes. Set once the store has confirmed
    /// it, until the store has dropped it.
    stale_candidate: Mutex<Option<Entry>>,
    /// Shows whether the leader is alive.
    pulse: OnceLock<Arc<Pulse>>,
    /// Whether an extension has found that the lease is lost.
    lease_lost: AtomicBool,
    /// Whether a nested caller has left the flight, because the leader may wait for a fetch that the caller is part of.
    /// Only one of them leaves after half of its time; see [`Waiter::is_first_to_leave`].
    left_by_nested: AtomicBool,
    /// Number of callers that want the result. The caller that opened the flight counts as well.
    callers: AtomicUsize,
    /// Number of these callers that want the leader to fetch although another process leads.
    demands: AtomicUsize,
    /// Notified when the first caller comes, when the last caller leaves, and when a caller demands a fetch.
    callers_changed: Notify,
}

/// A caller that wants the result of a flight. Leaves on drop.
pub(crate) struct FlightCaller {
    flight_state: Arc<FlightState>,
    demands_fetch: bool,
}

impl FlightCaller {
    fn new(flight_state: Arc<FlightState>) -> Self {
        if flight_state.callers.fetch_add(1, AcqRel) == 0 {
            flight_state.callers_changed.notify_waiters();
        }
        Self { flight_state, demands_fetch: false }
    }

    /// Returns the stale candidate, if the store has confirmed it.
    pub(crate) fn stale_candidate(&self) -> Option<Entry> {
        self.flight_state.stale_candidate.lock().clone()
    }

    /// Makes a leader that waits for another process fetch without a lease. No effect if it fetches already.
    pub(crate) fn demand_fetch(&mut self) {
        if !self.demands_fetch {
            self.demands_fetch = true;
            self.flight_state.demands.fetch_add(1, AcqRel);
            self.flight_state.callers_changed.notify_waiters();
        }
    }
}

impl Drop for FlightCaller {
    fn drop(&mut self) {
        if self.demands_fetch {
            self.flight_state.demands.fetch_sub(1, AcqRel);
        }
        if self.flight_state.callers.fetch_sub(1, AcqRel) == 1 {
            self.flight_state.callers_changed.notify_waiters();
        }
    }
}

/// A waiter in the flight of another caller.
pub(crate) struct Waiter {
    flight_state: Arc<FlightState>,
    nested: bool,
    /// Whether the flight was looking up the entry when this waiter joined it.
    joined_lookup: bool,
}

impl Waiter {
    /// Returns the entry that the lookup of the flight has found. The store may have dropped it since.
    pub(crate) fn seen(&self) -> Option<&Entry> {
        self.flight_state.seen.get().map(|(entry, _)| entry)
    }

    /// Reports whether the flight was looking up the entry when this waiter joined it.
    pub(crate) fn joined_lookup(&self) -> bool {
        self.joined_lookup
    }

    /// Returns the number of waiters, this one included.
    pub(crate) fn waiter_count(&self) -> usize {
        self.flight_state.waiters.load(Acquire)
    }

    /// Reports whether the flight has a result.
    pub(crate) fn is_complete(&self) -> bool {
        !self.flight_state.progress.is(Progress::is_incomplete)
    }

    /// Returns when the flight will end if it takes as long as the last fetch.
    pub(crate) fn expected_end(&self) -> Option<Timestamp> {
        self.flight_state.seen.get().map(|(entry, began)| began.after(entry.meta().cost))
    }

    /// Waits for the result of the lookup that this waiter has joined, at most for `limit`. If a leader continues the
    /// flight, the result counts only if it `settles` what this caller gets. Otherwise returns `None`: the caller has
    /// to wait for the leader.
    ///
    /// `until` is the first limit of the caller's wait for a leader. It does not end the wait for a lookup, so a caller
    /// with a wait timeout of zero still gets a hit.
    ///
    /// A lookup that takes longer than `limit` counts as not driven any more: the flight leaves the table, and is
    /// abandoned.
    pub(crate) fn lookup_until(
        &self,
        limit: Duration,
        until: Instant,
        settles: impl Fn(&Entry) -> bool,
    ) -> impl Future<Output = Option<Progress>> {
        let end = clock::deadline_after(limit);
        let mut pause = until.min(end);
        let state = &self.flight_state;
        async move {
            loop {
                let is_late = pause == end;
                let ended = state.progress.wait_for(|progress| match progress {
                    Progress::LookingUp => false,
                    // Without an entry, the next state that concerns this waiter is the outcome.
                    Progress::Running => is_late || self.seen().is_some(),
                    _ => true,
                });
                match timeout_at(pause, ended).await {
                    Ok(Progress::LookedUp(found)) => return Some(Progress::LookedUp(found)),
                    Err(_) if state.is_looking_up() => {}
                    // Whatever the leader has done since, this caller may use what the lookup has found.
                    Ok(_) | Err(_) => {
                        let seen = self.seen().filter(|seen| settles(seen));
                        return seen.map(|seen| Progress::LookedUp(Ok(Some(seen.clone()))));
                    }
                }
                if is_late {
                    return state.abandon_lookup().then_some(Progress::Abandoned);
                }
                // The caller wants to know when a leader begins, because its wait for one is over.
                state.has_late_waiters.store(true, Release);
                pause = end;
            }
        }
    }

    /// Waits for the outcome, at most until `until` (then `None`) and as long as the leader is alive. Wakes the leader
    /// after half of `lease_ttl`. If the leader was not polled within the other half, another process could take over
    /// its lease: then the flight leaves the table, and is abandoned.
    pub(crate) fn outcome_until(
        &self,
        until: Instant,
        lease_ttl: Duration,
        is_elsewhere: impl Fn(&SharedValue) -> bool,
    ) -> impl Future<Output = Option<Progress>> {
        let mut reading = None;
        async move {
            loop {
                let check_at = clock::deadline_after(lease_ttl / 2).min(until);
                if let Ok(state) = timeout_at(check_at, self.outcome(&is_elsewhere)).await {
                    return Some(state);
                }
                if check_at == until {
                    return None;
                }
                let pulse = self.flight_state.pulse();
                reading = match reading {
                    Some(reading) if !pulse.is_beating_since(reading) => return Some(self.flight_state.abandon()),
                    Some(_) => None,
                    None => Some(pulse.feel()),
                };
            }
        }
    }

    /// Waits for the first state that is a result, or a reason not to wait. `is_elsewhere` reports whether a response
    /// head redirects this waiter.
    fn outcome(&self, is_elsewhere: impl Fn(&SharedValue) -> bool) -> impl Future<Output = Progress> {
        self.flight_state.progress.wait_for(move |progress| match progress {
            Progress::LookingUp | Progress::Running => false,
            Progress::HeadersReady(value) => is_elsewhere(value),
            Progress::Queued => self.nested,
            _ => true,
        })
    }

    /// Marks the flight as left by a nested caller. Returns `true` for the first one only.
    pub(crate) fn is_first_to_leave(&self) -> bool {
        !self.flight_state.left_by_nested.swap(true, AcqRel)
    }

    /// Counts as a caller that wants the result, until the returned value is dropped.
    pub(crate) fn want(&self) -> FlightCaller {
        FlightCaller::new(self.flight_state.clone())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.flight_state.waiters.fetch_sub(1, AcqRel);
    }
}

impl Flights {
    /// Joins the flight of the cache key if it meets the criteria. Otherwise opens a new one in its place: for a lookup
    /// if the criteria name one, otherwise for a leader. `seen` is the entry that an earlier lookup of the caller has
    /// found.
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: &CacheKey,
        scope: Scope,
        criteria: JoinCriteria,
        seen: Option<&Entry>,
    ) -> Entered {
        let mut tables = self.tables.lock();
        let slot = match tables.of(scope).entry(key.clone()) {
            hash_map::Entry::Occupied(listed) if listed.get().matches(criteria) => {
                return Entered::Wait(listed.get().join(criteria));
            }
            slot => slot,
        };
        let flight_state = Arc::new(FlightState::new(self.clone(), scope, key.clone(), criteria.lookup));
        flight_state.set_seen(seen);
        slot.insert_entry(flight_state.clone());
        Entered::Lead(Flight(flight_state))
    }

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
    fn of(&mut self, scope: Scope) -> &mut Table {
        match scope {
            Scope::Fleet => &mut self.fleet,
            Scope::Local => &mut self.local,
            Scope::Lookup => &mut self.lookups,
        }
    }
}

impl FlightState {
    fn new(flights: Arc<Flights>, scope: Scope, key: CacheKey, lookup: Option<LookupCriteria>) -> Self {
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

    fn join(self: &Arc<Self>, criteria: JoinCriteria) -> Waiter {
        self.waiters.fetch_add(1, AcqRel);
        Waiter { flight_state: self.clone(), nested: criteria.nested, joined_lookup: self.is_looking_up() }
    }

    fn matches(&self, criteria: JoinCriteria) -> bool {
        let would_block = criteria.nested && self.is_queued();
        let too_late = criteria.incomplete_only && !self.progress.is(Progress::is_incomplete);
        !(would_block || too_late || self.is_outdated() || self.is_other_lookup(criteria.lookup))
    }

    /// Reports whether the flight is a lookup that a caller with these criteria does not join.
    fn is_other_lookup(&self, needed: Option<LookupCriteria>) -> bool {
        let suits = |(began, read): (Instant, LookupCriteria)| {
            let is_same =
                |needed: LookupCriteria| needed.timeout == read.timeout && needed.remembered <= read.remembered;
            needed.is_some_and(is_same) && clock::now() < clock::after(began, read.timeout)
        };
        self.is_looking_up() && !self.lookup.is_some_and(suits)
    }

    fn set_seen(&self, seen: Option<&Entry>) {
        if let Some(entry) = seen {
            let _ = self.seen.set((entry.clone(), Timestamp::now()));
        }
    }

    /// Reports whether the filled entry has expired while the flight is still listed: it is of no use to new callers.
    fn is_outdated(&self) -> bool {
        let now = Timestamp::now();
        self.progress.is(
            |state| matches!(state, Progress::Filled(fill_set) if freshness(&fill_set.entry, now) != Freshness::Fresh),
        )
    }

    fn pulse(&self) -> &Arc<Pulse> {
        self.pulse.get_or_init(Arc::default)
    }

    fn is_looking_up(&self) -> bool {
        self.progress.is(|state| matches!(state, Progress::LookingUp))
    }

    fn is_queued(&self) -> bool {
        self.progress.is(|state| matches!(state, Progress::Queued))
    }

    /// Leaves the table: the waiters stay, and no other caller joins.
    fn unlist(self: &Arc<Self>) {
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
    fn abandon_lookup(self: &Arc<Self>) -> bool {
        let mut tables = self.flights.tables.lock();
        let is_looking_up = self.is_looking_up();
        if is_looking_up && tables.of(self.scope).get(&self.key).is_some_and(|listed| Arc::ptr_eq(listed, self)) {
            tables.of(self.scope).remove(&self.key);
        }
        is_looking_up
    }

    /// Unlists a flight that its leader does not drive any more.
    fn abandon(self: &Arc<Self>) -> Progress {
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
    async fn callers_meet(&self, condition: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.callers_changed.notified(); // before the condition is checked, so that no change is missed
            if condition(self) {
                return;
            }
            changed.await;
        }
    }
}

/// A flight, held by the caller that looks up the entry, then by the leader. On drop, at any await, it leaves the
/// table, and the next caller looks up the entry or leads.
pub(crate) struct Flight(Arc<FlightState>);

impl Flight {
    pub(crate) fn key(&self) -> &CacheKey {
        &self.0.key
    }

    pub(crate) fn scope(&self) -> Scope {
        self.0.scope
    }

    /// Ends the flight with the result of its lookup. PERF: publishes the result only if there are waiters.
    pub(crate) fn end_lookup(self, found: &Found) {
        self.unlist();
        if self.0.waiters.load(Acquire) > 0 {
            self.publish(Progress::LookedUp(found.clone()));
        }
    }

    /// Begins to lead after the lookup, which has found `seen`. Wakes the waiters only if there is such an entry, because
    /// it may answer them, or if one of them waits for no leader. Returns `false` if the flight has left the table
    /// meanwhile.
    pub(crate) fn begin_leading(&self, seen: Option<&Entry>) -> bool {
        let tables = self.0.flights.tables.lock();
        if !tables.fleet.get(&self.0.key).is_some_and(|listed| Arc::ptr_eq(listed, &self.0)) {
            return false;
        }
        self.0.set_seen(seen);
        // Under the lock, because a caller that must lead replaces a listed lookup.
        self.0.progress.send_if_modified(|progress| {
            *progress = Progress::Running;
            false
        });
        drop(tables);
        self.0.progress.send_if_modified(|_| seen.is_some() || self.0.has_late_waiters.load(Acquire));
        true
    }

    /// Publishes the state. Callers that join later see it as well.
    pub(crate) fn publish(&self, state: Progress) {
        self.0.progress.send_replace(state);
    }

    /// Leaves the table and publishes the result.
    pub(crate) fn complete(&self, state: Progress) {
        self.unlist();
        self.publish(state);
    }

    /// Leaves the table: the waiters stay, and no other caller joins.
    pub(crate) fn unlist(&self) {
        self.0.unlist();
    }

    pub(crate) fn state(&self) -> &Arc<FlightState> {
        &self.0
    }

    /// Sets the stale candidate that the store has confirmed, or none.
    pub(crate) fn set_stale_candidate(&self, entry: Option<Entry>) {
        *self.0.stale_candidate.lock() = entry;
    }

    /// Returns the stale candidate, if the store has confirmed it.
    pub(crate) fn stale_candidate(&self) -> Option<Entry> {
        self.0.stale_candidate.lock().clone()
    }

    /// Counts the caller that opens the flight, until the returned value is dropped. This caller is no waiter.
    pub(crate) fn opener(&self) -> FlightCaller {
        FlightCaller::new(self.0.clone())
    }

    /// Returns the pulse by which the waiters see that the leader is alive.
    pub(crate) fn pulse(&self) -> Arc<Pulse> {
        self.0.pulse().clone()
    }

    /// Waits until a caller demands a fetch without a lease.
    pub(crate) async fn fetch_demanded(&self) {
        self.0.callers_meet(|state| state.demands.load(Acquire) > 0).await;
    }

    /// Waits until no caller wants the result any more.
    pub(crate) async fn deserted(&self) {
        self.0.callers_meet(|state| state.callers.load(Acquire) == 0).await;
    }

    pub(crate) fn is_deserted(&self) -> bool {
        self.0.callers.load(Acquire) == 0
    }

    /// Waits until a caller wants the result.
    pub(crate) async fn joined(&self) {
        self.0.callers_meet(|state| state.callers.load(Acquire) > 0).await;
    }

    /// Handles an invalidation of the key: drops the stale candidate, and unlists what this process began before.
    pub(crate) fn invalidated(&self) {
        self.set_stale_candidate(None);
        self.0.flights.forget(std::slice::from_ref(&self.0.key));
    }

    /// Records that the leader begins to wait for the leader of another process. An invalidation during the last
    /// request for the lease may have unlisted the flight; it is then listed again. Returns `false` if a newer flight
    /// has taken its place.
    pub(crate) fn begin_pause(&self) -> bool {
        let mut tables = self.0.flights.tables.lock();
        let listed = tables.fleet.entry(self.0.key.clone()).or_insert_with(|| self.0.clone());
        if listed.is_looking_up() {
            *listed = self.0.clone(); // its caller joins this flight if it must lead
        }
        let is_listed = Arc::ptr_eq(listed, &self.0);
        self.0.is_listed.store(is_listed, Release);
        self.0.is_between_questions.store(is_listed, Release);
        is_listed
    }

    /// Records that the leader is about to request the lease, or to fetch.
    pub(crate) fn end_pause(&self) {
        self.0.is_between_questions.store(false, Release);
    }

    /// Records that the fetch begins.
    pub(crate) fn begin_fetch(&self) {
        self.0.invalidations.store(self.0.flights.invalidations.of(&self.0.key), Release);
    }

    /// Becomes the local flight of its cache key, or joins the existing one if that meets the criteria. Leaves the
    /// table of the fleet, so that later callers ask the store first.
    pub(crate) fn go_local(&self, criteria: JoinCriteria) -> Option<Waiter> {
        self.unlist();
        let mut tables = self.0.flights.tables.lock();
        match tables.local.get(&self.0.key) {
            Some(flight_state) if flight_state.matches(criteria) => Some(flight_state.join(criteria)),
            _ => {
                tables.local.insert(self.0.key.clone(), self.0.clone());
                self.0.is_local.store(true, Release);
                self.0.is_listed.store(true, Release);
                None
            }
        }
    }

    /// Returns the number of invalidations of the resource before the fetch began.
    pub(crate) fn invalidations(&self) -> u64 {
        self.0.invalidations.load(Acquire)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.unlist();
        self.0.progress.send_if_modified(|state| {
            let is_incomplete = state.is_incomplete();
            if is_incomplete {
                *state = Progress::Abandoned;
            }
            is_incomplete
        });
    }
}
