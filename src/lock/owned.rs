//! Locks whose value is the token of their holder: compared and deleted, compared and extended, each in one script.
//!
//! The script of the posts and of redislock. Every recipe that stores a token shares it.

use super::recipe::{Claim, Doing, Held, held_if};
use crate::{
    lease::Hold,
    wire::{Script, millis, number},
};
use redis::Value;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// Held under that name, whose value begins with the token of the claim.
pub(crate) struct Owned {
    claim: Arc<Claim>,
    name: String,
}

impl Owned {
    pub(crate) fn new(claim: Arc<Claim>, name: String) -> Self {
        Self { claim, name }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Held for Owned {
    fn release(&self) -> Doing<Hold> {
        let (claim, mut call) = (self.claim.clone(), RELEASE_SCRIPT.call(&[&self.name]));
        call.arg(claim.token.as_bytes());
        claim.ask(call)
    }

    fn extend(&self, ttl: Duration) -> Doing<Hold> {
        extend(self.claim.clone(), &self.name, ttl)
    }

    fn check(&self) -> Doing<Hold> {
        check(self.claim.clone(), &self.name)
    }
}

pub(crate) fn extend(claim: Arc<Claim>, name: &str, ttl: Duration) -> Doing<Hold> {
    let mut call = EXTEND_SCRIPT.call(&[name]);
    call.arg(claim.token.as_bytes()).arg(millis(ttl));
    claim.ask(call)
}

/// Whether the value begins with the token.
pub(crate) fn check(claim: Arc<Claim>, name: &str) -> Doing<Hold> {
    let mut cmd = redis::cmd("GET");
    cmd.arg(name);
    Box::pin(async move {
        let value = claim.hub.send(&cmd).await?;
        let owned = matches!(&value, Value::BulkString(value) if value.starts_with(claim.token.as_bytes()));
        Ok(held_if(owned))
    })
}

/// Whether there is anything under that name.
pub(crate) fn look(claim: Arc<Claim>, name: &str) -> Doing<Hold> {
    let mut cmd = redis::cmd("EXISTS");
    cmd.arg(name);
    Box::pin(async move { Ok(held_if(number(&claim.hub.send(&cmd).await?)? != 0)) })
}

static RELEASE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE));
static EXTEND_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(EXTEND));
pub(crate) const RELEASE: &str = include_str!("owned/release.lua");
pub(crate) const EXTEND: &str = include_str!("owned/extend.lua");
