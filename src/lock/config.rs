//! The settings of a lock handle.

use super::recipe::Recipe;
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) recipe: Arc<dyn Recipe>,
    pub(super) namespace: Arc<str>,
    pub(super) ttl: Duration,
    pub(super) store_timeout: Duration,
    pub(super) max_hold: Duration,
    pub(super) wait_policy: WaitPolicy,
    pub(super) delay: Option<Duration>,
    pub(super) fair: bool,
}

/// The policy for a lock that another client holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitPolicy {
    Retries(u32),
    Wait(Duration),
}
