//! Typed values over the engine: [`fetch`](crate::StampedeGuard::fetch), the views of one kind of value, and keyed
//! services.

// First, because rustdoc lists the methods of `StampedeGuard` in the order of the modules.
mod fetch;

pub(crate) mod answer;
pub(crate) mod cache;
mod call;
pub(crate) mod context;
mod encoding;
pub(crate) mod entry;
mod head;
pub mod keyed;
mod policy;
