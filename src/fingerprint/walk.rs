//! What a walk has found out, over all its passes.

use serde::de;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// What is known after the passes so far.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) is_human_readable: bool,
    pub(super) facts: BTreeSet<String>,
    /// Grows with everything that makes another pass find more.
    pub(super) progress: usize,
    pub(super) requests: usize,
    pub(super) requests_of_pass: usize,
    /// Number of values around the one that is being visited.
    pub(super) depth: usize,
    /// The containers that are being visited, the outermost first.
    pub(super) open: Vec<String>,
    pub(super) containers: BTreeMap<String, Container>,
    /// The Rust types of each name of a container, in the order of their first visits.
    pub(super) types: BTreeMap<String, Vec<&'static str>>,
    /// The request whose sample was accepted by the visit that goes on, and the number of its samples.
    pub(super) accepted: Option<(String, usize)>,
    /// The places whose values have panicked. Such a value is not visited again.
    pub(super) panicked: BTreeSet<String>,
    /// The number of samples that a request has refused, by its place and kind.
    pub(super) refused: BTreeMap<String, usize>,
    /// The names of the values that a map without known names must have, by its place.
    pub(super) required: BTreeMap<String, Vec<&'static str>>,
}

/// A struct and its fields, or an enum and its variants.
#[derive(Clone, Copy, Default)]
pub(super) struct Container {
    /// The field or variant that is explored next.
    pub(super) next: usize,
    /// A variant that can be read.
    pub(super) readable: Option<usize>,
}

/// The state of a walk when a field or variant is entered.
#[derive(Clone, Copy)]
pub(super) struct Start {
    progress: usize,
    /// The visit has the requests of a whole pass, but for the containers around it.
    is_fresh: bool,
}

/// The reason why a value is not made of its sample.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An identifier is none of these names.
    NoneOf(&'static [&'static str]),
    Other,
}

impl Walk {
    pub(super) fn note(&mut self, fact: String) {
        self.progress += usize::from(self.facts.insert(fact));
    }

    /// Records a request. An error ends the pass: the type is too large or too deep.
    pub(super) fn ask(&mut self, place: &str, kind: &str) -> Result<(), Refusal> {
        self.requests += 1;
        self.requests_of_pass += 1;
        if self.is_exhausted() || self.depth > MAX_DEPTH {
            return Err(Refusal::Other);
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

    pub(super) const fn start(&self) -> Start {
        Start { progress: self.progress, is_fresh: self.requests_of_pass <= self.depth }
    }

    /// Reports whether a visit has found nothing, and would find nothing in another pass.
    pub(super) fn has_settled(&self, start: Start) -> bool {
        self.progress == start.progress && (start.is_fresh || !self.is_exhausted())
    }

    /// Enters a container. Returns the number of visits of it that have not ended.
    pub(super) fn enter(&mut self, name: &str) -> usize {
        let visits = self.open.iter().filter(|open| *open == name).count();
        self.open.push(name.to_owned());
        visits
    }

    /// Reports whether a container is visited within itself, or the type is deep. Then optional values are left out.
    pub(super) fn is_recursive(&self) -> bool {
        self.depth > MAX_DEPTH / 2 || self.is_nested()
    }

    fn is_nested(&self) -> bool {
        self.open.iter().enumerate().any(|(i, name)| self.open[..i].contains(name))
    }

    /// Records that a field or variant of the container needs no further pass. Within a recursive container that is not
    /// known, because its optional values are left out.
    pub(super) fn explored(&mut self, name: &str, index: usize) {
        if self.is_nested() {
            return;
        }
        let container = self.containers.entry(name.to_owned()).or_default();
        if container.next == index {
            container.next += 1;
            self.progress += 1;
        }
    }

    /// Records that a variant can be read. The variants before it may contain the enum itself, so they get another pass.
    pub(super) fn readable(&mut self, name: &str, variant: usize) {
        let container = self.containers.entry(name.to_owned()).or_default();
        if container.readable.replace(variant).is_none() {
            container.next = 0;
            self.progress += 1;
        }
    }

    pub(super) fn container(&self, name: &str) -> Container {
        self.containers.get(name).copied().unwrap_or_default()
    }

    /// Returns the number of samples that this request has refused.
    pub(super) fn refused(&self, request: &str) -> usize {
        self.refused.get(request).copied().unwrap_or(0)
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

thread_local! {
    /// The names that the value which is being visited lacks. An error alone would not do: an untagged enum drops the errors of its
    /// variants.
    pub(super) static MISSING: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Returns also the names that the value turned out to lack.
pub(super) fn missing<R>(visit: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    let outer = MISSING.take();
    let result = visit();
    (result, MISSING.replace(outer))
}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }

    fn missing_field(field: &'static str) -> Self {
        MISSING.with_borrow_mut(|missing| missing.push(field));
        Self::Other
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::NoneOf(expected)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sample was refused")
    }
}

impl std::error::Error for Refusal {}

/// Texts that types which validate accept: numbers, times, addresses, identifiers.
pub(super) const TEXTS: [&str; 8] = [
    "1",
    "a",
    "http://a/",
    "1970-01-01T00:00:00Z",
    "1970-01-01",
    "00:00:00",
    "127.0.0.1",
    "00000000-0000-4000-8000-000000000001",
];
/// Bytes of such types: any bytes, and an identifier of 16 bytes.
pub(super) const BYTES: [&[u8]; 2] = [b"1", &[1; 16]];
/// Number of requests after which no further pass begins. A type that is larger has the fingerprint of what was found
/// until then.
pub(super) const MAX_REQUESTS: usize = 20_000;
/// Maximum number of requests that a pass answers. The next pass begins after the fields that have used up a pass, so that
/// a large field does not hide the fields after it.
pub(super) const MAX_REQUESTS_OF_PASS: usize = 2_000;
/// Maximum depth of values, so that the walk fits on every stack.
pub(super) const MAX_DEPTH: usize = 48;
