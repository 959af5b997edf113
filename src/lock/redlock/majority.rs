//! One lock on several servers, and what most of them say of it.

use super::super::{
    owned::Owned,
    recipe::{Doing, Held, give_back},
};
use crate::{
    lease::Hold,
    store::{BoxFuture, StoreError},
};
use futures_util::future::join_all;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

pub(super) struct Majority {
    pub(super) on: Arc<[Owned]>,
    pub(super) patience: Duration,
}

/// What the servers said; `None` if nothing.
pub(super) struct Votes(Vec<Option<Hold>>);

impl Majority {
    pub(super) fn quorum(&self) -> usize {
        self.on.len() / 2 + 1
    }

    /// Of all at once, each for as long as it may take.
    pub(super) fn ask(&self, what: impl Fn(&Owned) -> Doing<Hold>) -> BoxFuture<'static, Votes> {
        let (asked, patience): (Vec<_>, _) = (self.on.iter().map(what).collect(), self.patience);
        Box::pin(async move {
            // Their time begins in here: a guard may be dropped where there is no timer.
            let votes = join_all(asked.into_iter().map(|vote| timeout(patience, vote))).await;
            Votes(votes.into_iter().map(|vote| vote.ok()?.ok()).collect())
        })
    }

    /// Held by a majority, or certainly not; else nobody can say.
    fn decide(&self, what: impl Fn(&Owned) -> Doing<Hold>) -> Doing<Hold> {
        let (votes, quorum, all) = (self.ask(what), self.quorum(), self.on.len());
        Box::pin(async move {
            let votes = votes.await;
            match (votes.of(Hold::Held), votes.of(Hold::Lost)) {
                (held, _) if held >= quorum => Ok(Hold::Held),
                (_, lost) if all - lost < quorum => Ok(Hold::Lost),
                _ => Err(votes.too_few()),
            }
        })
    }
}

impl Votes {
    pub(super) fn of(&self, vote: Hold) -> usize {
        self.0.iter().filter(|given| **given == Some(vote)).count()
    }

    pub(super) fn answered(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(super) fn too_few(&self) -> StoreError {
        StoreError::new(format!("{} of {} servers answered in time", self.answered(), self.0.len()))
    }
}

impl Held for Majority {
    fn release(&self) -> Doing<Hold> {
        self.decide(|on| give_back(on.release(), Some(on.release())))
    }

    fn extend(&self, ttl: Duration) -> Doing<Hold> {
        self.decide(|on| on.extend(ttl))
    }

    fn check(&self) -> Doing<Hold> {
        self.decide(|on| on.check())
    }

    /// A hundredth, for clocks that do not run at the same speed, and 2 ms.
    fn margin(&self, ttl: Duration) -> Duration {
        ttl / 100 + Duration::from_millis(2)
    }
}
