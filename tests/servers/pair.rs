//! The two data connections, one for reads and one for scripts: they lead to one process of a server, and are replaced
//! together. After an acknowledged invalidation no read over the other connection serves the old value.

use crate::{
    Down, MS, SECOND,
    failover::Name,
    kit::{command, recovers, replicate},
    support::{RedisServer, eventually},
};
use axum::{
    body::Body,
    http::{Request, Response},
};
use redis::Client;
use stampede_guard::{
    IntoEndpoint, NearCacheConfig, Policy, RedisStore, StampedeGuard,
    store::{CacheKey, Inbox, Store, Token},
};
use std::convert::Infallible;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

/// Returns a guard that has connections for data alone to the server of `client`.
fn guard(client: Client, messages: &RedisServer) -> StampedeGuard {
    let endpoint = client.into_endpoint().subscribe_via(messages.client());
    StampedeGuard::new(endpoint).store_timeout(20 * SECOND).policy(Policy::fresh_for(600 * SECOND))
}

/// Fetches `k`; its value is `origin` at the origin.
async fn value(guard: &StampedeGuard, origin: &'static str) -> String {
    guard.fetch("k", async || Ok::<_, Down>(origin.to_owned())).await.expect("an answer")
}

/// Starts a server and another one with the same entry `old`, which learns nothing more: an old master and the server
/// that has taken its place, in either order.
async fn server_and_copy() -> (RedisServer, RedisServer) {
    let (server, copy) = (RedisServer::start(), RedisServer::start());
    let writer = guard(server.client(), &server);
    assert_eq!(value(&writer, "old").await, "old");
    writer.drain().await;
    replicate(&copy, &server, server.port()).await;
    eventually("the copy is made", async || command::<Vec<String>>(&copy, "KEYS {sg:rk}:v3.*").await.len() == 1).await;
    command::<()>(&copy, "REPLICAOF NO ONE").await;
    (server, copy)
}

/// Returns the connections of a guard to this server: the ids of the one for reads and of the one for scripts.
async fn connections(server: &RedisServer) -> [Option<String>; 2] {
    let list: String = command(server, "CLIENT LIST TYPE normal").await;
    let id = |last: &[&str]| {
        let mut lines = list.lines().filter(|line| last.iter().any(|last| line.contains(&format!("cmd={last} "))));
        let line = lines.next()?.to_owned();
        assert!(lines.next().is_none(), "{list}");
        line.split([' ', '=']).nth(1).map(str::to_owned)
    };
    [id(&["get", "info", "ping"]), id(&["evalsha", "time", "publish"])]
}

async fn invalidates(guard: &StampedeGuard) {
    guard.invalidate("k").await.expect("acknowledged");
}

#[tokio::test]
async fn reads_have_a_connection_of_their_own() {
    let server = RedisServer::start();
    for url in [server.url(), format!("{}/?protocol=resp3", server.url())] {
        let guard = guard(Client::open(url).expect("a URL"), &server);
        assert_eq!(value(&guard, "new").await, "new");
        guard.drain().await;
        let connections = connections(&server).await;
        assert!(connections.iter().all(Option::is_some), "{connections:?}");
        drop(guard);
        eventually("the connections end", async || self::connections(&server).await == [None, None]).await;
        server.flushall().await;
    }
}

/// A name that changes, or has several addresses, leads the second connection to another server.
///
/// Seen to fail (`old`) if the second connection is used without a comparison of the servers.
#[tokio::test]
async fn invalidation_is_seen_if_second_connection_leads_elsewhere() {
    let (server, copy) = server_and_copy().await;
    for order in [[&server, &copy], [&copy, &server]] {
        let name = Name::of(order[1]).await;
        name.next_lead_to(&order);
        let guard = guard(name.client(), &server);
        assert_eq!(value(&guard, "?").await, "old");
        invalidates(&guard).await;
        assert_eq!(value(&guard, "new").await, "new");
        guard.drain().await;
        let unused = connections(order[1]).await;
        assert_eq!(unused, [None, None], "the second connection is closed");
        assert_eq!(value(&guard, "?").await, "new");
    }
}

/// Kills one of the connections. The next one leads to the copy.
///
/// Seen to fail (`old`, the connection of reads) if an invalidation does not show that this connection lives.
#[tokio::test]
async fn invalidation_is_seen_after_one_connection_was_killed() {
    for killed in [0, 1] {
        for moves in [false, true] {
            let (server, copy) = server_and_copy().await;
            let name = Name::of(&server).await;
            let [guard, other] = [(); 2].map(|()| guard(name.client(), &server));
            assert_eq!(value(&guard, "?").await, "old");
            guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
            guard.drain().await;
            let id = connections(&server).await[killed].clone().expect("two connections");
            assert_eq!(value(&other, "?").await, "old");
            if moves {
                name.follow(&copy);
            }
            command::<()>(&server, &format!("CLIENT KILL ID {id}")).await;
            invalidates(&guard).await;
            assert_eq!(value(&guard, "new").await, "new", "connection {killed}, the name moves: {moves}");
            if !moves {
                assert_eq!(value(&other, "?").await, "new");
            }
        }
    }
}

/// Kills the connection over which the near cache reads. The next one leads to the copy.
///
/// Seen to fail (`old`, for as long as the data connections live) if it may lead to another server than they do.
#[tokio::test]
async fn invalidation_is_seen_if_near_cache_connects_elsewhere() {
    let (server, copy) = server_and_copy().await;
    let name = Name::of(&server).await;
    let guard = guard(name.client(), &server).near_cache(NearCacheConfig::max_bytes(1 << 20));
    let tracked = async || {
        assert_eq!(value(&guard, "?").await, "old");
        let list: String = command(&server, "CLIENT LIST TYPE normal").await;
        list.lines().find(|line| line.contains("flags=t"))?.split([' ', '=']).nth(1).map(str::to_owned)
    };
    eventually("the near cache has a connection", async || tracked().await.is_some()).await;
    let id = tracked().await.expect("a connection");
    name.follow(&copy);
    invalidates(&guard).await;
    command::<()>(&server, &format!("CLIENT KILL ID {id}")).await;
    let begun = Instant::now();
    while begun.elapsed() < SECOND {
        assert_eq!(value(&guard, "new").await, "new");
        tokio::time::sleep(10 * MS).await;
    }
}

/// Reads and scripts share one connection, because the second one leads to the copy. So does that of the near cache.
///
/// Seen to fail (`old`, for as long as the connections live) if it is compared only with two data connections.
#[tokio::test]
async fn invalidation_is_seen_if_near_cache_and_second_lead_elsewhere() {
    let (server, copy) = server_and_copy().await;
    let name = Name::of(&copy).await;
    name.next_lead_to(&[&server, &copy]);
    let guard = guard(name.client(), &server).near_cache(NearCacheConfig::max_bytes(1 << 20));
    let begun = Instant::now();
    while begun.elapsed() < SECOND {
        assert_eq!(value(&guard, "?").await, "old");
        tokio::time::sleep(10 * MS).await;
    }
    invalidates(&guard).await;
    let begun = Instant::now();
    while begun.elapsed() < SECOND {
        assert_eq!(value(&guard, "new").await, "new");
        tokio::time::sleep(10 * MS).await;
    }
}

/// The invalidation is in flight at the old server when the connection for reads breaks. The next ones lead to the copy.
///
/// Seen to fail (`old`) if a replacement of the connections in between is not noticed.
#[tokio::test]
async fn invalidation_is_sent_again_if_its_connections_were_replaced() {
    let (server, copy) = server_and_copy().await;
    let name = Name::of(&server).await;
    let guard = guard(name.client(), &server);
    assert_eq!(value(&guard, "?").await, "old");
    command::<()>(&server, "CLIENT PAUSE 60000 WRITE").await;
    let while_replaced = async {
        let sent = async || command::<String>(&server, "CLIENT LIST TYPE normal").await.contains("cmd=eval");
        eventually("the script is sent", sent).await;
        let id = connections(&server).await[0].clone().expect("two connections");
        name.follow(&copy);
        command::<()>(&server, &format!("CLIENT KILL ID {id}")).await;
        guard.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer"); // over the next connections
        command::<()>(&server, "CLIENT UNPAUSE").await;
    };
    tokio::join!(invalidates(&guard), while_replaced);
    assert_eq!(value(&guard, "new").await, "new");
}

#[tokio::test]
async fn process_does_not_serve_what_it_invalidated_in_a_pause() {
    let server = RedisServer::start();
    let [writer, other] = [(); 2].map(|()| StampedeGuard::new(server.client()).policy(Policy::fresh_for(600 * SECOND)));
    assert_eq!(value(&writer, "old").await, "old");
    writer.drain().await;
    assert_eq!(value(&other, "?").await, "old");
    command::<()>(&server, "CLIENT PAUSE 60000 WRITE").await;
    writer.invalidate("k").await.expect_err("writes are paused");
    assert_eq!(value(&writer, "new").await, "new");
    assert_eq!(value(&other, "?").await, "old");
    command::<()>(&server, "CLIENT UNPAUSE").await;
    eventually("the old value is gone", async || value(&other, "new").await == "new").await;
}

/// A main connection that hangs is replaced while the invalidation is still sent again.
///
/// Seen to fail (the entry stays) if the main connection may be silent for 10 s while reads are answered.
#[tokio::test]
async fn invalidation_outlasts_a_main_connection_that_hangs() {
    let server = RedisServer::start();
    let name = Name::of(&server).await;
    let guard = guard(name.client(), &server);
    assert_eq!(value(&guard, "old").await, "old");
    guard.drain().await;
    name.hang(0);
    guard.store_timeout(50 * MS).invalidate("k").await.expect_err("the script hangs");
    eventually("the entry is gone", async || command::<Vec<String>>(&server, "KEYS {sg:rk}:v3.*").await.is_empty())
        .await;
}

/// The connection of reads to a demoted master would go on to serve old values, but the refusal of a script replaces both.
#[tokio::test]
async fn invalidation_is_seen_after_the_master_was_demoted() {
    let (master, copy) = server_and_copy().await;
    let name = Name::of(&master).await;
    let guards = [(); 2].map(|()| guard(name.client(), &master));
    for guard in &guards {
        assert_eq!(value(guard, "?").await, "old");
    }
    name.follow(&copy);
    command::<()>(&master, "REPLICAOF 127.0.0.1 1").await;
    eventually("an invalidation is acknowledged", async || guards[0].invalidate("k").await.is_ok()).await;
    assert_eq!(value(&guards[0], "new").await, "new");
    recovers(&guards[1]).await;
    assert_eq!(value(&guards[1], "new").await, "new");
}

/// At `maxclients` there is room for one connection, and later for two.
#[tokio::test]
async fn reads_share_the_connection_at_maxclients() {
    let (server, messages) = (RedisServer::start(), RedisServer::start());
    command::<()>(&server, "CONFIG SET maxclients 2").await;
    let guard = guard(server.client(), &messages);
    let mut redis = server.connection().await;
    assert_eq!(value(&guard, "old").await, "old");
    guard.drain().await;
    eventually("an invalidation is acknowledged", async || guard.invalidate("k").await.is_ok()).await;
    assert_eq!(value(&guard, "new").await, "new");
    redis::cmd("CONFIG").arg(&["SET", "maxclients", "100"]).exec_async(&mut redis).await.expect("set");
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut redis).await.expect("killed");
    recovers(&guard).await;
    assert!(connections(&server).await.iter().all(Option::is_some));
}

/// Seen to fail (three connections in place of one) if the main connection is taken for dead after a second.
#[tokio::test]
async fn pause_of_writes_replaces_no_connection() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let key = CacheKey::new("sg", 0, "k");
    store.get(&key).await.expect("an answer");
    let connection = store.connection(&key);
    command::<()>(&server, "CLIENT PAUSE 3000 WRITE").await;
    let begun = Instant::now();
    let mut paused = 0;
    while begun.elapsed() < 2800 * MS {
        let release = store.release(&key, Token::unique(Inbox::unique()), None);
        paused += usize::from(tokio::time::timeout(50 * MS, release).await.is_err());
        store.get(&key).await.expect("an answer");
    }
    assert!(paused > 40, "{paused} scripts were paused");
    assert_eq!(store.connection(&key), connection, "the connections stay");
    eventually("scripts are executed again", async || {
        store.release(&key, Token::unique(Inbox::unique()), None).await.is_ok()
    })
    .await;
    assert_eq!(store.connection(&key), connection);
}

/// A server, or a network, may end a connection that carries nothing. A near cache reads over a connection of its own.
///
/// Seen to fail (the connection for reads is closed) if the subscriber sends its probe over the main connection alone.
#[tokio::test]
async fn idle_connections_are_kept_alive() {
    let server = RedisServer::with(&["--timeout", "8"]);
    let store = RedisStore::new(server.client());
    store.get(&CacheKey::new("sg", 0, "k")).await.expect("an answer");
    let ids = connections(&server).await.map(|id| format!("id={} ", id.expect("two connections")));
    tokio::time::sleep(12 * SECOND).await;
    let list: String = command(&server, "CLIENT LIST").await;
    assert!(ids.iter().all(|id| list.contains(id)), "{ids:?} {list}");
}

/// Pauses the writes of the server, and sends a miss, which opens the breaker of writes.
async fn pause_writes(server: &RedisServer, guard: &StampedeGuard) {
    command::<()>(server, "CLIENT PAUSE 60000 WRITE").await;
    guard.fetch("miss", async || Ok::<_, Down>(1)).await.expect("the origin answers");
    let health = guard.health();
    assert_eq!((health.store_reachable, health.breaker_open), (Some(true), true), "reads are answered");
}

/// Seen to fail (the breaker stays open) if reads send no probe of writes, or if a read is the probe.
#[tokio::test]
async fn breaker_of_writes_closes_after_the_pause_by_reads_alone() {
    let server = RedisServer::start();
    let guard = guard(server.client(), &server);
    assert_eq!(value(&guard, "old").await, "old");
    guard.drain().await;
    let guard = guard.store_timeout(SECOND); // the connections are made
    pause_writes(&server, &guard).await;
    let opened = Instant::now();
    while opened.elapsed() < 3 * SECOND {
        assert_eq!(value(&guard, "new").await, "old", "fresh hits go on");
        assert!(guard.health().breaker_open);
        tokio::time::sleep(5 * MS).await;
    }
    command::<()>(&server, "CLIENT UNPAUSE").await;
    eventually("the breaker closes", async || value(&guard, "new").await == "old" && !guard.health().breaker_open)
        .await;
    recovers(&guard).await;
}

/// Seen to fail (pending without end) if the breaker of writes is not closed by the reply to an invalidation.
#[tokio::test]
async fn unsafe_request_awaits_its_invalidation_again_after_the_pause() {
    let server = RedisServer::start();
    let guard = guard(server.client(), &server);
    invalidates(&guard).await;
    let guard = guard.store_timeout(SECOND); // the connections are made
    let site = guard.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    let is_pending = async || {
        let post = Request::post("http://site.example/page").body(Body::empty()).expect("a request");
        let response = site.clone().oneshot(post).await.expect("it cannot fail");
        response.headers()["cache-status"].to_str().expect("text").contains("invalidation-pending")
    };
    assert!(!is_pending().await);
    pause_writes(&server, &guard).await;
    assert!(is_pending().await);
    command::<()>(&server, "CLIENT UNPAUSE").await;
    eventually("an invalidation is awaited", async || !is_pending().await).await;
}
