//! HTTP services behind the guard: a shared cache that coalesces.

mod ask;
mod body;
mod change;
mod confirm;
mod directives;
mod future;
#[cfg(feature = "_fuzz")]
pub(crate) mod fuzzing;
mod head;
mod index;
mod key;
mod made;
mod origin;
mod reply;
mod rules;
mod semantics;
mod service;
mod status;
mod vary;

pub use body::GuardBody;
pub use future::ResponseFuture;
pub use rules::Rules;
pub use service::{Deadline, GuardService};
