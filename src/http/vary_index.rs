//! Vary indexes: where the variants of a resource are stored.
//!
//! The entry of the resource itself is an *index*: the selecting header fields. A response is stored under a variant,
//! the hash of the index's id and of the request's values of these fields. Dropping the index therefore makes all
//! variants unreachable, including responses that are still being fetched. A response that varies by further fields
//! leaves another index under its variant.

use super::vary::SelectingFields;
use crate::{
    config::http::HttpOptions,
    engine::frontend::{Redirect, RedirectEntry},
    key::KeyHash,
    store::{
        entry::{Entry, Lifetimes, SharedValue},
        token::Token,
    },
};
use bytes::Bytes;
use http::HeaderMap;
use std::{sync::Arc, time::Duration};

/// The secondary key of a response (RFC 9111 §4.1): its selecting fields, and the variant that they give for its
/// request.
pub(super) struct SecondaryKey {
    pub(super) fields: Arc<SelectingFields>,
    pub(super) variant: Bytes,
}

impl SecondaryKey {
    pub(super) fn new(index: Token, fields: SelectingFields, request: &HeaderMap, options: &HttpOptions) -> Self {
        Self { variant: variant(index, &fields, request, options), fields: Arc::new(fields) }
    }

    /// Returns the index entry to store. It lives at least four times as long as its response. All variants are found
    /// through it, so variants that are refreshed later are lost with it.
    pub(super) fn index(&self, response: &Lifetimes) -> RedirectEntry {
        let fresh_for = response.retention().saturating_mul(4).max(MIN_INDEX_LIFETIME);
        let lifetimes = Lifetimes::fresh_for(fresh_for);
        let payload = Bytes::from(self.fields.encode()).into();
        RedirectEntry { variant: self.variant.clone(), lifetimes, codec: INDEX, payload }
    }
}

/// Returns the redirect from the index to the variant of the request. `None` if the index does not decode.
pub(super) fn redirect(index: &Entry, request: &HeaderMap, options: &HttpOptions) -> Option<Redirect> {
    let fields = index.payload().decoded(|bytes| SelectingFields::decode(bytes))?;
    Some(redirect_for(index.meta().id, fields, request, options))
}

pub(super) fn redirect_for(
    index: Token,
    fields: Arc<SelectingFields>,
    request: &HeaderMap,
    options: &HttpOptions,
) -> Redirect {
    Redirect { variant: variant(index, &fields, request, options), via: fields }
}

/// Returns the selecting fields of a response that no index on the redirect path has yet.
pub(super) fn remaining(fields: SelectingFields, redirects: &[SharedValue]) -> SelectingFields {
    redirects.iter().filter_map(|redirect| redirect.downcast_ref()).fold(fields, SelectingFields::without)
}

/// Hashes the selecting values, so that the contents of a `Cookie` are neither stored nor shown.
fn variant(index: Token, fields: &SelectingFields, request: &HeaderMap, options: &HttpOptions) -> Bytes {
    let mut text = Vec::with_capacity(USUAL_VALUES_LENGTH);
    text.extend_from_slice(index.as_bytes());
    fields.values(request, options, &mut text);
    Bytes::copy_from_slice(KeyHash::of(&text).as_bytes())
}

/// Codec id of an index, as opposed to a response.
pub(super) const INDEX: u64 = u64::from_be_bytes(*b"http-v1\0");
/// Bytes reserved for the selecting values.
const USUAL_VALUES_LENGTH: usize = 256;
/// Minimum freshness lifetime of an index.
const MIN_INDEX_LIFETIME: Duration = Duration::from_secs(600);
