//! Acquiring the right to fetch: the leader asks the store for the entry or the lease. If another process holds the
//! lease, the leader waits as long as that lease lives.

use super::{Leader, LeaderResult};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::{Config, StoreFailure, WaitTimeout},
    engine::{
        flight::state::Progress,
        frontend::{Failure, Reuse, ReusePolicy},
        permit::{FillPermit, HeldLease, LeaseGuard, while_listening},
        resource::Resource,
    },
    outage_cache::NotStored,
    store::{
        entry::Entry,
        error::StoreError,
        lease::{Lease, LeaseReply, LeaseRequest},
        token::Token,
        wake::Listener,
    },
    telemetry::{self, Timed},
};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::futures::Notified,
    time::{Instant, sleep, sleep_until},
};

/// The state of a leader that waits for a lease.
#[derive(Default)]
struct LeaseWait {
    polls: u32,
    unusable_entries: u32,
    was_disconnected: bool,
    /// The wait of the caller that opened the flight, since a leader of another process was met.
    timed: Option<Timed>,
    /// When the lease of another process ends, as the store said last.
    lease_end: Option<Instant>,
    /// Set while the store does not answer: the latest time at which that lease ends.
    silent_until: Option<Instant>,
}

/// The next step of a leader that was not granted the lease.
enum Next {
    /// Ask again at once.
    Ask,
    /// Ask again after this time, or earlier if a wake-up arrives or the breaker opens.
    Pause(Duration),
    /// Fetch for this process only.
    GoLocal,
    FailOpen(StoreError),
    Complete(Progress),
}

/// The reason why a leader stops waiting for the lease.
enum Interruption {
    /// No caller wants the result any more.
    Deserted,
    /// A caller wants this leader to fetch beside the leader of another process.
    FetchDemanded,
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Leader<'a, R, J> {
    /// Waits until the right to fetch is granted, or until there is a result without a fetch.
    pub(super) async fn acquire_lease(&mut self, mut listener: Listener) -> Result<FillPermit, Progress> {
        let engine = self.execution.resource.engine.clone();
        let mut wait = LeaseWait::default();
        loop {
            let breaker_opened = engine.breakers.opened(); // before the request, so that no opening is missed
            let next = match self.ask(true, &mut listener).await {
                Ok((LeaseReply::Granted { lease, .. }, guard)) => {
                    if self.execution.flight.is_deserted() {
                        guard.release(None).await;
                        return Err(Progress::Abandoned);
                    }
                    return Ok(self.begin(lease, guard, listener).await);
                }
                Ok((LeaseReply::Hit(entry), _)) => self.on_entry(entry, &mut wait),
                Ok((LeaseReply::Wait { remaining, holder, waiting, registered, .. }, _)) => {
                    self.time_wait(&mut wait);
                    let pause = wait.heard_of_lease(remaining, waiting, registered);
                    self.on_other_leader(holder, &listener, pause).await
                }
                Ok((LeaseReply::Failed { retry_in, report, .. }, _)) => self.on_failure_marker(retry_in, &report),
                Err(error) => self.on_error(error, &mut wait),
            };
            if self.execution.flight.is_deserted() {
                return Err(Progress::Abandoned); // the last caller has left during the request
            }
            // The flight may wait for a local one next.
            if let Next::GoLocal | Next::FailOpen(_) = next {
                wait.timed = None;
            }
            match next {
                Next::Ask => {}
                // Without this the flights of a process would pile up while the key is invalidated again and again.
                Next::Pause(_) if !self.execution.flight.begin_pause() => return Err(Progress::Abandoned),
                Next::Pause(span) => match self.pause(span, &mut listener, breaker_opened).await {
                    None => wait.polls += 1,
                    Some(Interruption::FetchDemanded) => return Ok(FillPermit::local(listener)),
                    Some(Interruption::Deserted) => return Err(Progress::Abandoned),
                },
                Next::GoLocal => return self.execution.go_local(listener).await,
                Next::FailOpen(error) => return self.execution.fail_open(listener, error).await,
                Next::Complete(state) => return Err(state),
            }
        }
    }

    /// Acquires the right to refresh an entry that was served already. Asks once. If another process refreshes the
    /// entry, or has failed to, the flight is held for a while, so that later callers do not ask again.
    pub(super) async fn acquire_refresh(&mut self, mut listener: Listener) -> Result<FillPermit, Progress> {
        let span = match self.ask(false, &mut listener).await {
            Ok((LeaseReply::Granted { lease, .. }, guard)) => return Ok(self.begin(lease, guard, listener).await),
            Ok((LeaseReply::Hit(entry), _)) => return Err(Progress::LookedUp(Ok(Some(entry)))),
            Ok((LeaseReply::Wait { remaining: span, .. } | LeaseReply::Failed { retry_in: span, .. }, _)) => span,
            Err(_) => return Err(Progress::Abandoned),
        };
        tokio::select! {
            () = listener.invalidated() => self.execution.on_invalidation(),
            () = self.execution.hold_refresh_slot(span) => {}
        }
        Err(Progress::Abandoned)
    }

    /// Asks the store once, with a new token. An invalidation that arrives before the reply is handled at once.
    async fn ask(&mut self, notify: bool, listener: &mut Listener) -> Result<(LeaseReply, LeaseGuard), StoreError> {
        let resource = &self.execution.resource;
        resource.check_breaker()?;
        let token = listener.token();
        let mut guard = LeaseGuard::new(resource.clone(), token);
        let seen = self.execution.seen.as_ref().map(|entry| entry.meta().id);
        let request = LeaseRequest { token, lease: resource.config.lease_ttl, seen, notify };
        let reply = {
            let question = pin!(guard.resource().get_or_lease(request));
            while_listening(listener, || self.execution.on_invalidation(), question).await?
        };
        match reply {
            LeaseReply::Hit(_) => guard.disarm(),
            LeaseReply::Granted { seen_alive, failures, .. } => {
                self.execution.earlier_failures = self.execution.earlier_failures.max(failures);
                self.execution.confirm_stale_candidate(seen_alive);
            }
            LeaseReply::Wait { seen_alive, .. } | LeaseReply::Failed { seen_alive, .. } => {
                guard.disarm();
                self.execution.confirm_stale_candidate(seen_alive);
            }
        }
        Ok((reply, guard))
    }

    /// Begins to lead. The lease is extended in a task of its own, unless the fetch is scoped or the store is embedded.
    async fn begin(&self, lease: Lease, guard: LeaseGuard, listener: Listener) -> FillPermit {
        let mut held = Box::new(HeldLease::new(lease, guard, listener));
        if !self.execution.scoped && self.execution.resource.engine.store.is_shared() {
            held.start_heartbeat(&self.execution.flight).await;
        }
        FillPermit::Lease(held)
    }

    /// Decides what to do without an answer of the store.
    fn on_error(&self, error: StoreError, wait: &mut LeaseWait) -> Next {
        match self.kept_result(NotStored::because_of(&error)) {
            Some(kept) => Next::Complete(Progress::LookedUp(Ok(Some(kept)))),
            None => wait.on_silence(error, &self.execution.resource.config),
        }
    }

    /// Decides what to do while a failure marker blocks the key.
    fn on_failure_marker(&mut self, retry_in: Duration, report: &[u8]) -> Next {
        let Resource { engine, config, .. } = &self.execution.resource;
        if config.failure_ttl.is_zero() {
            return Next::GoLocal;
        }
        let error = engine.recent_failures.error_of(report, retry_in);
        Next::Complete(Progress::Failed(Failure::Error(error), self.execution.seen.take()))
    }

    /// Decides what an entry that the store returned means for the flight.
    fn on_entry(&mut self, entry: Entry, wait: &mut LeaseWait) -> Next {
        let now = Timestamp::now();
        // An entry that this flight waited for counts, however short its lifetime is. Otherwise the waiters would lead
        // one after another.
        if self.awaited.contains(&entry.meta().id) && self.policy.decode(&entry, now).is_some() {
            return Next::Complete(Progress::Filled(Arc::new(entry.into())));
        }
        // Each waiter evaluates the entry for itself.
        if !matches!(self.policy.evaluate(&entry, now), Reuse::Revalidate | Reuse::Miss) {
            return Next::Complete(Progress::LookedUp(Ok(Some(entry))));
        }
        self.execution.flight.set_stale_candidate(None); // the new entry has replaced it
        self.execution.seen = Some(entry);
        wait.unusable_entries += 1;
        if wait.unusable_entries > MAX_UNUSABLE_ENTRIES { Next::GoLocal } else { Next::Ask }
    }

    /// Decides whether to wait for the leader that holds the lease.
    async fn on_other_leader(&mut self, holder: Token, listener: &Listener, pause: Duration) -> Next {
        let resource = &self.execution.resource;
        if !self.awaited.contains(&holder) {
            self.awaited.push(holder);
            if listener.is_orphaned_lease(holder) {
                let _ = resource.release(holder, None).await;
                return Next::Ask;
            }
        }
        // The other leader may be waiting for a fetch that this one is part of.
        if resource.engine.wait_graph.would_deadlock(&resource.key, &self.execution.outer_fetches) {
            telemetry::deadlock_avoided(&resource.config.meter, &resource.key);
            return Next::GoLocal;
        }
        Next::Pause(pause)
    }

    /// Measures the wait of the caller that opened the flight, as long as that caller waits.
    fn time_wait(&self, wait: &mut LeaseWait) {
        match self.opener_waits() {
            true => _ = wait.timed.get_or_insert_with(|| telemetry::waiting(&self.execution.resource.config.meter)),
            false => wait.timed = None,
        }
    }

    fn opener_waits(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }

    /// Waits until it is time to ask the store again (`None`), or until there is a reason not to wait any longer.
    async fn pause(
        &mut self,
        span: Duration,
        listener: &mut Listener,
        breaker_opened: Notified<'_>,
    ) -> Option<Interruption> {
        let opener_waits = self.opener_waits();
        let interruption = tokio::select! {
            biased;
            invalidated = listener.notified() => {
                if invalidated {
                    self.execution.on_invalidation();
                }
                None
            }
            () = self.execution.flight.deserted() => Some(Interruption::Deserted),
            () = self.execution.flight.fetch_demanded() => Some(Interruption::FetchDemanded),
            () = sleep_until(self.execution.wait_until), if opener_waits => self.on_wait_timeout(),
            () = breaker_opened => None,
            () = sleep(span) => None,
        };
        self.execution.flight.end_pause();
        interruption
    }

    /// Handles the end of the wait of the caller that opened the flight. `None`: the flight waits on for the callers
    /// that have joined it.
    fn on_wait_timeout(&mut self) -> Option<Interruption> {
        let (resource, now) = (&self.execution.resource, clock::now());
        if !self.opener_waits() {
            return None;
        }
        if self.execution.nested_until.is_some_and(|until| until <= now) {
            return Some(Interruption::FetchDemanded);
        }
        let is_past_deadline = self.execution.is_past_deadline();
        let error = self.execution.wait_error();
        let stale = self.execution.flight.stale_candidate();
        let stale = stale.filter(|stale| self.policy.stale_answer(stale, Timestamp::of(now)).is_some());
        if stale.is_none() && resource.config.on_wait_timeout == WaitTimeout::Fetch && !is_past_deadline {
            return Some(Interruption::FetchDemanded);
        }
        self.reply_to_caller(LeaderResult::Failed(error, stale));
        self.execution.scoped.then_some(Interruption::Deserted) // a scoped fetch ends with its caller
    }
}

impl LeaseWait {
    /// Records what the store said of the lease. Returns the pause before the next request.
    fn heard_of_lease(&mut self, remaining: Duration, waiting: usize, registered: bool) -> Duration {
        self.lease_end = Some(clock::deadline_after(remaining));
        (self.silent_until, self.unusable_entries) = (None, 0);
        let expiry = remaining.saturating_add(backoff::after_expiry(waiting, clock::random_unit()));
        if registered { expiry } else { expiry.min(backoff::poll(self.polls, clock::random_unit())) }
    }

    /// Decides what to do while the store does not answer.
    ///
    /// A lease that the store has reported may live longer than reported, because its leader may have extended it just
    /// before the silence. Without the store no leader can extend it again, so one more lease is enough.
    fn on_silence(&mut self, error: StoreError, config: &Config) -> Next {
        if error.is_disconnected() && !self.was_disconnected {
            self.was_disconnected = true;
            return Next::Ask; // with a new token; the old one is released in the background
        }
        let Some(lease_end) = self.lease_end else { return Next::FailOpen(error) };
        if error.is_refused() || config.on_store_failure == StoreFailure::FailClosed {
            return Next::FailOpen(error);
        }
        let silent_until =
            *self.silent_until.get_or_insert_with(|| clock::deadline_after(config.lease_ttl).max(lease_end));
        let left = silent_until.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Next::FailOpen(error);
        }
        Next::Pause(left.min(backoff::poll(self.polls, clock::random_unit())))
    }
}

/// Maximum number of unusable entries in a row before the flight fetches for its own process.
const MAX_UNUSABLE_ENTRIES: u32 = 16;
