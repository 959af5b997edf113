//! The entries that one fetch writes.

use super::frontend::{FollowedRedirect, StoreAs};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        entry::{Audience, Entry, Kind, Lifetimes, Meta, Payload},
        port::{RedirectExtension, Write},
        token::Token,
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
    /// How long the redirects on the way to the entry are kept. `None`: the entry does not depend on them.
    index_lifetime: Option<Duration>,
    /// The redirect entries on the way to the cache key of the flight.
    extensions: Vec<RedirectExtension>,
}

impl FillSet {
    /// Creates the entries of a fetch that began, and got its response, at these times.
    pub(crate) fn new(
        id: Token,
        (began, response_time): (Timestamp, Timestamp),
        store_as: StoreAs,
        payload: Payload,
    ) -> Self {
        let index_lifetime = store_as.lifetimes.of_index(Timestamp::now().since(began));
        let keeps_redirects = store_as.keeps_redirects;
        let entry = |lifetimes, codec, payload: Payload| {
            let (kind, cost, audience) = (Kind::Value, response_time.since(began), Audience::Everyone);
            let meta = Meta { kind, id, response_time, cost, lifetimes, codec, audience };
            Entry::new(meta, payload)
        };
        let lifetimes = Lifetimes::fresh_for(index_lifetime);
        let index = store_as.index.map(|index| (index.variant, entry(lifetimes, index.codec, index.payload)));
        let entry = entry(store_as.lifetimes, store_as.codec, payload);
        let index_lifetime = keeps_redirects.then_some(index_lifetime);
        Self { entry, index, index_lifetime, extensions: Vec::new() }
    }

    /// Adds the redirects on the way to the cache key of the flight. They live at least as long as the entry, if it
    /// depends on them.
    pub(crate) fn under(mut self, redirects: &[FollowedRedirect]) -> Self {
        if let Some(lifetime) = self.index_lifetime {
            let extension =
                |via: &FollowedRedirect| RedirectExtension { key: via.key.clone(), id: via.id, retention: lifetime };
            self.extensions = redirects.iter().map(extension).collect();
        }
        self
    }

    /// Creates a marker that applies to this audience.
    pub(crate) fn marker(id: Token, kind: Kind, audience: Audience, span: Duration) -> Self {
        let (response_time, cost) = (Timestamp::now(), Duration::ZERO);
        let lifetimes = Lifetimes::fresh_for(span);
        let meta = Meta { kind, id, response_time, cost, lifetimes, codec: 0, audience };
        Entry::new(meta, Bytes::new()).into()
    }

    /// Returns the writes, the one of the cache key itself first.
    pub(crate) fn writes(&self, key: &CacheKey) -> Vec<Write> {
        let (entry, key, extensions) = (self.entry.clone(), key.clone(), self.extensions.clone());
        match &self.index {
            None => vec![Write { key, entry, extensions }],
            Some((variant, index)) => {
                let variant_key = key.to_variant(variant.clone());
                vec![Write { key, entry: index.clone(), extensions }, Write::new(variant_key, entry)]
            }
        }
    }
}

impl From<Entry> for FillSet {
    fn from(entry: Entry) -> Self {
        Self { entry, index: None, index_lifetime: None, extensions: Vec::new() }
    }
}
