//! `WATCH`: its effect belongs to one connection.

use super::{ask, expire, holds, key, lock, relay};
use crate::support::{Monitor, RedisServer, eventually, relay::Mode};
use futures_util::future::join_all;
use lock_table::Watch;
use redis::Value;
use stampede_guard::lock::{LockErrorKind, LockGuard};

#[tokio::test]
async fn watch_releases_over_dedicated_connection() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(Watch::new(server.client()));
    let monitor = Monitor::start(&server).await;
    lock.acquire("own").await.expect("free").release().await.expect("held");
    let sent = monitor.stop().await;
    let client = |name| &sent.iter().find(|command| command.name == name).expect("it was sent").client;
    assert_ne!(client("WATCH"), client("PSETEX"));
    let sent_by = |client: &str| -> Vec<_> {
        sent.iter().filter(|command| command.client == client).map(|command| &*command.name).collect()
    };
    assert_eq!(sent_by(client("WATCH")), ["WATCH", "GET", "MULTI", "DEL", "EXEC"]);
}

/// Shows why `Watch::new` takes no shared connection, as the example in its docs explains.
#[tokio::test]
async fn watch_on_shared_connection_is_ended_by_foreign_exec() {
    let server = RedisServer::shared();
    let (mut shared, name) = (server.connection().await, key("shared", "watch"));
    let mut late = async |words: &str| -> Value {
        let mut words = words.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        for word in words {
            cmd.arg(word);
        }
        cmd.query_async(&mut shared).await.expect("an answer")
    };
    late(&format!("SET {name} late")).await;
    late(&format!("WATCH {name}")).await;
    assert_eq!(late(&format!("GET {name}")).await, Value::BulkString(b"late".into()), "the late holder sees its token");
    let () = ask(server, format!("SET {name} successor")).await;
    // Another client on the same connection.
    late("MULTI").await;
    late("EXEC").await;
    late("MULTI").await;
    late(&format!("DEL {name}")).await;
    assert_eq!(late("EXEC").await, Value::Array(vec![Value::Int(1)]), "the watch would have made it nil");
    assert_eq!(ask::<i64>(server, format!("EXISTS {name}")).await, 0, "the successor's lock was deleted");
}

/// Seen to fail without the comparison.
#[tokio::test]
async fn a_late_release_is_refused() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Watch::new(server.client()));
    let late = lock.acquire("late").await.expect("free");
    expire(server, &key("late", "watch")).await;
    let successor = lock.acquire("late").await.expect("over");
    assert_eq!(late.release().await.expect_err("late").kind(), LockErrorKind::Release);
    assert!(holds(&successor).await);
}

/// Seen to fail if a closed connection leaves the other idle ones in the pool, because a release is tried only twice.
#[tokio::test]
async fn idle_connections_closed_by_server_do_not_fail_release() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(Watch::new(server.client()));
    let mut guards = Vec::new();
    for name in ["one", "two", "three"] {
        guards.push(lock.acquire(name).await.expect("free"));
    }
    // Released at once, each on a connection of its own.
    for released in join_all(guards.into_iter().map(LockGuard::release)).await {
        released.expect("held");
    }
    let guard = lock.acquire("four").await.expect("free");
    let closed: i64 = ask(&server, "CLIENT KILL TYPE normal SKIPME yes").await;
    assert!(closed >= 3);
    guard.release().await.expect("held, and the server is there");
}

/// Seen to fail without `WATCH`.
#[tokio::test]
async fn watch_refuses_release_if_lock_changes_after_get() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(server.client());
    let slow = lock.clone().recipe(Watch::new(relay.client()));
    slow.acquire("warm").await.expect("free").release().await.expect("held");
    let late = slow.acquire("late").await.expect("free");
    relay.set(Mode::HoldReplies);
    let late = tokio::spawn(late.release());
    let gets = async || ask::<String>(&server, "INFO commandstats").await.contains("cmdstat_get:calls=2,");
    eventually("the release has compared the token", gets).await;
    expire(&server, &key("late", "watch")).await;
    let others = lock.recipe(Watch::new(server.client()));
    let successor = others.acquire("late").await.expect("over");
    relay.set(Mode::Pass);
    assert_eq!(late.await.expect("no panic").expect_err("late").kind(), LockErrorKind::Release);
    assert!(holds(&successor).await);
}

/// Seen to fail if only the connection that was tried is dropped from the pool.
#[tokio::test]
async fn watch_releases_after_all_connections_were_closed() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(Watch::new(server.client()));
    let acquire = async |name: String| lock.acquire(&name).await.expect("free");
    let four = join_all((0..4).map(|n| acquire(format!("closed-{n}")))).await;
    let last = acquire("closed".to_owned()).await;
    for released in join_all(four.into_iter().map(LockGuard::release)).await {
        released.expect("held");
    }
    let _: i64 = ask(&server, "CLIENT KILL TYPE normal SKIPME yes").await;
    last.release().await.expect("held");
}

/// Shows why a release by `WATCH` is not multiplex-safe. The commands are sent by hand because no recipe can be built
/// so.
#[tokio::test]
async fn exec_on_shared_connection_ends_watch() {
    for shared in [false, true] {
        let site = crate::RECIPES[0].shared();
        let name = format!("{}:lock", site.namespace);
        let [mut mine, mut other] = [site.connections().await.remove(0), site.connections().await.remove(0)];
        let set = |token: &'static str| redis::cmd("SET").arg(&name).arg(token).to_owned();
        let () = set("mine").query_async(&mut mine).await.expect("the server is up");

        let () = redis::cmd("WATCH").arg(&name).query_async(&mut mine).await.expect("the server is up");
        let value: String = redis::cmd("GET").arg(&name).query_async(&mut mine).await.expect("the server is up");
        assert_eq!(value, "mine");
        // The lock expires, and another holder acquires it.
        let () = set("another's").query_async(&mut other).await.expect("the server is up");
        let neighbour = if shared { &mut mine } else { &mut other };
        let () = redis::pipe().atomic().ping().ignore().query_async(neighbour).await.expect("the server is up");
        let deleted: Value =
            redis::pipe().atomic().cmd("DEL").arg(&name).query_async(&mut mine).await.expect("the server is up");
        assert_eq!(deleted != Value::Nil, shared, "{deleted:?}");
        assert_eq!(site.values().await.concat().is_empty(), shared);
    }
}
