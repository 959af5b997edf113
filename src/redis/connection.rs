//! Connections to Redis, scripts, messages, and the classes of errors. Connections are made on first use and again when
//! they break. The [store](crate::store) and the [locks](crate::lock) decide what is sent over them.

pub(crate) mod attempts;
pub(crate) mod clock;
pub(crate) mod endpoint;
pub(crate) mod error_class;
pub(crate) mod log;
pub(crate) mod reconnecting;
#[cfg(feature = "cluster")]
pub(crate) mod router;
pub(crate) mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
pub(crate) mod source;
pub(crate) mod subscriber;
pub(crate) mod supervise;
#[cfg(feature = "cluster")]
mod topology;
