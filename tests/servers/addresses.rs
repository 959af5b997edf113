//! Addresses of a server: protocols, databases, sockets, and a server that accepts no more clients.

use crate::{
    SECOND,
    kit::{answers, calls_of_a_herd, command, hits, patient, recovers},
    support::{RedisServer, eventually},
};
use redis::aio::MultiplexedConnection;
use stampede_guard::{
    RedisStore,
    store::{CacheKey, LeaseReply, LeaseRequest, Leaves, Store},
};

/// Asserts that answers are shared and that waiters are notified.
async fn serves(url: &str) {
    let client = || redis::Client::open(url).expect("a client");
    let guards = [(); 2].map(|()| patient(client()));
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1, "{url}");
    assert!(hits(&guards[1], "k").await, "{url}");

    let [a, b] = [(); 2].map(|()| RedisStore::new(client()));
    let key = CacheKey::new("sg", 0, "woken");
    let (mut leader, mut waiter) = (a.listen(&key), b.listen(&key));
    let lead = LeaseRequest::new(leader.token(), 100 * SECOND);
    assert!(matches!(a.get_or_lease(&key, lead).await, Ok(LeaseReply::Granted { .. })), "{url}");
    let token = waiter.token();
    eventually("wake-ups arrive", async || {
        matches!(
            b.get_or_lease(&key, LeaseRequest::new(token, 100 * SECOND)).await,
            Ok(LeaseReply::Wait { registered: true, .. })
        )
    })
    .await;
    a.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("acknowledged");
    let woken = tokio::time::timeout(20 * SECOND, waiter.notified()).await;
    assert!(woken.expect("a message"), "{url}");
}

#[tokio::test]
async fn resp2_and_resp3_are_supported() {
    let server = RedisServer::start();
    for protocol in ["resp2", "resp3"] {
        serves(&format!("{}/?protocol={protocol}", server.url())).await;
        server.flushall().await;
    }
}

#[tokio::test]
async fn non_default_database_is_supported() {
    let server = RedisServer::start();
    serves(&format!("{}/7", server.url())).await;
    assert_eq!(command::<usize>(&server, "DBSIZE").await, 0, "database 0 stays empty");
}

#[tokio::test]
async fn unix_socket_is_supported() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("redis").display().to_string();
    let _server = RedisServer::with(&["--unixsocket", &socket]);
    serves(&format!("redis+unix://{socket}")).await;
}

/// At `maxclients`, connected guards keep their connections, and other guards connect when there is room.
#[tokio::test]
async fn origin_answers_if_server_has_too_many_clients() {
    let server = RedisServer::start();
    let (inside, outside) = (patient(server.client()), patient(server.client()));
    answers(&inside, "inside").await;
    let mut redis = server.connection().await;
    let set = async |redis: &mut MultiplexedConnection, most: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxclients", most]).exec_async(redis).await.expect("set");
    };
    set(&mut redis, "1").await;
    answers(&outside, "outside").await;
    assert!(outside.stats().store_errors > 0);
    assert!(hits(&inside, "inside").await);
    set(&mut redis, "1000").await;
    recovers(&outside).await;
    assert!(hits(&outside, "inside").await);
}
