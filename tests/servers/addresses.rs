//! Ways to reach a server, and not to.

use crate::{
    SECOND,
    kit::{answers, calls_of_a_herd, command, hits, patient, recovers},
    support::{RedisServer, eventually},
};
use redis::aio::MultiplexedConnection;
use stampede_guard::{
    RedisStore,
    store::{Address, Ask, Lead, Store},
};

/// Answers are shared, and those who wait are woken.
async fn serves(url: &str) {
    let client = || redis::Client::open(url).expect("a client");
    let guards = [(); 2].map(|()| patient(client()));
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1, "{url}");
    assert!(hits(&guards[1], "k").await, "{url}");

    let [a, b] = [(); 2].map(|()| RedisStore::new(client()));
    let at = Address::new("sg", 0, "woken");
    let (mut leader, mut waiter) = (a.listen(&at), b.listen(&at));
    let lead = Ask { token: leader.token(), lease: 100 * SECOND, seen: None };
    assert!(matches!(a.lead(&at, lead).await, Ok(Lead::Granted { .. })), "{url}");
    let token = waiter.token();
    eventually("wake-ups are heard", async || {
        matches!(b.lead(&at, Ask { token, ..lead }).await, Ok(Lead::Wait { registered: true, .. }))
    })
    .await;
    a.invalidate(&at).await.expect("acknowledged");
    let woken = tokio::time::timeout(20 * SECOND, waiter.woken()).await;
    assert!(woken.expect("a message"), "{url}");
}

#[tokio::test]
async fn resp2_and_resp3_both_do() {
    let server = RedisServer::start();
    for protocol in ["resp2", "resp3"] {
        serves(&format!("{}/?protocol={protocol}", server.url())).await;
        server.flushall().await;
    }
}

#[tokio::test]
async fn a_database_of_its_own_will_do() {
    let server = RedisServer::start();
    serves(&format!("{}/7", server.url())).await;
    assert_eq!(command::<usize>(&server, "DBSIZE").await, 0, "all of it is there");
}

#[tokio::test]
async fn a_socket_in_the_file_system_will_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("redis").display().to_string();
    let _server = RedisServer::with(&["--unixsocket", &socket]);
    serves(&format!("redis+unix://{socket}")).await;
}

/// The server has all the clients that it wants: whoever is in stays in, others get in when there is room.
#[tokio::test]
async fn a_server_with_too_many_clients_is_as_good_as_none() {
    let server = RedisServer::start();
    let (inside, outside) = (patient(server.client()), patient(server.client()));
    answers(&inside, "inside").await;
    let mut redis = server.connection().await;
    let set = async |redis: &mut MultiplexedConnection, most: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxclients", most]).exec_async(redis).await.expect("set");
    };
    set(&mut redis, "1").await;
    answers(&outside, "outside").await;
    assert!(outside.report().store_errors > 0);
    assert!(hits(&inside, "inside").await);
    set(&mut redis, "1000").await;
    recovers(&outside).await;
    assert!(hits(&outside, "inside").await);
}
