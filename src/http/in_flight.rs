//! A response on its way to the waiters of this process.

use super::{body::shared::SharedBody, semantics::storing::AuthSharing, vary::SecondaryKey};
use crate::{clock::Timestamp, store::token::Token};
use http::{HeaderMap, HeaderName, StatusCode};
use std::{sync::Arc, time::Duration};

/// An in-flight response, as the waiters of this process see it.
pub(super) struct InFlightResponse {
    pub(super) id: Token,
    /// Set if the response varies by fields that its redirect path does not cover yet.
    pub(super) secondary_key: Option<SecondaryKey>,
    pub(super) auth_sharing: AuthSharing,
    pub(super) response_time: Timestamp,
    /// The age with which it arrived.
    pub(super) age: Duration,
    /// Freshness lifetime, counted from its arrival. `None` for a failure, which no lifetime bounds.
    pub(super) fresh_for: Option<Duration>,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The fields of one request, which are empty in `headers`.
    pub(super) per_request: Vec<HeaderName>,
    /// `None` if it cannot be shared: waiters get no body.
    pub(super) body: Option<Arc<SharedBody>>,
    /// Whether it reports a failure. A waiter that may not have the response then gets its status only.
    pub(super) is_failure: bool,
}
