//! The value that benches fetch.

use serde::{Deserialize, Serialize};

/// About 36 bytes with bincode.
#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    id: u64,
    name: String,
    score: f64,
    tags: Vec<u32>,
}

impl Row {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, name: "a name of usual length".to_owned(), score: 0.5, tags: vec![1, 2, 3] }
    }
}
