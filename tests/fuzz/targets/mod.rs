//! The fuzz targets and their properties. Each target takes any bytes, and panics if a property does not hold.
//!
//! The test binary `fuzz` runs them with the corpus and with generated inputs. cargo-fuzz runs them through
//! `fuzz/fuzz_targets`.

mod ages;
mod directives;
pub(crate) mod envelope;
mod head;
mod keys;
mod payload;
mod ranges;
mod vary;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Runs the target of that name.
pub(crate) fn run(target: &str, input: &[u8]) {
    match target {
        "ages" => ages::hold(input),
        "directives" => directives::hold(input),
        "envelope" => envelope::holds(input),
        "head" => head::holds(input),
        "keys" => keys::hold(input),
        "payload" => payload::holds(input),
        "ranges" => ranges::hold(input),
        "vary" => vary::holds(input),
        _ => panic!("there is no target `{target}`"),
    }
}

/// Splits the input into lines, without their ends.
fn lines(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    input.split(|byte| *byte == b'\n')
}

/// Adds a field, if the value is valid in a header.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(value) {
        headers.append(name, value);
    }
}
