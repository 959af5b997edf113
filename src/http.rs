//! HTTP services behind the guard: a shared cache that coalesces.

mod body;
mod directives;
mod future;
#[cfg(feature = "_fuzz")]
pub(crate) mod fuzzing;
mod head;
mod key;
mod rules;
mod semantics;
mod service;
mod status;
mod vary;

pub use body::GuardBody;
pub use future::ResponseFuture;
pub use rules::Rules;
pub use service::{Deadline, GuardService};
