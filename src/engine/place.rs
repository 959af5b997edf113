//! One address as one clone of a guard sees it, and the store's operations on it: each within its time, none unheard.

use super::{Engine, right::Made};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::Config,
    entry::Entry,
    key::Address,
    store::{Answer, Ask, Filled, Hold, Lead, Lease, Listener, Right, StoreError, Token, Tombstone},
    telemetry,
};
use std::{future::Future, sync::Arc};
use tokio::time::{Instant, sleep, timeout_at};

#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
    pub(crate) at: Address,
    /// When whoever asks needs an answer.
    pub(crate) deadline: Option<Instant>,
}

impl Place {
    pub(super) fn listen(&self) -> Listener {
        self.engine.store.listen(&self.at)
    }

    /// Without a limit of its own: it is shared, and each of those who share it has one.
    pub(super) async fn get(&self, chain: &[Address]) -> Result<Vec<Option<Entry>>, StoreError> {
        let store = &*self.engine.store;
        let answer = match &self.config.near {
            Some(near) => near.get_all(store, chain).await,
            None => store.get_all(chain).await,
        };
        match answer {
            Err(error) if error.is_disconnected() => store.get_all(chain).await,
            answer => answer,
        }
    }

    pub(super) async fn lead(&self, ask: Ask) -> Result<Lead, StoreError> {
        self.gate()?;
        self.within("lead", self.engine.store.lead(&self.at, ask)).await
    }

    /// Fills. A fill is safe to run twice: one that took too long is sent once more, and one whose connection broke again
    /// and again for as long as others wait for it: while the lease lives, and their wait budget lasts.
    pub(super) async fn fill(&self, right: Right, made: &Made) -> Result<Filled, StoreError> {
        let patience = self.config.lease.min(self.config.wait);
        let (began, mut again) = (Timestamp::now(), 0);
        let filled = loop {
            match self.within("fill", self.engine.store.fill(&self.at, right, made.writes(&self.at))).await {
                Err(error) if again == 0 && !error.is_refused() => {}
                Err(error) if error.is_disconnected() && Timestamp::now().since(began) < patience => {
                    sleep(backoff::poll(again, false, clock::draw())).await;
                }
                filled => break filled,
            }
            again += 1;
        };
        if let Ok(filled) = filled {
            telemetry::filled(&self.engine.stats, &self.at, made.entry.meta().kind, filled);
            self.engine.forget_copies(&self.at);
            if let Some((variant, index)) = &made.index {
                self.engine.forget_copies(&self.at.to_variant(variant.clone()));
                if filled == Filled::Stored {
                    self.engine.known.remember(&self.at, index);
                }
            }
        }
        filled
    }

    pub(super) async fn extend(&self, lease: Lease) -> Result<Hold, StoreError> {
        let extended = self.within("extend", self.engine.store.extend(&self.at, lease, self.config.lease)).await;
        if let Ok(Hold::Lost) = extended {
            telemetry::lease_lost(&self.engine.stats, &self.at);
        }
        extended
    }

    pub(super) async fn abandon(&self, token: Token, tombstone: Option<Tombstone>) -> Result<Hold, StoreError> {
        self.again_if_cut("abandon", || self.engine.store.abandon(&self.at, token, tombstone)).await
    }

    pub(super) async fn drop_entry(&self) -> Result<(), StoreError> {
        self.again_if_cut("invalidate", || self.engine.store.invalidate(&self.at)).await
    }

    /// A connection that was idle may have been cut long ago, and tells only now. Safe, since all this may run twice.
    async fn again_if_cut<'a, T>(
        &self,
        operation: &'static str,
        answer: impl Fn() -> Answer<'a, T>,
    ) -> Result<T, StoreError> {
        match self.within(operation, answer()).await {
            Err(error) if error.is_disconnected() => self.within(operation, answer()).await,
            answer => answer,
        }
    }

    pub(super) async fn within<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let now = clock::now();
        let asked = Timestamp::of(now);
        let answer = match timeout_at(now + self.config.op_timeout, answer).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(StoreError::timed_out(elapsed)),
        };
        self.note(&answer, asked);
        if answer.is_ok() {
            self.engine.catch_up(asked);
        }
        if let Err(error) = &answer {
            telemetry::store_failed(&self.engine.stats, &self.at, operation, error);
        }
        answer
    }
}
