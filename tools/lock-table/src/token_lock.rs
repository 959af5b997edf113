//! The held lock of recipes that store the token of an acquisition.

use redis::Value;
use stampede_guard::{
    lock::{
        LeaseStatus,
        recipe::{Acquisition, HeldState, LockFuture, Script, held_if, millis, release_with_retry, unexpected},
    },
    store::StoreError,
};
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// A held lock: the value of the key `name` begins with the token of the acquisition. All recipes that store a token and
/// use scripts share it: compare-and-delete, as in the posts and redislock, and compare-and-extend.
#[derive(Clone, Debug)]
pub(crate) struct TokenLock {
    /// The acquisition that holds it.
    pub(crate) acquisition: Arc<Acquisition>,
    /// The key.
    pub(crate) name: String,
}

impl TokenLock {
    /// Creates a lock whose key is `name`.
    pub(crate) fn new(acquisition: Arc<Acquisition>, name: String) -> Self {
        Self { acquisition, name }
    }

    /// Acquires the lock with `SET NX PX`: [`LeaseStatus::Lost`] if the key exists.
    ///
    /// # Errors
    ///
    /// The server did not reply, or refused the command.
    pub(crate) async fn set(self) -> Result<LeaseStatus, StoreError> {
        let Acquisition { client, token, ttl, .. } = &*self.acquisition;
        let mut cmd = redis::cmd("SET");
        cmd.arg(&self.name).arg(token.as_bytes()).arg("NX").arg("PX").arg(millis(*ttl));
        let (reply, is_repeated) = match client.send(&cmd).await {
            Err(error) if error.is_disconnected() => (client.send(&cmd).await?, true),
            reply => (reply?, false),
        };
        match reply {
            Value::Okay => Ok(LeaseStatus::Held),
            // The first command, whose reply was lost, may have set the key.
            Value::Nil if is_repeated => self.check().await,
            Value::Nil => Ok(LeaseStatus::Lost),
            other => Err(unexpected(&other)),
        }
    }
}

impl HeldState for TokenLock {
    fn release(&self) -> LockFuture<LeaseStatus> {
        let release = || {
            let mut call = RELEASE.call(&[&self.name]);
            call.arg(self.acquisition.token.as_bytes());
            self.acquisition.clone().run_script(call)
        };
        release_with_retry(release(), release())
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        let mut call = EXTEND.call(&[&self.name]);
        call.arg(self.acquisition.token.as_bytes()).arg(millis(ttl));
        self.acquisition.clone().run_script(call)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        let (acquisition, mut cmd) = (self.acquisition.clone(), redis::cmd("GET"));
        cmd.arg(&self.name);
        Box::pin(async move {
            let (value, token) = (acquisition.client.send(&cmd).await?, acquisition.token.as_bytes());
            Ok(held_if(matches!(&value, Value::BulkString(value) if value.starts_with(token))))
        })
    }
}

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("token_lock/release.lua")));
static EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("token_lock/extend.lua")));
