//! Commands that managed services block. A server that does not know them stands for such a service.

use crate::{
    SECOND,
    kit::{answers, calls_of_a_herd, hits, patient},
    support::{RedisServer, eventually},
};
use stampede_guard::{NearCacheConfig, Policy};
use std::time::Duration;

fn without(commands: &[&str]) -> RedisServer {
    let renamed: Vec<_> = commands.iter().flat_map(|command| ["--rename-command", command, ""]).collect();
    RedisServer::with(&renamed)
}

/// `CLIENT` is blocked by Memorystore for Redis, and `CONFIG` by most services.
#[tokio::test]
async fn near_cache_without_client_command_keeps_to_max_age() {
    let server = without(&["CLIENT", "CONFIG", "CLUSTER", "INFO", "ACL"]);
    let policy = Policy::fresh_for(Duration::from_secs(3600));
    let near = NearCacheConfig::max_bytes(1 << 20).max_age(SECOND);
    let guards = [(); 2].map(|()| patient(server.client()).policy(policy).near_cache(near));
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1);
    let kept = async || {
        let before = guards[0].stats().near_hits;
        hits(&guards[0], "k").await;
        guards[0].stats().near_hits > before
    };
    eventually("a copy is kept", kept).await;
    tokio::time::sleep(SECOND).await;
    assert!(!kept().await, "an unconfirmed copy ends with max_age");
    assert_eq!(guards.map(|guard| guard.stats().store_errors), [0, 0]);
}

/// Scripts are blocked by Aiven unless its support allows them, and by sharded clusters of OCI Cache.
#[tokio::test]
async fn service_without_scripts_leaves_answers_to_the_origin() {
    let server = without(&["EVAL", "EVALSHA", "SCRIPT"]);
    let guards = [(); 2].map(|()| patient(server.client()));
    for guard in &guards {
        assert_eq!(answers(guard, "k").await, 1, "callers of one process still share");
        assert!(!hits(guard, "k").await);
    }
}
