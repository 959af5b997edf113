//! What a walk has found out, over all its passes.

use serde::de::{Error as _, value::Error};
use std::collections::{BTreeMap, BTreeSet};

/// What is known after the passes so far.
#[derive(Default)]
pub(crate) struct Walk {
    pub(super) is_human_readable: bool,
    /// Whether the type reads a value of any kind, which only a self-describing format has.
    pub(crate) reads_any: bool,
    pub(super) facts: BTreeSet<String>,
    /// Grows with everything that makes another pass find more.
    pub(super) progress: usize,
    pub(super) requests: usize,
    pub(super) requests_of_pass: usize,
    /// Number of values around the visited value.
    pub(super) depth: usize,
    /// The containers that are being visited, the outermost first.
    pub(super) open: Vec<String>,
    pub(super) containers: BTreeMap<String, Container>,
    /// The Rust types of each name of a container, in the order of their first visits.
    pub(super) types: BTreeMap<String, Vec<&'static str>>,
    /// The request whose sample was accepted by the visit that goes on, and the number of its samples.
    pub(super) accepted: Option<(String, usize)>,
    /// The number of samples that a request has refused, by its place and kind.
    pub(super) refused: BTreeMap<String, usize>,
}

/// A struct and its fields, or an enum and its variants.
#[derive(Clone, Copy, Default)]
pub(super) struct Container {
    /// The field or variant that is explored next.
    pub(super) next: usize,
    /// A variant that can be read.
    pub(super) readable: Option<usize>,
}

impl Walk {
    pub(super) fn note(&mut self, fact: String) {
        self.progress += usize::from(self.facts.insert(fact));
    }

    /// Records a request. An error ends the pass: the type is too large or too deep.
    pub(super) fn ask(&mut self, place: &str, kind: &str) -> Result<(), Error> {
        self.requests += 1;
        self.requests_of_pass += 1;
        if self.is_exhausted() || self.depth > MAX_DEPTH {
            return Err(refusal());
        }
        self.note(format!("{place} {kind}"));
        Ok(())
    }

    fn is_exhausted(&self) -> bool {
        self.requests_of_pass > MAX_REQUESTS_OF_PASS
    }

    /// Returns the name of a container of a Rust type, which tells types of one name apart.
    pub(super) fn name_of(&mut self, name: String, rust_type: &'static str) -> String {
        let types = self.types.entry(name.clone()).or_default();
        let index = types.iter().position(|known| *known == rust_type).unwrap_or_else(|| {
            types.push(rust_type);
            types.len() - 1
        });
        if index == 0 { name } else { format!("{name}#{}", index + 1) }
    }

    /// Reports whether a container is visited within itself, or the type is deep. Then optional values are left out.
    pub(super) fn is_recursive(&self) -> bool {
        self.depth > MAX_DEPTH / 2 || self.is_nested()
    }

    fn is_nested(&self) -> bool {
        self.open.iter().enumerate().any(|(i, name)| self.open[..i].contains(name))
    }

    pub(super) fn container(&self, name: &str) -> Container {
        self.containers.get(name).copied().unwrap_or_default()
    }

    /// Visits a field or variant of a container. If the visit finds nothing new, the next pass goes on to the next
    /// field or variant. It does not if another visit could still find more. That is so if earlier visits have used up
    /// the requests of this pass, and within a container that contains itself, where optional values are left out.
    pub(super) fn explore<R>(&mut self, name: &str, index: usize, visit: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.progress;
        // Only the enclosing containers have made requests, so the visit has the rest of a whole pass.
        let is_fresh = self.requests_of_pass <= self.depth;
        let result = visit(self);
        let has_settled = self.progress == before && (is_fresh || !self.is_exhausted());
        if has_settled && !self.is_nested() && self.container(name).next == index {
            self.containers.entry(name.to_owned()).or_default().next += 1;
            self.progress += 1;
        }
        result
    }

    /// Records that a variant can be read. The variants before it may contain the enum itself, so they get another pass.
    pub(super) fn readable(&mut self, name: &str, variant: usize) {
        let container = self.containers.entry(name.to_owned()).or_default();
        if container.readable.replace(variant).is_none() {
            container.next = 0;
            self.progress += 1;
        }
    }

    /// Records that a request has refused a sample.
    pub(super) fn refuse(&mut self, request: &str, samples: usize) {
        let refused = self.refused.entry(request.to_owned()).or_default();
        if *refused + 1 < samples {
            *refused += 1;
            self.progress += 1;
        } else {
            self.note(format!("{request} opaque"));
        }
    }
}

/// Returns the error that ends a visit without a value.
pub(super) fn refusal() -> Error {
    Error::custom("a sample was refused")
}

/// Number of requests after which no further pass begins. A type that is larger has the fingerprint of what was found
/// until then.
pub(super) const MAX_REQUESTS: usize = 20_000;
/// Maximum number of requests that a pass answers. The next pass begins after the fields that have used up a pass, so that
/// a large field does not hide the fields after it.
const MAX_REQUESTS_OF_PASS: usize = 2_000;
/// Maximum depth of values, so that the walk fits on every stack.
const MAX_DEPTH: usize = 48;
