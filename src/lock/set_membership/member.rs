//! A member of the set of locks, alone or with a companion.

use super::super::{
    owned,
    recipe::{Claim, Doing, Held, held_if},
};
use crate::{
    lease::Hold,
    wire::{Script, number},
};
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

pub(super) struct Member {
    pub(super) claim: Arc<Claim>,
    pub(super) set: String,
    pub(super) name: String,
    pub(super) companion: String,
}

impl Member {
    pub(super) fn of(claim: Arc<Claim>) -> Self {
        let set = format!("{{{}}}:named_locks", claim.at.namespace());
        let name = claim.member();
        Self { claim, companion: [&set, ":", &name].concat(), set, name }
    }

    pub(super) fn cmd(&self, name: &str) -> redis::Cmd {
        let mut cmd = redis::cmd(name);
        cmd.arg(&self.set).arg(&self.name);
        cmd
    }

    /// Whether the set had the member when it was told that.
    fn tell(&self, name: &str) -> Doing<Hold> {
        let (claim, cmd) = (self.claim.clone(), self.cmd(name));
        Box::pin(async move { Ok(held_if(number(&claim.hub.send(&cmd).await?)? == 1)) })
    }
}

impl Held for Member {
    fn release(&self) -> Doing<Hold> {
        self.tell("SREM")
    }

    fn check(&self) -> Doing<Hold> {
        self.tell("SISMEMBER")
    }
}

/// A member with a companion.
pub(super) struct Accompanied(pub(super) Member);

impl Held for Accompanied {
    fn release(&self) -> Doing<Hold> {
        let Member { claim, set, name, companion } = &self.0;
        let mut call = RELEASE.call(&[companion, set]);
        call.arg(claim.token.as_bytes()).arg(name);
        claim.clone().ask(call)
    }

    fn extend(&self, ttl: Duration) -> Doing<Hold> {
        owned::extend(self.0.claim.clone(), &self.0.companion, ttl)
    }

    fn check(&self) -> Doing<Hold> {
        owned::check(self.0.claim.clone(), &self.0.companion)
    }
}

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));
