//! What reads have found.

use crate::store::{entry::Entry, error::StoreError};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};

/// The answer to a read.
pub(in crate::redis) enum ReadAnswer {
    /// Of a read that no other caller shares.
    Own(Option<Bytes>),
    /// Of a batch, with the index of the read.
    Shared(Arc<Vec<Stored>>, usize),
}

/// What a batch has found under one name.
pub(in crate::redis) struct Stored {
    bytes: Option<Bytes>,
    /// The decoded entry, once a reader has decoded it.
    entry: OnceLock<Entry>,
}

/// The answer to a batch, one result for each name.
pub(super) type Found = Result<Arc<Vec<Stored>>, StoreError>;

impl ReadAnswer {
    /// Returns what is stored.
    pub(in crate::redis) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Own(bytes) => bytes.as_ref(),
            Self::Shared(found, index) => found[*index].bytes.as_ref(),
        }
    }

    #[cfg(test)]
    pub(in crate::redis) fn shared(bytes: Option<Bytes>) -> Self {
        Self::Shared(Arc::new(vec![bytes.into()]), 0)
    }

    /// Returns the place for the decoded entry, if other callers may have the same answer.
    pub(in crate::redis) fn decoded(&self) -> Option<&OnceLock<Entry>> {
        match self {
            Self::Own(_) => None,
            Self::Shared(found, index) => Some(&found[*index].entry),
        }
    }
}

impl From<Option<Bytes>> for Stored {
    fn from(bytes: Option<Bytes>) -> Self {
        Self { bytes, entry: OnceLock::new() }
    }
}
