//! Leading: spawns the leader of a flight, and returns its result to the caller that opened the flight.

use super::{Caller, attempt::RequestAttempt};
use crate::{
    engine::{
        execution::Execution,
        flight::{Flight, state::Progress},
        frontend::{BoxFetch, ReusePolicy},
        leader::{LeadMode, Leader, LeaderResult},
    },
    error::{Error, ErrorKind},
    store::{entry::Entry, error::BoxFuture},
    sync::pulse::WithPulse,
    telemetry::RequestSpan,
};
use futures_util::future::OptionFuture;
use std::future::Future;
use tokio::{sync::oneshot, time::timeout_at};

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Leads the flight, and resolves to the result for this caller. The leader starts before the future is polled, so
    /// that the future does not reserve room for the arguments.
    pub(super) fn lead(
        &self,
        flight: Flight,
        mode: LeadMode,
        seen: Option<Entry>,
        fetch: BoxFetch<'a, R>,
    ) -> impl Future<Output = RequestAttempt<'a, R>> + Send {
        let opener = flight.opener();
        let (result, inline) = self.spawn_leader(flight, mode, seen, fetch);
        async move {
            inline.await;
            let result = match self.resource().deadline {
                None => result.await,
                Some(deadline) => match timeout_at(deadline, result).await {
                    Ok(result) => result,
                    Err(_) => return self.stale_or_rejected(opener.stale_candidate(), Error::deadline_exceeded()),
                },
            };
            match result {
                Ok(LeaderResult::Response(answer, status) | LeaderResult::FailureResponse(answer, status)) => {
                    RequestAttempt::Fetched(answer, status)
                }
                Ok(
                    LeaderResult::Failed(error, stale) | LeaderResult::NotFetched(Progress::Refused(error, stale), _),
                ) => self.stale_or_rejected(stale, error),
                Ok(LeaderResult::NotFetched(state, fetch)) => self.on_outcome(state, fetch),
                Err(_) => self.reject(Error::new(ErrorKind::Panicked, "the task of the fetch was cancelled")),
            }
        }
    }

    /// Spawns the leader, or returns its future if the fetch borrows from the caller. The result arrives on the
    /// receiver.
    pub(super) fn spawn_leader(
        &self,
        flight: Flight,
        mode: LeadMode,
        seen: Option<Entry>,
        fetch: BoxFetch<'a, R>,
    ) -> (oneshot::Receiver<LeaderResult<'a, R>>, OptionFuture<BoxFuture<'a, ()>>) {
        let (reply, result) = oneshot::channel();
        let (resource, scoped) = (self.resource().clone(), self.spawn.is_none());
        let mut wait_until = self.nested_until.map_or(self.wait_until, |until| until.min(self.wait_until));
        if let Some(deadline) = self.resource().deadline
            && scoped
        {
            wait_until = wait_until.min(deadline);
        }
        let pulse = flight.pulse();
        let execution = Box::new(Execution {
            resource,
            flight,
            seen,
            redirects: self.lookup.redirects.clone(),
            outer_fetches: self.active_fetches.clone(),
            wait_until,
            nested_until: self.nested_until,
            earlier_failures: u32::from(self.has_doubts),
            scoped,
        });
        let in_background = matches!(mode, LeadMode::Refresh) && self.spawn.is_some();
        let resource = self.resource();
        let span = RequestSpan::of_leader(in_background, &resource.config.meter, &resource.key, resource.front_end);
        let leader = Leader { policy: self.policy().clone(), reply: Some(reply), execution, awaited: Vec::new() };
        let leading = span.instrument(leader.run(mode, fetch));
        let leading: BoxFuture<'a, ()> = Box::pin(WithPulse::new(leading, pulse));
        let inline = match self.spawn {
            Some(spawn) => {
                spawn(&self.resource().engine, leading);
                None
            }
            None => Some(leading),
        };
        (result, inline.into())
    }
}
