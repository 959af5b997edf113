//! The HTTP layer: a shared cache in the sense of RFC 9111 that coalesces requests.

mod annotation;
mod body;
mod directives;
mod forward;
#[cfg(feature = "_fuzz")]
pub(crate) mod fuzzing;
mod invalidation;
mod key;
mod origin_request;
mod origin_response;
mod reply;
mod request_policy;
mod semantics;
mod service;
mod stored_response;
mod vary;

pub use crate::{config::http::HttpOptions, uncached::Uncached};
pub use body::CacheBody;
pub use service::{Deadline, HttpCache, ResponseFuture};
