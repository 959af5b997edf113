//! What tests of fetchers say all the time.

use std::{error, fmt, time::Duration};

/// The origin's error in these tests.
#[derive(Debug, PartialEq)]
pub(crate) struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the origin is down")
    }
}

impl error::Error for Down {}

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A fetch that must not be needed.
pub(crate) async fn never<T>() -> Result<T, Down> {
    panic!("there was an answer without")
}
