//! What a setter changes on one clone of a guard.

use crate::{engine::Near, lease::Tombstone, policy::Policy};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) namespace: Arc<str>,
    pub(crate) schema: u32,
    #[cfg(feature = "_typed")]
    pub(crate) codec: crate::codec::Codec,
    pub(crate) policy: Policy,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) max_fetch: Duration,
    pub(crate) max_payload: usize,
    pub(crate) op_timeout: Duration,
    /// After the first failure; zero for none.
    pub(crate) tombstone: Duration,
    pub(crate) pass_for: Duration,
    pub(crate) outage: Outage,
    pub(crate) after_wait: AfterWait,
    pub(crate) max_waiters: usize,
    /// Places for computations while the store is down.
    pub(crate) bulkhead: Arc<Semaphore>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) near: Option<Arc<Near>>,
    #[cfg(feature = "http")]
    pub(crate) rules: crate::http::Rules,
}

/// What is done while the store does not answer. See [`StampedeGuard::outage`](crate::StampedeGuard::outage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// Each process computes for itself, each key once at a time, so many keys at once as the
    /// [`bulkhead`](crate::StampedeGuard::bulkhead) has places.
    #[default]
    FailOpen,
    /// What the store would have to be asked for is refused: with [`ErrorKind::Store`](crate::ErrorKind::Store), or by
    /// a response 503. For origins that would not survive being asked by every process.
    FailClosed,
}

/// What is done for those who have waited for their wait budget. See
/// [`StampedeGuard::after_wait`](crate::StampedeGuard::after_wait).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterWait {
    /// Their process computes for them, once.
    #[default]
    Fetch,
    /// They are refused: with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded), or by a response 503.
    Reject,
}

impl Config {
    /// How a leader that failed leaves its lease.
    pub(crate) fn tombstone(&self, code: u16) -> Option<Tombstone> {
        let first = self.tombstone;
        (!first.is_zero()).then(|| Tombstone { first, most: first.saturating_mul(10), code })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: "sg".into(),
            schema: 0,
            #[cfg(feature = "_typed")]
            codec: crate::codec::Codec::default(),
            policy: Policy::default(),
            lease: Duration::from_secs(3),
            wait: Duration::from_secs(10),
            max_fetch: Duration::from_secs(60),
            max_payload: 1 << 20,
            op_timeout: Duration::from_millis(250),
            tombstone: Duration::from_secs(1),
            pass_for: Duration::from_secs(60),
            outage: Outage::default(),
            after_wait: AfterWait::default(),
            max_waiters: 10_000,
            bulkhead: Arc::new(Semaphore::new(64)),
            deadline: None,
            near: None,
            #[cfg(feature = "http")]
            rules: crate::http::Rules::default(),
        }
    }
}
