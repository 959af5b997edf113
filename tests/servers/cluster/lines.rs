//! The connection lines of src/guide/cluster.md.

use crate::{SECOND, kit::calls_of_a_herd, support::RedisServer};
use stampede_guard::{Lock, NearCacheConfig, RedisEndpoint, StampedeGuard, redis};
use std::fs;

/// The lines marked as copied are in the document, word for word.
#[tokio::test]
async fn documented_lines_connect_to_a_cluster() -> redis::RedisResult<()> {
    let servers = super::nodes::<3>().await;
    let urls = servers.each_ref().map(RedisServer::url);
    let nodes = urls.each_ref().map(String::as_str);

    let guard = StampedeGuard::new(RedisEndpoint::cluster(nodes)?); // copied
    let lock = Lock::new(RedisEndpoint::cluster(nodes)?); // copied
    let near = guard.clone().near_cache(NearCacheConfig::max_bytes(64 << 20)); // copied

    let guards = [guard, near].map(|guard| guard.store_timeout(30 * SECOND));
    for key in ["a", "b", "c"] {
        assert_eq!(calls_of_a_herd(&guards, key).await, 1, "{key}");
    }
    assert!(guards.iter().all(|guard| guard.health().subscriber_up == Some(true)));
    lock.store_timeout(30 * SECOND).acquire("a").await.expect("free").release().await.expect("held");

    let document = fs::read_to_string("src/guide/cluster.md").expect("a document");
    let lines: Vec<_> = SOURCE.lines().filter_map(|line| line.trim().strip_suffix(" // copied")).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        assert!(document.lines().any(|documented| documented.trim() == line), "not in src/guide/cluster.md: {line}");
    }
    Ok(())
}

const SOURCE: &str = include_str!("lines.rs");
