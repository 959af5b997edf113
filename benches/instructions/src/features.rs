//! The rows of hits that the library reports: with metrics in a real recorder, and a log at level `INFO`.

use crate::{
    Recorded,
    paths::{REDIS_HIT, REPORTED},
};
use std::collections::BTreeMap;

/// Whether this program counts these rows.
pub(crate) const ARE_COUNTED: bool = cfg!(feature = "reports");

/// Returns the name of the row of a hit that is reported.
pub(crate) fn row(path: &str) -> String {
    format!("{path}, reported")
}

/// Returns the rows that take more instructions than the reports may add to the recorded row without them.
pub(crate) fn over_limit(counted: &BTreeMap<String, u64>, recorded: Option<&BTreeMap<String, u64>>) -> Vec<String> {
    let over = |path: &str| {
        let without = recorded.and_then(|recorded| recorded.get(path));
        let limit = |without: u64| if path == REDIS_HIT { without / 20 } else { LIMIT };
        counted.get(&row(path)).zip(without).is_some_and(|(with, without)| *with > without + limit(*without))
    };
    REPORTED.iter().filter(|path| over(path)).map(|path| format!("`{}` (over its limit)", row(path))).collect()
}

/// Returns the counted rows, together with the recorded rows of the other program.
pub(crate) fn merged(counted: BTreeMap<String, u64>, recorded: Option<Recorded>) -> BTreeMap<String, u64> {
    let mut rows = recorded.map(|recorded| recorded.instructions).unwrap_or_default();
    rows.retain(|name, _| ARE_COUNTED != REPORTED.iter().any(|path| *name == row(path)));
    rows.extend(counted);
    rows
}

/// Maximum number of instructions that the reports add to a hit in this process. To a hit over Redis they add at most 5 %.
const LIMIT: u64 = 400;
