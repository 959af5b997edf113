//! The lines that operators read.

use crate::{Down, SECOND, kit::Events};
use stampede_guard::testing::{FakeRedis, Fault, Operation};
use tokio::time::sleep;

/// One line at the beginning and one at the end, whether a retry succeeds or not. Seen to fail with a line for each
/// attempt.
#[tokio::test(start_paused = true)]
async fn failed_invalidation_is_logged_at_its_beginning_and_end() {
    for (fails, end) in [(3, "acknowledged after a retry"), (usize::MAX, "given up")] {
        let (events, node) = (Events::listen(), FakeRedis::new().node());
        let guard = node.guard();
        guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
        node.times(fails, Operation::Invalidate, Fault::Fails);
        guard.invalidate("k").await.expect_err("not acknowledged");
        guard.invalidate("k").await.expect_err("not acknowledged");
        assert_eq!((events.about("WARN"), events.about("not acknowledged")), (1, 1), "{}", events.all());
        sleep(20 * SECOND).await;
        assert_eq!(guard.drain().await, 0);
        assert_eq!(events.about("WARN") - events.about("breaker"), 2, "{}", events.all());
        assert_eq!(events.about(end), 1, "{}", events.all());
    }
}
