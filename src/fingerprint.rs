//! The structural fingerprint of a type: what decides how its bytes are read.
//!
//! A [`Walker`](walker::Walker) answers each request of `T::deserialize` with a sample, and writes down what was asked:
//! names of containers, their fields and variants in order, and the kinds of leaves. It knows no Rust names, so that a
//! fingerprint is the same for every compiler and platform.
//!
//! One pass does not see everything: it meets one variant of each enum, and ends at the first value that refuses its
//! sample, because serde has no way to go on after an error. So the walk is repeated. Each pass goes on with the next
//! variant, with another sample, or with the fields after a value that refuses all samples, until a pass finds nothing
//! new. Facts are a set, so a container that was met before adds nothing, and recursive types come to an end.
//! Types with `flatten`, `tag` and `untagged` do not say what they read. They are encoded as JSON, with the names of
//! their fields.
//!
//! serde's names of containers lack generic arguments. So a walk compares the names of Rust types too, but it writes down
//! only their number: `Page{items}#2` is the second type of the name `Page{items}` that the walk has met.

mod walk;
mod walker;

use crate::layout::fnv1a;
use serde::de::DeserializeOwned;
use walk::{MAX_REQUESTS, Walk};
use walker::visit;

/// Walks through a type in a format that people can read, or in a binary one: some types, such as an IP address, have
/// two forms.
pub(crate) fn walk<T: DeserializeOwned>(is_human_readable: bool) -> Walk {
    let mut walk = Walk { is_human_readable, ..Walk::default() };
    loop {
        let before = walk.progress;
        walk.requests_of_pass = 0;
        let _ = visit(&mut walk, String::new(), |walker| T::deserialize(walker).map(drop));
        if walk.progress == before || walk.requests >= MAX_REQUESTS {
            return walk;
        }
    }
}

impl Walk {
    /// Returns the fingerprint: a hash of what was found out.
    pub(crate) fn fingerprint(&self) -> u64 {
        fnv1a(&self.facts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Reports whether the type itself is optional: its first request was for an option.
    pub(crate) fn is_optional(&self) -> bool {
        self.facts.contains(" option")
    }
}

#[cfg(test)]
mod tests;
