//! Conditions that come true without telling anybody.

use std::time::Duration;
use tokio::time;

/// Returns as soon as the condition holds; panics with `what` if it does not within 30 s.
///
/// For what other processes and detached tasks do. Where there is something to await, await it.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let holds = async {
        while !condition().await {
            time::sleep(TICK).await;
        }
    };
    time::timeout(BOUND, holds).await.unwrap_or_else(|_| panic!("within {BOUND:?} it did not happen that {what}"));
}

const TICK: Duration = Duration::from_millis(3);
const BOUND: Duration = Duration::from_secs(30);
