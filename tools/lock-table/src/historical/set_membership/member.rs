//! For the historical recipe `SetMembership`: a member of the set of held locks, alone or with a companion key.

use crate::token_lock::TokenLock;
use stampede_guard::lock::{
    LeaseStatus,
    recipe::{Acquisition, HeldState, LockFuture, Script, held_if, number, release_with_retry},
};
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

#[derive(Debug)]
pub(super) struct SetMember {
    pub(super) acquisition: Arc<Acquisition>,
    pub(super) set: String,
    pub(super) name: String,
    pub(super) companion: String,
}

impl SetMember {
    pub(super) fn of(acquisition: Arc<Acquisition>) -> Self {
        let set = format!("{{{}}}:named_locks", acquisition.key.namespace());
        let name = acquisition.member();
        Self { acquisition, companion: [&set, ":", &name].concat(), set, name }
    }

    pub(super) fn cmd(&self, name: &str) -> redis::Cmd {
        let mut cmd = redis::cmd(name);
        cmd.arg(&self.set).arg(&self.name);
        cmd
    }

    /// Runs the command and returns whether the set had the member.
    fn run(&self, name: &str) -> LockFuture<LeaseStatus> {
        let (acquisition, cmd) = (self.acquisition.clone(), self.cmd(name));
        Box::pin(async move { Ok(held_if(number(&acquisition.client.send(&cmd).await?)? == 1)) })
    }
}

impl HeldState for SetMember {
    fn release(&self) -> LockFuture<LeaseStatus> {
        self.run("SREM")
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        self.run("SISMEMBER")
    }
}

/// A member with a companion key, which is the lock.
#[derive(Debug)]
pub(super) struct SetMemberWithExpiry(pub(super) SetMember);

impl SetMemberWithExpiry {
    fn companion_lock(&self) -> TokenLock {
        TokenLock::new(self.0.acquisition.clone(), self.0.companion.clone())
    }
}

impl HeldState for SetMemberWithExpiry {
    fn release(&self) -> LockFuture<LeaseStatus> {
        let SetMember { acquisition, set, name, companion } = &self.0;
        let release = || {
            let mut call = RELEASE.call(&[companion, set]);
            call.arg(acquisition.token.as_bytes()).arg(name);
            acquisition.clone().run_script(call)
        };
        release_with_retry(release(), release())
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        self.companion_lock().extend(ttl)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        self.companion_lock().check()
    }
}

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));
