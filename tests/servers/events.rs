//! The lines that operators read.

use crate::{Down, SECOND, kit::Events};
use stampede_guard::{
    StampedeGuard,
    testing::{FakeRedis, Fault, Operation},
};
use std::future::pending;
use tokio::time::{sleep, timeout};

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

#[tokio::test(start_paused = true)]
async fn fetch_dropped_for_lack_of_a_client_is_logged() {
    let (events, guard) = (Events::listen(), StampedeGuard::in_memory().max_detached(0));
    timeout(SECOND, guard.fetch("k", pending::<Result<u8, Down>>)).await.expect_err("it waits");
    while guard.drain().await > 0 {}
    assert_eq!((events.about("WARN"), events.about("max_detached")), (1, 1), "{}", events.all());
}
