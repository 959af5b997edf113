//! The request handle.

use super::core::Engine;
use crate::{config::Config, key::CacheKey, telemetry::FrontEnd};
use std::sync::Arc;
use tokio::time::Instant;

/// One cache key under the settings of one clone, for one request.
#[derive(Clone)]
pub(crate) struct Resource {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
    pub(crate) key: CacheKey,
    /// The front end of the request, for metrics and spans. An invalidation has no use for it.
    pub(crate) front_end: FrontEnd,
    /// The deadline of the request.
    pub(crate) deadline: Option<Instant>,
    /// The end of its [soft timeout](crate::Policy::soft_timeout).
    pub(crate) soft_until: Option<Instant>,
}
