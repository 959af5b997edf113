//! Work in flight in this process: one flight per cache key, joined by all concurrent callers. A flight begins with the
//! lookup of the entry. If the entry does not answer the caller that looks it up, a leader continues the flight.

pub(crate) mod callers;
#[cfg(test)]
mod schedules;
pub(crate) mod state;

use crate::{
    key::CacheKey,
    store::entry::{Entry, SharedValue},
    sync::pulse::Pulse,
};
use callers::{FlightCaller, Waiter};
use state::{FlightState, Flights, Found, JoinCriteria, Progress, Scope};
use std::{
    collections::hash_map,
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Release},
    },
};

/// The result of entering a flight.
pub(crate) enum Entered {
    /// No matching flight: the caller opened one, and drives it.
    Lead(Flight),
    /// A flight in progress, which the caller joined.
    Wait(Waiter),
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
                return Entered::Wait(Waiter::join(listed.get(), criteria));
            }
            slot => slot,
        };
        let flight_state = Arc::new(FlightState::new(self.clone(), scope, key.clone(), criteria.lookup));
        flight_state.set_seen(seen);
        slot.insert_entry(flight_state.clone());
        Entered::Lead(Flight(flight_state))
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
            Some(flight_state) if flight_state.matches(criteria) => Some(Waiter::join(flight_state, criteria)),
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
