//! The recipes over a real Redis Cluster.

use crate::{
    RECIPES,
    site::Site,
    support::{RedisServer, SECOND},
};
use stampede_guard::{Lock, lock::RedisEndpoint};

/// Recipes that take another connection for some of their commands need a client of the server of the lock.
#[tokio::test]
async fn locks_over_cluster_are_acquired_and_released() {
    let nodes = RedisServer::cluster::<3>(&[]).await;
    let endpoint = RedisEndpoint::cluster(nodes.iter().map(RedisServer::url)).expect("an endpoint");
    for recipe in RECIPES.iter().filter(|recipe| recipe.servers == 1 && recipe.guarantees().multiplex_safe) {
        let lock = Lock::new(endpoint.clone()).store_timeout(20 * SECOND).wait(60 * SECOND);
        let lock = (recipe.make)(lock, &Site::of(&nodes));
        let guard = lock.acquire("everything").await.expect("free");
        assert!(lock.try_acquire("everything").await.expect("an answer").is_none(), "{}", recipe.name);
        if recipe.guarantees().extendable {
            guard.extend(30 * SECOND).await.expect("held");
        }
        guard.release().await.expect("held");
    }
}
