//! Typed values over the engine: [`fetch`](crate::StampedeGuard::fetch) and its variants, and keyed services.

pub(crate) mod context;
mod fetch;
pub mod keyed;
mod policy;
