//! The entries that one fetch writes.

use super::frontend::{FollowedRedirect, StoreAs};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        entry::{Audience, Entry, Lifetimes, Meta, Payload},
        port::{RedirectExtension, Renewal, Write},
    },
};
use bytes::Bytes;
use std::time::Duration;

/// The entries that a fetch fills.
#[derive(Clone)]
pub(crate) struct FillSet {
    pub(crate) entry: Entry,
    /// If the entry belongs to a variant: the variant, and the redirect entry that leads to it. The redirect entry is
    /// stored under the cache key of the flight, and the entry under that of the variant.
    pub(crate) index: Option<(Bytes, Entry)>,
    /// The redirect entries on the way to the cache key of the flight, if the entry depends on them. They live at least
    /// as long as the entry.
    extensions: Vec<RedirectExtension>,
    /// The entry at the cache key of the flight that this one renews.
    renews: Option<Renewal>,
}

impl FillSet {
    /// Creates the entries of a fetch with this metadata, without codec and lifetimes, after these redirects.
    pub(crate) fn new(meta: Meta, store_as: StoreAs, payload: Payload, redirects: &[FollowedRedirect]) -> Self {
        let began = meta.response_time.before(meta.cost);
        let index_lifetime = || store_as.lifetimes.of_index(Timestamp::now().since(began));
        let redirects = if store_as.keeps_redirects { redirects } else { &[] };
        let extension = |via: &FollowedRedirect| RedirectExtension {
            key: via.key.clone(),
            id: via.id,
            retention: index_lifetime(),
        };
        let entry = |lifetimes, codec, payload: Payload| Entry::new(Meta { lifetimes, codec, ..meta }, payload);
        let renews = store_as.renews;
        let index = store_as
            .index
            .map(|index| (index.variant, entry(Lifetimes::fresh_for(index_lifetime()), index.codec, index.payload)));
        let entry = entry(store_as.lifetimes, store_as.codec, payload);
        Self { entry, index, extensions: redirects.iter().map(extension).collect(), renews }
    }

    /// Creates a marker with this metadata, that applies to this audience for this time.
    pub(crate) fn marker(meta: Meta, audience: Audience, span: Duration) -> Self {
        Entry::new(Meta { lifetimes: Lifetimes::fresh_for(span), audience, ..meta }, Bytes::new()).into()
    }

    /// Returns the writes, the one of the cache key itself first.
    pub(crate) fn writes(&self, key: &CacheKey) -> Vec<Write> {
        let (entry, key, extensions) = (self.entry.clone(), key.clone(), self.extensions.clone());
        match &self.index {
            None => vec![Write { key, entry, extensions, renews: self.renews }],
            Some((variant, index)) => {
                let variant_key = key.to_variant(variant.clone());
                vec![Write { key, entry: index.clone(), extensions, renews: None }, Write::new(variant_key, entry)]
            }
        }
    }
}

impl From<Entry> for FillSet {
    fn from(entry: Entry) -> Self {
        Self { entry, index: None, extensions: Vec::new(), renews: None }
    }
}
