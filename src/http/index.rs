//! Where the entries of a resource are whose responses vary.
//!
//! In the place of the resource there is an *index*: the fields that select. A response is at a variant made of the
//! index's id and of what its request says in these fields, so whoever drops the index makes all of them unreachable,
//! those that are still being fetched too. A response that varies by more than what has led to its place leaves another
//! index there.

use super::{rules::Rules, vary::Selecting};
use crate::{
    engine::{Hop, Index},
    entry::{Entry, Lifetimes, Live},
    key::KeyHash,
    store::Token,
};
use bytes::Bytes;
use http::HeaderMap;
use std::{sync::Arc, time::Duration};

/// The fields, and the variant of the one whose request that was.
pub(super) struct Selected {
    pub(super) fields: Arc<Selecting>,
    pub(super) variant: Bytes,
}

impl Selected {
    pub(super) fn new(index: Token, fields: Selecting, request: &HeaderMap, rules: &Rules) -> Self {
        Self { variant: variant(index, &fields, request, rules), fields: Arc::new(fields) }
    }

    /// As it is stored. It outlives the response that it comes with, since others will be found by it: each variant that
    /// is refreshed later is lost with it.
    pub(super) fn index(&self, response: &Lifetimes) -> Index {
        let fresh_for = response.retention().saturating_mul(4).max(SHORTEST);
        let lifetimes = Lifetimes { fresh_for, ..Lifetimes::default() };
        let payload = Bytes::from(self.fields.encode()).into();
        Index { variant: self.variant.clone(), lifetimes, codec: INDEX, payload }
    }
}

/// Where that request's response is, according to the index.
pub(super) fn follow(index: &Entry, request: &HeaderMap, rules: &Rules) -> Option<Hop> {
    let fields = index.payload().live(|bytes| Selecting::decode(bytes))?;
    Some(hop(index.meta().id, fields, request, rules))
}

pub(super) fn hop(index: Token, fields: Arc<Selecting>, request: &HeaderMap, rules: &Rules) -> Hop {
    Hop { variant: variant(index, &fields, request, rules), passed: fields }
}

/// What a response's fields add to those by which its place was found.
pub(super) fn beyond(fields: Selecting, trail: &[Live]) -> Selecting {
    trail.iter().filter_map(|passed| passed.downcast_ref()).fold(fields, Selecting::without)
}

/// Hashed: what a request says in `Cookie` is neither kept nor shown.
fn variant(index: Token, fields: &Selecting, request: &HeaderMap, rules: &Rules) -> Bytes {
    let mut text = Vec::with_capacity(USUAL_VALUES);
    text.extend_from_slice(index.as_bytes());
    fields.values(request, rules, &mut text);
    Bytes::copy_from_slice(KeyHash::of(&text).as_bytes())
}

/// Tells an index from a response.
pub(super) const INDEX: u64 = u64::from_be_bytes(*b"http-v1\0");
/// Room for this is made beforehand.
const USUAL_VALUES: usize = 256;
const SHORTEST: Duration = Duration::from_secs(600);
