//! What the feature `metrics` would measure, without it: nothing.
#![allow(clippy::unused_self, reason = "the same methods as with the feature")]

use std::sync::Arc;

pub(super) struct NamedMetrics;
pub(crate) struct Timed;
pub(crate) struct OpenBreaker;
pub(crate) struct PendingInvalidation;
#[derive(Default)]
pub(crate) struct NearCacheBytes {}

impl NamedMetrics {
    pub(super) fn new(_: Arc<str>, _: Arc<str>) -> Self {
        Self
    }

    pub(super) fn fetching(&self) -> Timed {
        Timed
    }

    pub(super) fn waiting(&self) -> Timed {
        Timed
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
