//! The primitives of all code that waits within a process.

pub(crate) mod alongside;
pub(crate) mod deferred;
#[cfg(feature = "lock")]
pub(crate) mod detach;
pub(crate) mod mutex;
pub(crate) mod newest_first;
pub(crate) mod pulse;
#[cfg(test)]
pub(crate) mod schedules;
pub(crate) mod shared;
pub(crate) mod stripes;
pub(crate) mod watch;
