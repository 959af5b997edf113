//! Typed values over the engine: [`fetch`](crate::StampedeGuard::fetch), the views of one kind of value, and keyed
//! services.

pub(crate) mod answer;
pub(crate) mod cache;
mod call;
pub(crate) mod context;
mod encoding;
pub(crate) mod entry;
mod fetch;
mod head;
pub mod keyed;
mod policy;
