//! Waits for conditions that announce nothing.

use std::time::Duration;
use tokio::time;

/// Returns as soon as the condition holds; panics with `what` if it does not within 30 s.
///
/// For the effects of other processes and detached tasks. If there is something to await, await it.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let began = time::Instant::now();
    let holds = async {
        while !condition().await {
            // The longer it takes, the fewer checks, because a check may cost servers a connection.
            time::sleep((began.elapsed() / 16).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
        }
    };
    time::timeout(BOUND, holds).await.unwrap_or_else(|_| panic!("not within {BOUND:?}: {what}"));
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(3);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
const BOUND: Duration = Duration::from_secs(30);
