//! Connections that look healthy but answer no more commands.

use crate::{
    Down, MS, SECOND,
    support::{RedisServer, Relay, eventually, never, relay::Mode},
    world::guard,
};
use stampede_guard::Policy;
use tokio::time::{Instant, sleep};

/// redis-rs would keep the connection forever, and a circuit breaker would only wait for it to answer.
///
/// Seen to fail (no more fills) if `Reconnecting::record_timeout` does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stays_silent_is_replaced() {
    for fault in [Mode::HalfOpen, Mode::NoReplies] {
        let server = RedisServer::start();
        let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
        let guard = guard(relay.client()).policy(Policy::fresh_for(600 * SECOND));
        let patient = guard.clone().store_timeout(30 * SECOND);
        patient.fetch("before", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.drain().await;

        relay.set(fault);
        guard.fetch("lost", async || Ok::<_, Down>(1)).await.expect("the origin answers");
        assert_eq!(guard.stats().failed_open, 1);
        // The old connection never recovers: only new connections work.
        relay.set(Mode::Pass);
        let healed = Instant::now();
        eventually("the guard hits again", async || {
            guard.fetch("before", async || Ok::<_, Down>(2)).await.is_ok_and(|value| value == 1)
        })
        .await;
        println!("{fault:?}: a hit again after {:?}", healed.elapsed());
        patient.fetch("after", async || Ok::<_, Down>(1)).await.expect("an answer");
        guard.drain().await;
        assert_eq!(patient.fetch("after", never::<i32>).await.expect("a hit"), 1);
    }
}

/// A slow server is not silent: as long as any command is answered, its connection is kept.
///
/// Seen to fail if `Reconnecting::record_timeout` counts timeouts and no reply resets the count.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_only_slow_is_kept() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let guard = guard(relay.client()).store_timeout(30 * MS).policy(Policy::fresh_for(600 * SECOND));
    let patient = guard.clone().store_timeout(30 * SECOND);
    patient.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.drain().await;
    let connections = async || {
        let mut redis = server.connection().await;
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.expect("an answer");
        let of_guard = |line: &&str| !line.contains("cmd=client");
        list.lines().filter(of_guard).filter_map(|line| line.split(' ').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = connections().await;
    for _ in 0..5 {
        relay.set(Mode::Delay(40 * MS));
        guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer");
        relay.set(Mode::Pass);
        sleep(300 * MS).await;
        eventually("the connection answers", async || {
            patient.fetch("k", async || Ok::<_, Down>(2)).await.is_ok_and(|value| value == 1)
        })
        .await;
    }
    assert_eq!(connections().await, before);
}
