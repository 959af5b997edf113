//! What the feature `metrics` would measure, without it: nothing.
#![allow(clippy::unused_self, reason = "the same methods as with the feature")]

use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct NamedMetrics;
#[cfg(feature = "lock")]
pub(crate) type LockMeter = NamedMetrics;
pub(crate) struct Timed;
pub(crate) struct OpenBreaker;
pub(crate) struct PendingInvalidation;
#[derive(Default)]
pub(crate) struct NearCacheBytes {}

impl NamedMetrics {
    pub(crate) fn new(_: &[&Arc<str>]) -> Self {
        Self
    }

    pub(super) fn get(&self) {}
}

impl Timed {
    pub(super) fn new() -> Self {
        Self
    }
}

pub(crate) fn open_breaker() -> OpenBreaker {
    OpenBreaker
}

pub(crate) fn pending_invalidation() -> PendingInvalidation {
    PendingInvalidation
}

impl NearCacheBytes {
    pub(crate) fn set(&self, _: impl Fn() -> u64) {}
}
