//! Locks whose value is the token of their holder: compare-and-delete and compare-and-extend, each in one script.
//!
//! The compare-and-delete script is the one of the posts and of redislock. All recipes that store a token and use
//! scripts share it.

use super::{
    attempt::{Acquisition, HeldState, LockFuture, held_if},
    scripts,
};
use crate::{
    redis::connection::script::{millis, number},
    store::lease::LeaseStatus,
};
use redis::Value;
use std::{sync::Arc, time::Duration};

/// A held lock: the value of the key `name` begins with the token of the acquisition.
#[derive(Debug)]
pub struct TokenLock {
    acquisition: Arc<Acquisition>,
    name: String,
}

impl TokenLock {
    /// Creates a lock whose key is `name`.
    #[must_use]
    pub fn new(acquisition: Arc<Acquisition>, name: String) -> Self {
        Self { acquisition, name }
    }

    pub(crate) fn acquisition(&self) -> &Arc<Acquisition> {
        &self.acquisition
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl HeldState for TokenLock {
    fn release(&self) -> LockFuture<LeaseStatus> {
        let (acquisition, mut call) = (self.acquisition.clone(), scripts::TOKEN_RELEASE.call(&[&self.name]));
        call.arg(acquisition.token.as_bytes());
        acquisition.run_script(call)
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        extend(self.acquisition.clone(), &self.name, ttl)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        check_token(self.acquisition.clone(), &self.name)
    }
}

/// Sets the expiry to `ttl` from now if the value begins with the token of the acquisition.
#[must_use]
pub fn extend(acquisition: Arc<Acquisition>, name: &str, ttl: Duration) -> LockFuture<LeaseStatus> {
    let mut call = scripts::TOKEN_EXTEND.call(&[name]);
    call.arg(acquisition.token.as_bytes()).arg(millis(ttl));
    acquisition.run_script(call)
}

/// Checks whether the value begins with the token of the acquisition.
#[must_use]
pub fn check_token(acquisition: Arc<Acquisition>, name: &str) -> LockFuture<LeaseStatus> {
    let mut cmd = redis::cmd("GET");
    cmd.arg(name);
    Box::pin(async move {
        let value = acquisition.client.send(&cmd).await?;
        let is_holder = matches!(&value, Value::BulkString(value) if value.starts_with(acquisition.token.as_bytes()));
        Ok(held_if(is_holder))
    })
}

/// Checks whether the key exists.
#[must_use]
pub fn check_exists(acquisition: Arc<Acquisition>, name: &str) -> LockFuture<LeaseStatus> {
    let mut cmd = redis::cmd("EXISTS");
    cmd.arg(name);
    Box::pin(async move { Ok(held_if(number(&acquisition.client.send(&cmd).await?)? != 0)) })
}
