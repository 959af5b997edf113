//! The error, the fetch and the durations that most tests use.

use std::{error, fmt, time::Duration};

/// The origin's error in these tests.
#[derive(Clone, Debug, PartialEq)]
pub struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the origin is down")
    }
}

impl error::Error for Down {}

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Panics: a fetch that must not run.
pub async fn never<T>() -> Result<T, Down> {
    panic!("this fetch must not run")
}
