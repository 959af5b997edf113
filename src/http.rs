//! The HTTP layer: a shared cache in the sense of RFC 9111 that coalesces requests.

mod body;
mod cache_status_field;
mod directives;
#[cfg(feature = "axum")]
mod error_response;
mod forward;
mod future;
#[cfg(feature = "_fuzz")]
pub(crate) mod fuzzing;
mod head_freshening;
mod in_flight;
mod invalidate_url;
mod key;
mod origin_request;
mod origin_response;
mod recorder;
mod reply;
mod request_body;
mod request_policy;
mod semantics;
mod service;
mod stored_response;
mod unsafe_method;
mod vary;

pub use crate::{config::http::HttpOptions, uncached::Uncached};
pub use body::CacheBody;
pub use future::ResponseFuture;
pub use service::{Deadline, HttpCache};
