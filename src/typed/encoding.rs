//! How the values of one type are encoded.

use crate::{
    codec::value_codec::ValueCodec,
    config::Config,
    layout::layout,
    store::entry::{Entry, Kind},
};
use std::{borrow::Borrow, sync::Arc};

/// A codec, or a handle of it, and the layout of the entries that it encodes: another type or codec is a miss.
#[derive(Clone, Copy)]
pub(super) struct Encoding<C> {
    pub(super) codec: C,
    pub(super) layout: u64,
}

/// The codec of a cache.
pub(super) type CodecHandle<V> = Arc<dyn ValueCodec<V>>;

impl<C> Encoding<C> {
    pub(super) fn new<V: 'static>(codec: C, config: &Config) -> Self
    where
        C: Borrow<dyn ValueCodec<V>>,
    {
        Self { layout: layout(codec.borrow().id(), config.schema_version), codec }
    }

    pub(super) fn is_own_entry(&self, entry: &Entry) -> bool {
        entry.meta().kind == Kind::Value && entry.meta().codec == self.layout
    }
}

impl<V: 'static> Encoding<CodecHandle<V>> {
    pub(super) fn of_cache(codec: impl ValueCodec<V>, config: &Config) -> Self {
        Self::new(codec.of_type(config.fingerprint).unwrap_or_else(|| Arc::new(codec)), config)
    }
}
