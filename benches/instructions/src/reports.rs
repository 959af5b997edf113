//! The rows of hits that the library reports: with metrics in a real recorder, and a log at level `INFO`.

use crate::{paths::REDIS_HIT, recorder};
use std::{collections::BTreeMap, io};

/// The paths that are also counted with reports.
pub(crate) const REPORTED: [&str; 3] = ["embedded hit, fetch_arc", "embedded hit, HTTP layer", REDIS_HIT];

/// Returns the name of the row of a hit that is reported.
pub(crate) fn row(path: &str) -> String {
    format!("{path}{SUFFIX}")
}

/// Returns the path of this row. If it is reported, the reports begin.
pub(crate) fn begin(row: &str) -> &str {
    let Some(path) = row.strip_suffix(SUFFIX) else { return row };
    recorder::install();
    tracing_subscriber::fmt().with_writer(io::sink).init();
    path
}

/// Returns the rows that take more instructions than the reports may add to the row without them.
pub(crate) fn over_limit(counted: &BTreeMap<String, u64>) -> Vec<String> {
    let over = |path: &&str| {
        let (without, with) = (counted[*path], counted[&row(path)]);
        with > without + if *path == REDIS_HIT { without / 20 } else { LIMIT }
    };
    REPORTED.iter().filter(|path| over(path)).map(|path| format!("`{}` (over its limit)", row(path))).collect()
}

const SUFFIX: &str = ", reported";
/// Maximum number of instructions that the reports add to a hit in this process. To a hit over Redis they add at most 5 %.
const LIMIT: u64 = 400;
