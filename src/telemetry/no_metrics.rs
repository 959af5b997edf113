//! What the feature `metrics` would measure, without it: nothing.
#![allow(clippy::unused_self, reason = "the same methods as with the feature")]

use super::labels::{FetchFailure, FrontEnd, StoreOperation};
use crate::cache_status::CacheStatus;
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use std::{sync::Arc, time::Duration};

#[derive(Clone)]
pub(super) struct Metrics;

impl Metrics {
    pub(super) fn new(_: Arc<str>, _: Arc<str>) -> Self {
        Self
    }

    pub(super) fn answered(&self, _: FrontEnd, _: CacheStatus, _: bool) {}

    pub(super) fn fetching(&self) -> Timed {
        Timed
    }

    pub(super) fn waiting(&self) -> Timed {
        Timed
    }

    pub(super) fn store_answered(&self, _: StoreOperation, _: impl Fn() -> Duration) {}

    pub(super) fn store_failed(&self, _: StoreOperation) {}

    pub(super) fn lease_lost(&self) {}

    pub(super) fn fetch_failed(&self, _: FetchFailure) {}

    #[cfg(feature = "http")]
    pub(super) fn uncached(&self, _: Uncached) {}
}

pub(crate) struct Timed;

#[derive(Default)]
pub(crate) struct OpenBreakers {}

pub(crate) struct OpenBreaker;

impl OpenBreakers {
    pub(crate) fn open(&self) -> OpenBreaker {
        OpenBreaker
    }
}

#[derive(Default)]
pub(crate) struct NearCacheBytes {}

impl NearCacheBytes {
    pub(crate) fn set(&self, _: impl Fn() -> u64) {}
}
