//! How we talk to Redis: connections that are made when they are needed and again when they break, scripts, messages,
//! and what an error means. What is said over them is the business of the [store](crate::store) and of the
//! [locks](crate::lock).

mod class;
mod connect;
mod link;
mod script;
mod server;
mod subscriber;
mod tls;
mod tracked;

pub(crate) use class::store_error;
pub use connect::Connection;
pub(crate) use connect::connect_alone;
pub(crate) use link::{Greet, Link};
pub(crate) use script::{Call, Script, digits, load, number, unexpected};
pub use server::{IntoServer, Server};
pub(crate) use subscriber::{CHANNEL, Hear, Subscriber};
pub(crate) use tracked::TrackedLink;

use std::time::Duration;

/// As Redis takes it: whole milliseconds, at least one.
pub(crate) fn millis(span: Duration) -> String {
    u64::try_from(span.as_millis()).unwrap_or(MAX_MILLIS).clamp(1, MAX_MILLIS).to_string()
}

/// About 285 years; an expiry that is larger is an error.
const MAX_MILLIS: u64 = 9_000_000_000_000;
