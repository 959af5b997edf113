//! Work in flight in this process: one flight per cache key and scope. A leader drives it, and its callers wait for the
//! result.

#[cfg(test)]
mod schedules;

use super::{fill_set::FillSet, frontend::Unshared};
use crate::{
    clock::{self, Timestamp},
    key::CacheKey,
    policy::{Freshness, freshness},
    store::{
        entry::{Entry, SharedValue},
        error::StoreError,
    },
    sync::{
        mutex::Mutex,
        pulse::{Pulse, WithPulse},
        watch::Watched,
    },
    versions::Versions,
};
use bytes::Bytes;
use quick_cache::DefaultHashBuilder;
use std::{
    collections::{BTreeMap, HashMap},
    future::{Future, poll_fn},
    mem,
    pin::pin,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    task::{Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The result of a lookup in the store.
pub(crate) type Found = Result<Option<Entry>, StoreError>;

/// The progress of a flight. Each caller sees the latest state. The leader publishes all states but `Abandoned`. A
/// leader that ends without a result hands the flight over to a waiter, and the state is `Running` again.
///
/// | state | when | what a waiter does |
/// |---|---|---|
/// | `Running` | from the beginning | waits |
/// | `Queued` | no `max_fallback_fetches` permit is free | waits; a nested one leaves, because the enclosing fetch may hold the permit |
/// | `HeadersReady` | the response is shared at its end | waits; leaves for another variant if the head redirects it |
/// | `Found` | the store or the outage cache had an entry, or the store did not answer | goes on as after a lookup of its own |
/// | `Filled` | the payload is complete | takes the entry if its request is older than the response, however short the lifetime is; otherwise evaluates it |
/// | `Shared` | a value has no entry, or its entry is not stored yet | takes the value if it suits the request |
/// | `Unshared` | the response is private, the fetch failed again or for a request like all others, or a failure marker blocks the key | takes the confirmed stale entry in place of a failure; otherwise does what [`Unshared`] says |
/// | `Abandoned` | the leader is not polled, ended without a result and no waiter takes the flight over, or stood in the queue when the circuit breaker closed | looks the entry up, and one waiter leads |
#[derive(Clone)]
pub(crate) enum Progress {
    Running,
    Queued,
    HeadersReady(Option<SharedValue>),
    Found(Found),
    Filled(Arc<FillSet>),
    Shared(SharedValue),
    Unshared(Unshared),
    Abandoned,
}

impl Progress {
    fn is_incomplete(&self) -> bool {
        matches!(self, Self::Running | Self::Queued | Self::HeadersReady(_))
    }
}

/// The scope of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The fetch is coordinated through the store, across the fleet.
    Fleet,
    /// The same, for callers that refresh. All others get what is stored meanwhile.
    Refresh,
    /// The fetch is for this process only, because the store does not answer, or must not keep the response.
    Local,
}

/// The criteria for joining a flight.
#[derive(Clone, Copy, Default)]
pub(crate) struct JoinCriteria {
    /// The caller is nested in another fetch.
    pub(crate) nested: bool,
    /// The flight has no response yet.
    pub(crate) incomplete_only: bool,
    /// The time at which the caller leaves at the latest, if it has a deadline.
    pub(crate) deadline: Option<Instant>,
    /// The fetch of the flight has this [number](Versions::now) at least, or has not begun. 0 unless the caller refreshes.
    pub(crate) since: u64,
}

impl JoinCriteria {
    /// Returns the scope of the flights that are coordinated across the fleet.
    pub(crate) fn fleet(self) -> Scope {
        if self.since == 0 { Scope::Fleet } else { Scope::Refresh }
    }
}

/// The flights of one engine. The table keeps nothing of a flight that has ended.
#[derive(Default)]
pub(crate) struct Flights {
    table: Mutex<Table>,
    /// Number of resources in the table. PERF: a hit in a process without flights takes no lock.
    resources: AtomicUsize,
    /// The invalidations that this process has requested or heard of.
    pub(super) versions: Arc<Versions>,
}

/// The flights that callers may join, by the [primary](CacheKey::primary) of their resource, so that an invalidation is
/// one lookup. Few resources have several flights: of their qualifiers, variants, layouts and scopes, and of other
/// namespaces. PERF: with the hasher of `quick_cache`, a lookup takes fewer instructions than with that of the standard
/// library.
type Table = HashMap<Bytes, Vec<Arc<FlightState>>, DefaultHashBuilder>;

/// The state shared by the leader and the callers of a flight.
pub(crate) struct FlightState {
    flights: Arc<Flights>,
    key: CacheKey,
    scope: Scope,
    progress: Watched<Progress>,
    /// Whether the flight is in the table. Changed under its lock. PERF: a flight that has left the table is dropped
    /// without that lock.
    is_listed: AtomicBool,
    /// Whether the leader waits for the leader of another process, and no request for the lease is in flight. Such a
    /// flight stays in the table when its resource is invalidated, because its next question is newer.
    is_between_questions: AtomicBool,
    /// Whether the leader has met another leader, or waits for a permit.
    leader_waits: AtomicBool,
    /// The [number](Versions::now) at which the fetch began.
    begun: AtomicU64,
    /// The entry that the fetch replaces, and when the flight began. The store may have dropped the entry since.
    seen: Option<(Entry, Timestamp)>,
    /// The stale candidate: the stored entry that may be served if no newer one comes, and the
    /// [number](Versions::now) of the question whose answer confirmed it.
    stale_candidate: Mutex<Option<(Entry, u64)>>,
    /// Set if the store has not answered the leader: the local flight that the first of the callers has entered next.
    next: OnceLock<Arc<Self>>,
    /// Shows whether the leader is polled.
    pulse: Arc<Pulse>,
    /// When a waiter last looked at the pulse, and what it read; or when the first waiter came.
    felt: Mutex<Option<(Instant, Option<usize>)>>,
    /// Set when the fetch has failed once: the [hash](super::frontend::ReusePolicy::request_hash) of its request. The next
    /// failure counts.
    failed: OnceLock<u64>,
    /// The waiters that may lead next, by their ranks.
    successors: Mutex<BTreeMap<i64, Successor>>,
    /// Number of callers that want the result. The caller that opened the flight counts as well.
    callers: AtomicUsize,
    /// Notified when the first caller comes, when the last caller leaves, when the leader begins to wait, and when there is a
    /// stale candidate.
    changed: Notify,
}

/// A waiter that may lead next.
struct Successor {
    request_hash: u64,
    /// The chosen waiter has none.
    waker: Option<Waker>,
}

impl Flights {
    /// Joins the flight of the cache key in this scope if it meets the criteria. Otherwise opens a new one in its place.
    /// `seen` is the entry that the caller has found.
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: &CacheKey,
        scope: Scope,
        criteria: JoinCriteria,
        seen: Option<&Entry>,
    ) -> Result<Flight, Waiter> {
        self.open_or(key, scope, criteria, seen, |listed| Waiter::join(listed, criteria))
    }

    /// Enters the local flight that follows one whose leader the store has not answered. All callers of that one join
    /// the same local flight, even if it has ended before they come. Otherwise the last of many callers would lead one
    /// local flight after another.
    pub(crate) fn enter_next(
        self: &Arc<Self>,
        unanswered: &FlightState,
        criteria: JoinCriteria,
    ) -> Result<Flight, Waiter> {
        let has_result = |next: &FlightState| {
            !criteria.incomplete_only && next.progress.is(|progress| matches!(progress, Progress::Filled(_)))
        };
        if let Some(next) = unanswered.next.get().filter(|next| has_result(next) || next.may_be_joined(criteria)) {
            return Err(Waiter::join(next, criteria));
        }
        let entered = self.enter(&unanswered.key, Scope::Local, criteria, unanswered.seen());
        let next = match &entered {
            Ok(flight) => &flight.0,
            Err(waiter) => &waiter.flight,
        };
        let _ = unanswered.next.set(next.clone());
        entered
    }

    /// Opens a flight, unless one is listed that meets the criteria. The leader of that one does not notice.
    pub(crate) fn open(
        self: &Arc<Self>,
        key: &CacheKey,
        scope: Scope,
        criteria: JoinCriteria,
        seen: Option<&Entry>,
    ) -> Option<Flight> {
        self.open_or(key, scope, criteria, seen, |_| ()).ok()
    }

    fn open_or<T>(
        self: &Arc<Self>,
        key: &CacheKey,
        scope: Scope,
        criteria: JoinCriteria,
        seen: Option<&Entry>,
        join: impl FnOnce(&Arc<FlightState>) -> T,
    ) -> Result<Flight, T> {
        let mut table = self.table.lock();
        let flights = table.entry(key.primary().clone()).or_default();
        let place = flights.iter().position(|flight| flight.is_of(key, scope));
        if let Some(listed) = place.map(|place| &flights[place]).filter(|listed| listed.may_be_joined(criteria)) {
            return Err(join(listed));
        }
        let flight = Arc::new(FlightState::new(self.clone(), key.clone(), scope, seen));
        let replaced = place.map(|place| flights.swap_remove(place));
        if let Some(replaced) = &replaced {
            replaced.is_listed.store(false, Release);
        }
        flights.push(flight.clone());
        self.resources.store(table.len(), Release);
        drop(table);
        drop(replaced); // not under the lock: it may drop values of the user
        Ok(Flight(flight))
    }

    /// Joins the flight of the fleet if there is one that meets the criteria.
    pub(crate) fn join(&self, key: &CacheKey, criteria: JoinCriteria) -> Option<Waiter> {
        if self.resources.load(Acquire) == 0 {
            return None;
        }
        let table = self.table.lock();
        let listed = find(table.get(key.primary())?, key, criteria.fleet())?;
        listed.may_be_joined(criteria).then(|| Waiter::join(listed, criteria))
    }

    /// Reports whether there is a flight of the fleet.
    pub(crate) fn has(&self, key: &CacheKey) -> bool {
        self.resources.load(Acquire) > 0
            && self.table.lock().get(key.primary()).is_some_and(|flights| find(flights, key, Scope::Fleet).is_some())
    }

    /// Makes sure that no caller joins a flight of the resources that began before now, in any layout. Flights of their
    /// variants too, because callers reach them through remembered redirects.
    pub(crate) fn forget(&self, keys: &[CacheKey]) {
        let mut table = self.table.lock();
        let is_older = |key: &CacheKey, flight: &FlightState| {
            key.covers(&flight.key) && !flight.is_between_questions.load(Acquire)
        };
        let older: Vec<_> = keys.iter().map(|key| self.take(&mut table, key, |flight| is_older(key, flight))).collect();
        drop(table);
        drop(older);
    }

    /// Returns the number of flights that may be joined.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().values().map(Vec::len).sum()
    }

    /// Removes the flights of the resource that are to leave. The table shrinks with the number of flights.
    fn take(&self, table: &mut Table, key: &CacheKey, leaves: impl Fn(&FlightState) -> bool) -> Vec<Arc<FlightState>> {
        let Some(flights) = table.get_mut(key.primary()) else { return Vec::new() };
        let taken: Vec<_> = flights.extract_if(.., |flight| leaves(flight)).collect();
        taken.iter().for_each(|flight| flight.is_listed.store(false, Release));
        if flights.is_empty() {
            table.remove(key.primary());
            self.resources.store(table.len(), Release);
            if table.capacity() > MIN_CAPACITY && table.len() < table.capacity() / 8 {
                table.shrink_to(table.len() * 2);
            }
        }
        taken
    }
}

fn find<'a>(flights: &'a [Arc<FlightState>], key: &CacheKey, scope: Scope) -> Option<&'a Arc<FlightState>> {
    flights.iter().find(|listed| listed.is_of(key, scope))
}

impl FlightState {
    fn new(flights: Arc<Flights>, key: CacheKey, scope: Scope, seen: Option<&Entry>) -> Self {
        Self {
            flights,
            key,
            scope,
            progress: Watched::new(Progress::Running),
            is_listed: AtomicBool::new(true),
            is_between_questions: AtomicBool::new(false),
            leader_waits: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            seen: seen.map(|entry| (entry.clone(), Timestamp::now())),
            stale_candidate: Mutex::default(),
            next: OnceLock::new(),
            pulse: Arc::default(),
            felt: Mutex::default(),
            failed: OnceLock::new(),
            successors: Mutex::default(),
            callers: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }

    pub(crate) fn key(&self) -> &CacheKey {
        &self.key
    }

    pub(crate) fn seen(&self) -> Option<&Entry> {
        self.seen.as_ref().map(|(entry, _)| entry)
    }

    /// Returns the [number](Versions::now) at which the fetch began. 0 if it has not, or if the result is not its own.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Acquire)
    }

    fn is_of(&self, key: &CacheKey, scope: Scope) -> bool {
        self.scope == scope && self.key == *key
    }

    fn may_be_joined(&self, criteria: JoinCriteria) -> bool {
        let (now, begun) = (Timestamp::now(), self.begun());
        let is_late = begun == 0 || begun >= criteria.since;
        is_late
            && self.progress.is(|progress| match progress {
                Progress::Queued => !criteria.nested,
                // A waiter has abandoned the flight while its leader was about to pause.
                Progress::Abandoned => false,
                // An entry that has expired while the flight is still listed is of no use to new callers.
                Progress::Filled(fill_set) if freshness(&fill_set.entry, now) != Freshness::Fresh => false,
                progress => !criteria.incomplete_only || progress.is_incomplete(),
            })
    }

    /// Leaves the table: the callers stay, and no other caller joins.
    pub(crate) fn unlist(self: &Arc<Self>) {
        if self.is_listed.load(Acquire) {
            let mut table = self.flights.table.lock();
            self.flights.take(&mut table, &self.key, |listed| ptr::eq(listed, Arc::as_ptr(self)));
        }
    }

    fn stale_candidate(&self) -> Option<Entry> {
        let candidate = self.stale_candidate.lock().clone();
        candidate.filter(|(_, begun)| self.flights.versions.counts(&self.key, *begun)).map(|(entry, _)| entry)
    }

    /// Waits for a stale candidate that gives an answer, and returns that.
    pub(crate) async fn stale_answer<T>(&self, answer: impl Fn(Entry) -> Option<T>) -> T {
        self.meets(|flight| flight.stale_candidate().and_then(&answer)).await
    }

    /// Adds the pulse by which the waiters see that the leader is alive.
    pub(crate) fn with_pulse<F: Future>(&self, leading: F) -> WithPulse<F> {
        WithPulse::new(leading, self.pulse.clone())
    }

    /// Hands a flight without a result over to a random waiter without a deadline, or to the one with the latest
    /// deadline. If the fetch has failed, a waiter comes first whose request differs from the failed one. The other
    /// waiters stay. Abandons the flight if there is no waiter, or a newer flight may have its place.
    fn hand_over(self: &Arc<Self>) {
        let goes_on = self.is_listed.load(Acquire) && self.resume_as(Progress::Running).is_some();
        self.is_between_questions.store(false, Release);
        self.leader_waits.store(false, Release);
        let failed = self.failed.get().copied().unwrap_or_default();
        let choose = || {
            let mut successors = self.successors.lock();
            let place = |(rank, next): &(&i64, &mut Successor)| (next.request_hash != failed, **rank);
            successors.iter_mut().max_by_key(place)?.1.waker.take()
        };
        goes_on.then(choose).flatten().map_or_else(|| self.abandon(), Waker::wake);
    }

    /// Unlists a flight whose leader is not polled any more, or that no waiter takes over, and releases its waiters.
    fn abandon(self: &Arc<Self>) {
        self.unlist();
        if self.resume_as(Progress::Abandoned).is_some() {
            self.progress.send_modify(|_| {});
        }
    }

    /// Replaces the state of a flight that has no result, without waking its waiters. Returns the old one.
    fn resume_as(&self, state: Progress) -> Option<Progress> {
        self.progress.update(|progress| progress.is_incomplete().then(|| mem::replace(progress, state)))
    }

    /// Looks at the pulse of the leader, and abandons the flight if the leader was not polled since the last look. Does
    /// nothing if that was less than `span` ago, or if the first waiter came then.
    fn look(self: &Arc<Self>, span: Duration) {
        let now = clock::now();
        let is_past = |at: Instant| now.saturating_duration_since(at) >= span;
        if !is_past(self.felt.lock().get_or_insert((now, None)).0) {
            return;
        }
        let reading = self.pulse.feel();
        let earlier = self.felt.lock().replace((now, Some(reading)));
        if let Some((at, Some(reading))) = earlier
            && is_past(at) // no other waiter has looked meanwhile
            && !self.pulse.is_beating_since(reading)
        {
            self.abandon();
        }
    }

    /// Waits until a condition on the callers, the leader or the stale candidate holds, and returns what it gives.
    async fn meets<T>(&self, condition: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified(); // before the condition is checked, so that no change is missed
            if let Some(met) = condition(self) {
                return met;
            }
            changed.await;
        }
    }
}

/// A flight, held by its leader. On drop, at any await, a flight without a result goes to a waiter, which leads next.
pub(crate) struct Flight(Arc<FlightState>);

impl Flight {
    /// Records that a fetch with this [hash](super::frontend::ReusePolicy::request_hash) has failed.
    pub(crate) fn set_failed(&self, request_hash: u64) {
        let _ = self.0.failed.set(request_hash);
    }

    /// Reports whether a fetch of this flight has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.failed.get().is_some()
    }

    /// Reports whether a waiter can lead next.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.0.successors.lock().is_empty()
    }

    /// Publishes the state. Callers that join later see it as well.
    pub(crate) fn publish(&self, mut state: Progress) {
        // The old state is dropped after the lock: it may hold values of the user.
        self.0.progress.send_modify(|progress| mem::swap(progress, &mut state));
    }

    /// Records that the response head has arrived, and that the response will be shared at its end. Wakes the waiters
    /// only for a head that may redirect them.
    pub(crate) fn publish_head(&self, head: Option<SharedValue>) {
        self.0.progress.send_if_modified(|progress| {
            *progress = Progress::HeadersReady(head);
            matches!(progress, Progress::HeadersReady(Some(_)))
        });
    }

    /// Leaves the table and publishes the result.
    pub(crate) fn complete(&self, state: Progress) {
        self.0.unlist();
        self.publish(state);
    }

    pub(crate) fn state(&self) -> &Arc<FlightState> {
        &self.0
    }

    /// Sets the stale candidate that the answer to a question has confirmed, or none. `asked` is the
    /// [number](Versions::now) of the question.
    pub(crate) fn set_stale_candidate(&self, entry: Option<Entry>, asked: u64) {
        let candidate = entry.map(|entry| (entry, asked));
        let _dropped_unlocked = mem::replace(&mut *self.0.stale_candidate.lock(), candidate);
        self.0.changed.notify_waiters();
    }

    /// Counts a caller of this flight that has not joined it: its opener, or a refresh.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::join(&self.0, JoinCriteria::default())
    }

    /// Waits until no caller wants the result any more.
    pub(crate) async fn deserted(&self) {
        self.0.meets(|flight| (flight.callers.load(Acquire) == 0).then_some(())).await;
    }

    pub(crate) fn is_deserted(&self) -> bool {
        self.0.callers.load(Acquire) == 0
    }

    /// Waits until a caller wants the result.
    pub(crate) async fn joined(&self) {
        self.0.meets(|flight| (flight.callers.load(Acquire) > 0).then_some(())).await;
    }

    /// Handles an invalidation of the resource that this process has heard of.
    pub(crate) fn invalidated(&self) {
        self.0.flights.versions.bump(&self.0.key);
        self.0.flights.forget(std::slice::from_ref(&self.0.key));
    }

    /// Records that the leader begins to wait for another leader, or for a permit.
    pub(crate) fn begin_wait(&self) {
        if !self.0.leader_waits.swap(true, AcqRel) {
            self.0.changed.notify_waiters();
        }
    }

    /// Records that the leader begins to wait for the leader of another process. An invalidation during the last
    /// request for the lease does not count any more, because the next request is newer. Returns `false` if a newer
    /// flight has taken its place, or if a waiter has abandoned it.
    pub(crate) fn begin_pause(&self) -> bool {
        self.begin_wait();
        let FlightState { flights, key, scope, is_listed, is_between_questions, progress, .. } = &*self.0;
        let mut table = flights.table.lock();
        if progress.is(|progress| matches!(progress, Progress::Abandoned)) {
            return false;
        }
        let listed = table.entry(key.primary().clone()).or_default();
        if find(listed, key, *scope).is_none() {
            is_listed.store(true, Release);
            listed.push(self.0.clone());
            flights.resources.store(table.len(), Release);
        }
        let is_listed = is_listed.load(Acquire);
        is_between_questions.store(is_listed, Release);
        is_listed
    }

    /// Records that the leader is about to request the lease, or to fetch.
    pub(crate) fn end_pause(&self) {
        self.0.is_between_questions.store(false, Release);
    }

    /// Records the [number](Versions::now) at which the fetch has begun, or before which the fetch of another process has
    /// not begun.
    pub(crate) fn set_begun(&self, number: u64) {
        self.0.begun.store(number, Release);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.hand_over();
    }
}

/// A caller that wants the result of a flight. Leaves on drop.
pub(crate) struct Waiter {
    flight: Arc<FlightState>,
    nested: bool,
    /// Its deadline in milliseconds, the latest possible one if it has none, and random lower bits. Few waiters share a
    /// rank; then the last one may lead next.
    rank: i64,
    /// Whether the response head had arrived when this waiter joined the flight.
    pub(crate) joined_after_head: bool,
    /// [Hash](super::frontend::ReusePolicy::request_hash) of its request. Zero if all requests are alike.
    pub(crate) request_hash: u64,
}

impl Waiter {
    fn join(flight: &Arc<FlightState>, criteria: JoinCriteria) -> Self {
        if flight.callers.fetch_add(1, AcqRel) == 0 {
            flight.changed.notify_waiters();
        }
        let joined_after_head = flight.progress.is(|progress| matches!(progress, Progress::HeadersReady(_)));
        let latest = i64::MAX >> 20;
        let deadline = criteria.deadline.map_or(latest, |deadline| Timestamp::of(deadline).as_micros() / 1000);
        let rank = (deadline << 20) + (clock::random_unit() * f64::from(1 << 20)) as i64;
        Self { flight: flight.clone(), nested: criteria.nested, rank, joined_after_head, request_hash: 0 }
    }

    /// Returns the entry that the fetch replaces. The store may have dropped it since.
    pub(crate) fn seen(&self) -> Option<&Entry> {
        self.flight.seen()
    }

    pub(crate) fn state(&self) -> &Arc<FlightState> {
        &self.flight
    }

    /// Returns the number of callers, this one included.
    pub(crate) fn callers(&self) -> usize {
        self.flight.callers.load(Acquire)
    }

    /// Reports whether the flight has a result.
    pub(crate) fn is_complete(&self) -> bool {
        !self.flight.progress.is(Progress::is_incomplete)
    }

    /// Returns when the flight will end if it takes as long as the last fetch.
    pub(crate) fn expected_end(&self) -> Option<Timestamp> {
        self.flight.seen.as_ref().map(|(entry, began)| began.after(entry.meta().cost))
    }

    /// Returns the stale candidate, if the store has confirmed it and the resource was not invalidated since.
    pub(crate) fn stale_candidate(&self) -> Option<Entry> {
        self.flight.stale_candidate()
    }

    /// Waits until the leader waits for another leader, or for a permit.
    pub(crate) async fn leader_waits(&self) {
        self.flight.meets(|flight| flight.leader_waits.load(Acquire).then_some(())).await;
    }

    /// Waits until this time for the outcome, or for the flight itself if this waiter is to lead next. A leader that is
    /// not polled for half of a lease may lose it to another process: then the flight leaves the table, and is
    /// abandoned.
    pub(crate) async fn outcome_until(
        &self,
        until: Instant,
        half_lease: Duration,
        is_elsewhere: impl Fn(&SharedValue) -> bool,
    ) -> Option<Result<Flight, Progress>> {
        let mut outcome = pin!(self.outcome(is_elsewhere));
        loop {
            // Many waiters look in turn, one each half of a lease, so that all looks together cost next to nothing. A
            // new waiter looks as well, because the waiters whose turn it was may have left.
            self.flight.look(half_lease);
            let turns = self.callers().saturating_sub(FREQUENT_LOOKERS).max(1) as u32;
            let next_look = clock::deadline_after(half_lease.saturating_mul(turns));
            tokio::select! {
                biased;
                state = &mut outcome => return Some(Err(state)),
                flight = self.chosen() => return Some(Ok(flight)),
                () = sleep_until(until.min(next_look)) => {}
            }
            if until <= next_look {
                return None;
            }
        }
    }

    /// Waits until this waiter is chosen to lead.
    ///
    /// Cancel safe: if the waiter leaves, the next waiter is chosen.
    fn chosen(&self) -> impl Future<Output = Flight> {
        poll_fn(|cx| {
            let successor = Successor { request_hash: self.request_hash, waker: Some(cx.waker().clone()) };
            match self.flight.successors.lock().insert(self.rank, successor) {
                Some(Successor { waker: None, .. }) => Poll::Ready(Flight(self.flight.clone())),
                _ => Poll::Pending,
            }
        })
    }

    /// Waits for the first state that is a result, or a reason not to wait. `is_elsewhere` reports whether a response
    /// head redirects this waiter.
    pub(crate) fn outcome(&self, is_elsewhere: impl Fn(&SharedValue) -> bool) -> impl Future<Output = Progress> {
        self.flight.progress.wait_for(move |progress| match progress {
            Progress::Running => false,
            Progress::HeadersReady(head) => head.as_ref().is_some_and(&is_elsewhere),
            Progress::Queued => self.nested,
            _ => true,
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let place = self.flight.successors.lock().remove(&self.rank);
        if let Some(Successor { waker: None, .. }) = place {
            self.flight.hand_over(); // to another waiter
        }
        if self.flight.callers.fetch_sub(1, AcqRel) == 1 {
            self.flight.changed.notify_waiters();
        }
    }
}

/// A table with room for more flights than this shrinks when most of them have ended.
const MIN_CAPACITY: usize = 64;
/// Maximum number of callers of which each looks at the leader every half of a lease.
const FREQUENT_LOOKERS: usize = 4;
