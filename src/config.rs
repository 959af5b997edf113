//! What a setter changes on one clone of a guard.

use crate::{lease::Tombstone, policy::Policy};
use std::{sync::Arc, time::Duration};

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
        }
    }
}
