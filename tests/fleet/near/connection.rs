//! The tracking connection cannot be made, while the data connection works.

use super::{HOUR, Source};
use crate::{
    MS, SECOND, never,
    support::{RedisServer, Relay, relay::Mode},
};
use stampede_guard::{NearCacheConfig, Policy, StampedeGuard};
use std::time::Instant;
use tokio::time;

/// The relay accepts the tracking connection and never serves it. Reads go over the data connection, and no copy is
/// kept until the tracking connection is made. Seen to fail (one fetch per request, the breaker open) when a read
/// waited for the tracking connection.
#[tokio::test]
async fn a_tracking_connection_that_hangs_delays_no_read() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    // Less than an attempt to connect may take.
    let plain = StampedeGuard::new(relay.client()).policy(Policy::fresh_for(HOUR)).store_timeout(SECOND);
    let source = Source::default();
    source.asked_by(&plain).await;
    plain.drain().await;
    relay.set(Mode::HoldConnections);

    let near = plain.clone().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(HOUR));
    let since = Instant::now();
    while since.elapsed() < 5 * SECOND {
        near.fetch("k", never::<u32>).await.expect("a hit");
        time::sleep(10 * MS).await;
    }
    let stats = near.stats();
    assert_eq!((stats.breaker_opened, stats.failed_open, stats.near_hits), (0, 0, 0), "{stats:?}");

    relay.set(Mode::Pass);
    source.kept_by(&near).await;
}
