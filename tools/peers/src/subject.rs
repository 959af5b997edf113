//! The interface of the caches that are compared.

use crate::{Result, origin::Origin};
use std::{future::Future, pin::Pin};

/// A cache in front of an [`Origin`].
pub(crate) trait Subject: Send + Sync {
    /// Returns the size of the key's value, from the cache or the origin, or the error.
    fn get(&self, key: &str) -> Boxed<Result<usize, String>>;

    /// Resolves when the background work of earlier requests has ended.
    fn settle(&self) -> Boxed<()> {
        Box::pin(async {})
    }
}

pub(crate) type Made = Result<Box<dyn Subject>>;
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The settings of a subject.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

/// A subject and how to create it.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// The configuration, described for readers of the tables.
    pub(crate) how: &'static str,
    pub(crate) kind: Kind,
    pub(crate) make: fn(Setting) -> Boxed<Made>,
}

/// Where a subject keeps its values, which decides the scenarios it takes part in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A plain GET, with which other subjects are compared.
    Floor,
    /// In Redis.
    Shared,
    /// In the process.
    Local,
}
