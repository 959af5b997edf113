//! The HTTP layer: a shared cache in the sense of RFC 9111 that coalesces requests.

mod body;
mod directives;
mod forward;
#[cfg(feature = "_fuzz")]
pub(crate) mod fuzzing;
mod key;
mod origin;
mod reply;
mod request_policy;
mod semantics;
mod service;
mod stored_response;
mod vary;

pub use crate::{config::http::HttpOptions, uncached::Uncached};
pub use body::CacheBody;
pub use service::{Deadline, HttpCache, ResponseFuture};
