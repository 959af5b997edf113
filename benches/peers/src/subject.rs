//! What is compared.

use crate::{Result, origin::Origin};
use std::{future::Future, pin::Pin};

/// A cache in front of an [`Origin`].
pub(crate) trait Subject: Send + Sync {
    /// The size of the key's value, from the cache or the origin; what went wrong, if it does not get it.
    fn get(&self, key: &str) -> Boxed<Result<usize, String>>;

    /// Resolves when nothing goes on behind the answers that were given.
    fn settle(&self) -> Boxed<()> {
        Box::pin(async {})
    }
}

pub(crate) type Made = Result<Box<dyn Subject>>;
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a subject is made of.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

/// A subject that can be made.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// What was configured, for who reads the tables.
    pub(crate) how: &'static str,
    pub(crate) kind: Kind,
    pub(crate) make: fn(Setting) -> Boxed<Made>,
}

/// Where a subject keeps its values, and so what can be asked of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A plain GET, which others are compared with.
    Floor,
    /// In Redis.
    Shared,
    /// In the process.
    Local,
}
