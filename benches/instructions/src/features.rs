//! The rows of a feature of the library.

use crate::{
    Recorded,
    paths::{REDIS_HIT, REPORTED},
};
use std::collections::BTreeMap;

/// A feature of the library that reports each hit.
#[derive(Clone, Copy)]
pub(crate) struct Feature {
    name: &'static str,
    /// Maximum number of instructions that it adds to a hit in this process. To a hit over Redis it adds at most 5 %.
    limit: u64,
}

impl Feature {
    pub(crate) const fn name(self) -> &'static str {
        self.name
    }
}

/// The feature that this program is built with.
pub(crate) const FEATURE: Option<Feature> = if cfg!(feature = "metrics") {
    Some(Feature { name: "metrics", limit: 250 })
} else if cfg!(feature = "tracing") {
    Some(Feature { name: "tracing", limit: 150 })
} else {
    None
};

/// Returns the name of a row with the feature.
pub(crate) fn row(path: &str, feature: Feature) -> String {
    format!("{path}, {}", feature.name)
}

/// Returns the rows that take more instructions than the feature may add to the recorded row without it.
pub(crate) fn over_limit(counted: &BTreeMap<String, u64>, recorded: Option<&BTreeMap<String, u64>>) -> Vec<String> {
    let Some(feature) = FEATURE else { return Vec::new() };
    let over = |path: &str| {
        let without = recorded.and_then(|recorded| recorded.get(path));
        let with = counted.get(&row(path, feature));
        let limit = |without: u64| if path == REDIS_HIT { without / 20 } else { feature.limit };
        with.zip(without).is_some_and(|(with, without)| *with > without + limit(*without))
    };
    REPORTED.iter().filter(|path| over(path)).map(|path| format!("`{}` (over its limit)", row(path, feature))).collect()
}

/// Returns the counted rows, together with the recorded rows of other features.
pub(crate) fn merged(counted: BTreeMap<String, u64>, recorded: Option<Recorded>) -> BTreeMap<String, u64> {
    let has_feature = |row: &str| {
        REPORTED
            .iter()
            .any(|path| row.strip_prefix(path).is_some_and(|rest| rest == ", metrics" || rest == ", tracing"))
    };
    let mut rows = recorded.map(|recorded| recorded.instructions).unwrap_or_default();
    rows.retain(|row, _| FEATURE.is_some() || has_feature(row));
    rows.extend(counted);
    rows
}
