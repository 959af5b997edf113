//! Acquiring the right to fetch: the leader asks the store for the entry or the lease. If another process holds the
//! lease, the leader waits as long as that lease lives.

use super::Leader;
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::{Config, FailureClass, StoreFailure},
    engine::{
        breaker::Access,
        flight::Progress,
        frontend::{Reuse, Unshared},
        permit::{FillPermit, FillRight, while_listening},
    },
    error::Error,
    outage_cache::NotStored,
    store::{
        entry::Entry,
        error::StoreError,
        lease::{Lease, LeaseReply, LeaseRequest},
        wake::Listener,
    },
    sync::newest_first,
    telemetry::{self, Timed},
};
use std::{mem, sync::Arc, time::Duration};
use tokio::{
    sync::futures::Notified,
    time::{Instant, sleep},
};

/// The state of a leader that waits for a lease.
#[derive(Default)]
struct LeaseWait {
    polls: u32,
    /// The leases of other processes that this leader has waited for, each with the
    /// [number](crate::versions::Versions::now) of the question that has met it.
    awaited: Vec<(Lease, u64)>,
    was_disconnected: bool,
    /// The longest pause for which the first wake-up is relied on.
    first_pause: Duration,
    /// Measures the wait since the store has told of a lease of another process.
    timed: Option<Timed>,
    /// When the lease of another process ends, as the store said last.
    lease_end: Option<Instant>,
    /// Set while the store does not answer: the latest time at which that lease ends.
    silent_until: Option<Instant>,
}

impl Leader {
    /// Waits until the right to fetch is granted, or until there is a result without a fetch. What follows the first
    /// reply is boxed, because most leaders get the lease at once.
    pub(super) async fn acquire_lease(&mut self, permit: &mut FillPermit) -> Result<FillRight, Progress> {
        let resource = self.resource.clone();
        // The lease, or the message of its end, may be lost. The leader finds out when the fetch should have ended.
        let mut wait = LeaseWait { first_pause: self.expected_fetch_time(), ..LeaseWait::default() };
        loop {
            let breaker_changed = resource.engine.breakers.changed(); // before the request, so that no opening is missed
            let asked = resource.engine.versions.now();
            let reply = self.ask(true, permit).await;
            if self.flight.is_deserted() {
                return Err(Progress::Abandoned); // the last caller has left during the request
            }
            let pause = match reply {
                Ok(LeaseReply::Granted { lease, .. }) => return Ok(FillRight::Lease(lease)),
                Ok(LeaseReply::Hit(entry)) => match self.on_entry(entry, &wait.awaited) {
                    Some(state) => return Err(state),
                    None => continue,
                },
                Ok(LeaseReply::Wait { remaining, holder, waiting, registered, .. }) => {
                    wait.timed.get_or_insert_with(|| telemetry::waiting(&resource.config.meter));
                    if wait.awaited.iter().all(|(awaited, _)| awaited.token != holder.token) {
                        wait.awaited.push((holder, asked));
                        if permit.listener.is_orphaned_lease(holder.token) {
                            let _ = Box::pin(resource.release(holder.token, None)).await; // its leader was dropped
                            continue;
                        }
                    }
                    wait.heard_of_lease(remaining, waiting, registered)
                }
                Ok(LeaseReply::Failed { retry_in, report, .. }) => {
                    let error = resource.engine.recent_failures.error_of(&report, retry_in);
                    return Err(Progress::Unshared(Unshared::Error(error, FailureClass::OriginDown)));
                }
                // Asks again with a new token. A lease granted to the old one is released in the background.
                Err(error) if error.is_disconnected() && !mem::replace(&mut wait.was_disconnected, true) => continue,
                Err(error) => wait.on_silence(error, &resource.config)?,
            };
            // Without this the flights of a process would pile up while the key is invalidated again and again.
            if !self.flight.begin_pause() || !Box::pin(self.pause(pause, &mut permit.listener, breaker_changed)).await {
                return Err(Progress::Abandoned);
            }
            wait.polls += 1;
        }
    }

    /// Acquires the right to refresh an entry that was served already. Asks once. If another process refreshes the
    /// entry, or has failed to, the flight is held for a while, so that later callers do not ask again. If a caller
    /// joins it, the leader goes on for that caller.
    pub(super) async fn acquire_refresh(&mut self, permit: &mut FillPermit) -> Result<FillRight, Progress> {
        let span = match self.ask(false, permit).await {
            Ok(LeaseReply::Granted { lease, .. }) => return Ok(FillRight::Lease(lease)),
            Ok(LeaseReply::Hit(entry)) => return Err(Progress::Found(Ok(Some(entry)))),
            Ok(LeaseReply::Wait { remaining, .. }) => remaining.min(self.expected_fetch_time().max(MIN_SLOT_TIME)),
            Ok(LeaseReply::Failed { retry_in, .. }) => retry_in,
            Err(_) => return Err(Progress::Abandoned),
        };
        if self.scoped {
            return Err(Progress::Abandoned);
        }
        let is_joined = tokio::select! {
            biased;
            () = permit.listener.invalidated() => {
                self.on_invalidation();
                false
            }
            () = self.flight.joined() => true,
            () = sleep(span.min(MAX_SLOT_TIME)) => false,
        };
        // Not abandoned, because the caller might join a refresh again and again. Boxed, because few are joined.
        if is_joined { Box::pin(self.acquire_lease(permit)).await } else { Err(Progress::Abandoned) }
    }

    /// Returns how long the fetch of another process may take: twice as long as the last one of this key, or half a lease
    /// if that is not known.
    fn expected_fetch_time(&self) -> Duration {
        let cost = self.flight.state().seen().map(|entry| entry.meta().cost).filter(|cost| !cost.is_zero());
        cost.map_or(self.resource.config.lease_ttl / 2, |cost| cost.saturating_mul(2))
    }

    /// Asks the store once, with a new token. An invalidation that arrives before the reply is handled at once.
    async fn ask(&mut self, notify: bool, permit: &mut FillPermit) -> Result<LeaseReply, StoreError> {
        let resource = self.resource.clone();
        resource.check_breaker(Access::Write)?;
        let (token, asked) = (permit.token(), resource.engine.versions.now());
        let seen = self.seen.as_ref().map(|entry| entry.meta().id);
        let Config { lease_ttl: lease, fetch_timeout, .. } = *resource.config;
        let kept_for = fetch_timeout.saturating_sub(lease);
        let question = resource.get_or_lease(LeaseRequest { token, lease, kept_for, seen, notify });
        let reply = while_listening(&mut permit.listener, || self.on_invalidation(), question).await;
        match &reply {
            Ok(LeaseReply::Hit(_)) => permit.right = FillRight::None,
            Ok(LeaseReply::Granted { seen_alive, failures, .. }) => {
                self.earlier_failures = self.earlier_failures.max(*failures);
                self.confirm_stale_candidate(*seen_alive, asked);
            }
            Ok(LeaseReply::Wait { seen_alive, .. } | LeaseReply::Failed { seen_alive, .. }) => {
                (permit.right, self.has_waited) = (FillRight::None, true);
                self.confirm_stale_candidate(*seen_alive, asked);
            }
            Err(_) => permit.abandon(),
        }
        reply
    }

    /// Decides what an entry that the store returned means for the flight. `None`: asks again.
    fn on_entry(&mut self, entry: Entry, awaited: &[(Lease, u64)]) -> Option<Progress> {
        let now = Timestamp::now();
        // An entry that this flight waited for counts, however short its lifetime is, unless it has expired by request.
        // Otherwise the waiters would lead one after another.
        let waited_for = match self.policy.since() {
            0 => awaited.iter().find(|(lease, _)| lease.token == entry.meta().id),
            // For a refresh, the fetch under the first lease that it met may have begun before its call.
            _ => awaited.first().filter(|(first, _)| entry.meta().stamp > first.stamp),
        };
        if let Some((_, asked)) = waited_for
            && !entry.has_expired()
            && self.policy.decode(&entry, now).is_some()
        {
            self.flight.set_begun(*asked);
            return Some(Progress::Filled(Arc::new(entry.into())));
        }
        // Each waiter evaluates the entry for itself.
        if !matches!(self.policy.evaluate(&entry, now), Reuse::Revalidate | Reuse::Miss) {
            return Some(Progress::Found(Ok(Some(entry))));
        }
        self.flight.set_stale_candidate(None, 0); // the new entry has replaced it
        self.seen = Some(entry);
        None
    }

    /// Waits until it is time to ask the store again. Reports whether a caller still wants the result.
    async fn pause(&mut self, span: Duration, listener: &mut Listener, breaker_changed: Notified<'_>) -> bool {
        let is_wanted = tokio::select! {
            biased;
            invalidated = listener.notified() => {
                if invalidated {
                    self.on_invalidation();
                }
                true
            }
            () = self.flight.deserted() => false,
            () = breaker_changed => true,
            () = sleep(span) => true,
        };
        self.flight.end_pause();
        is_wanted
    }

    /// Records whether the store still has the stale candidate. Otherwise the candidate must not be served any more.
    /// `asked`: the number of the question.
    fn confirm_stale_candidate(&mut self, alive: bool, asked: u64) {
        if !alive {
            self.seen = None;
        }
        self.flight.set_stale_candidate(self.seen.clone(), asked);
    }

    /// Acquires the right to fetch without the store: a `max_fallback_fetches` permit. A nested fetch needs none, because
    /// the enclosing fetch may hold the last one.
    pub(super) async fn acquire_fallback(&self, reason: NotStored) -> Result<FillRight, Progress> {
        // A store that refuses to store may have a newer entry than the kept one, but none that this caller must get.
        let counts = |kept: &Entry| reason == NotStored::Unavailable || kept.meta().response_time >= self.requested_at;
        let kept = self.resource.kept_result(&self.policy, reason, self.seen.as_ref());
        if let Some(kept) = kept.filter(counts) {
            return Err(Progress::Found(Ok(Some(kept))));
        }
        let fallback_permit = match self.outer_fetches.is_empty() {
            true => Some(self.acquire_fallback_permit().await?),
            false => None,
        };
        Ok(FillRight::Local { not_stored: Some(reason), _fallback_permit: fallback_permit })
    }

    async fn acquire_fallback_permit(&self) -> Result<newest_first::Permit, Progress> {
        let permits = &self.resource.config.max_fallback_fetches;
        if let Some(permit) = permits.try_acquire() {
            return Ok(permit);
        }
        self.flight.begin_wait();
        self.flight.publish(Progress::Queued);
        let closed = self.resource.breaker_is(&Access::ALL, |breaker| breaker.has_closed_since(self.asked));
        let permit = tokio::select! {
            biased;
            () = self.flight.deserted() => return Err(Progress::Abandoned),
            // Later not, because a store that answers only probes would send its callers round and round.
            () = closed, if self.asked.since(self.requested_at) < MAX_QUEUE_TIME => return Err(Progress::Abandoned),
            permit = permits.acquire() => permit,
            () = sleep(MAX_QUEUE_TIME) => {
                let error = "the store is unavailable and all `max_fallback_fetches` permits are in use";
                return Err(Progress::Unshared(Unshared::Error(Error::overloaded(error), FailureClass::OriginDown)));
            }
        };
        self.flight.publish(Progress::Running);
        Ok(permit)
    }
}

impl LeaseWait {
    /// Records what the store said of the lease. Returns the pause before the next request.
    fn heard_of_lease(&mut self, remaining: Duration, waiting: usize, registered: bool) -> Duration {
        let is_first = self.lease_end.replace(clock::deadline_after(remaining)).is_none();
        self.silent_until = None;
        let span = if is_first { self.first_pause.min(remaining) } else { remaining };
        let expiry = span.saturating_add(backoff::after_expiry(waiting, clock::random_unit()));
        if registered { expiry } else { expiry.min(backoff::poll(self.polls, clock::random_unit())) }
    }

    /// Returns the pause before the next request while the store does not answer, or what the callers are told.
    ///
    /// A lease that the store has reported may live longer than reported, because its leader may have extended it just
    /// before the silence. Without the store no leader can extend it again, so one more lease is enough.
    fn on_silence(&mut self, error: StoreError, config: &Config) -> Result<Duration, Progress> {
        let left = match self.lease_end {
            Some(lease_end) if !error.is_refused() && config.on_store_failure == StoreFailure::FailOpen => {
                let last_end = || clock::deadline_after(config.lease_ttl).max(lease_end);
                self.silent_until.get_or_insert_with(last_end).saturating_duration_since(clock::now())
            }
            _ => Duration::ZERO,
        };
        match left.is_zero() {
            true => Err(Progress::Found(Err(error))),
            false => Ok(left.min(backoff::poll(self.polls, clock::random_unit()))),
        }
    }
}

/// Minimum time for which a flight is held while another process refreshes, unless its lease ends earlier. Without it, the
/// stale hits of a key with a fast origin would ask again and again.
const MIN_SLOT_TIME: Duration = Duration::from_millis(500);
/// Maximum time for which a flight is held while another process refreshes: a lease TTL of the default length.
const MAX_SLOT_TIME: Duration = Duration::from_secs(3);
/// Maximum time that a flight waits for a `max_fallback_fetches` permit. Many clients wait little longer, so a longer
/// queue would serve clients that have gone.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(1);
