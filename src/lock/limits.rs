//! The limits of lock operations: their timeout, and valid names and ttls.

use super::error::{LockError, LockErrorKind};
use crate::store::error::StoreError;
use std::{future::Future, sync::Arc, time::Duration};

/// Limits a server operation to `limit`.
pub(super) async fn with_timeout<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, operation).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::timed_out(limit)),
    }
}

/// Returns the name for error messages, or an error if the name is invalid.
pub(super) fn check_name(name: &str) -> Result<Arc<str>, LockError> {
    let shown: Arc<str> = if name.len() <= MAX_NAME { name.into() } else { shorten(name).into() };
    let refused = |reason| Err(LockError::new(LockErrorKind::Input, &shown, reason));
    if name.is_empty() {
        return refused("the lock needs a name");
    }
    if name.len() > MAX_NAME {
        return refused("a lock name has 1,024 bytes at most");
    }
    if name.chars().any(char::is_control) {
        return refused("a lock name must not contain control characters");
    }
    Ok(shown)
}

/// Returns an error if the ttl is less than the unit of Redis.
pub(super) fn check_ttl(name: &Arc<str>, ttl: Duration) -> Result<(), LockError> {
    if ttl < Duration::from_millis(1) {
        let reason = format!("a ttl of {ttl:?} is too short: it has to be a millisecond at least");
        return Err(LockError::new(LockErrorKind::Input, name, reason));
    }
    Ok(())
}

/// Truncates a name that is too long for an error message.
fn shorten(name: &str) -> String {
    let shown: String = name.chars().take(32).collect();
    format!("{shown}.. ({} bytes)", name.len())
}

/// Maximum length of a lock name, in bytes.
const MAX_NAME: usize = 1024;
