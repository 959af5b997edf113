//! Waits for conditions that announce nothing.

use std::time::Duration;
use tokio::time;

/// Returns as soon as the condition holds; panics with `what` if it does not within 30 s.
///
/// For the effects of other processes and detached tasks. If there is something to await, await it.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let holds = async {
        while !condition().await {
            time::sleep(TICK).await;
        }
    };
    time::timeout(BOUND, holds).await.unwrap_or_else(|_| panic!("not within {BOUND:?}: {what}"));
}

const TICK: Duration = Duration::from_millis(3);
const BOUND: Duration = Duration::from_secs(30);
