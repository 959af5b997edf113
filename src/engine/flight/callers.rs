//! The callers of a flight, which wait for its result.

use super::state::{FlightState, JoinCriteria, Progress};
use crate::{
    clock::{self, Timestamp},
    store::entry::{Entry, SharedValue},
};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Acquire, Release},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// A caller that wants the result of a flight. Leaves on drop.
pub(crate) struct FlightCaller {
    flight_state: Arc<FlightState>,
    demands_fetch: bool,
}

impl FlightCaller {
    pub(super) fn new(flight_state: Arc<FlightState>) -> Self {
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
    pub(super) flight_state: Arc<FlightState>,
    nested: bool,
    /// Whether the flight was looking up the entry when this waiter joined it.
    joined_lookup: bool,
    /// Whether the response head had arrived when this waiter joined the flight.
    pub(crate) joined_after_head: bool,
}

impl Waiter {
    pub(super) fn join(flight_state: &Arc<FlightState>, criteria: JoinCriteria) -> Self {
        flight_state.waiters.fetch_add(1, AcqRel);
        let joined_lookup = flight_state.is_looking_up();
        let joined_after_head = flight_state.progress.is(|progress| matches!(progress, Progress::HeadersReady(_)));
        Self { flight_state: flight_state.clone(), nested: criteria.nested, joined_lookup, joined_after_head }
    }

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
    pub(super) fn outcome(&self, is_elsewhere: impl Fn(&SharedValue) -> bool) -> impl Future<Output = Progress> {
        self.flight_state.progress.wait_for(move |progress| match progress {
            Progress::LookingUp | Progress::Running => false,
            Progress::HeadersReady(head) => head.as_ref().is_some_and(&is_elsewhere),
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
