//! `WATCH`: what belongs to a connection.

use super::{ask, expire, holds, key, lock, relay};
use crate::support::{Monitor, RedisServer, eventually, relay::Mode};
use futures_util::future::join_all;
use redis::Value;
use stampede_guard::lock::{LockErrorKind, LockGuard, Watch};

#[tokio::test]
async fn it_watches_over_a_connection_of_its_own() {
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

/// Why it must be one: `Watch::new` takes no connection that others have, which the example in its docs shows.
#[tokio::test]
async fn over_a_shared_connection_the_exec_of_another_ends_the_watch() {
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
    assert_eq!(late(&format!("GET {name}")).await, Value::BulkString(b"late".into()), "it holds it");
    let () = ask(server, format!("SET {name} successor")).await;
    // Somebody else, over the same connection.
    late("MULTI").await;
    late("EXEC").await;
    late("MULTI").await;
    late(&format!("DEL {name}")).await;
    assert_eq!(late("EXEC").await, Value::Array(vec![Value::Int(1)]), "the watch would have made it nil");
    assert_eq!(ask::<i64>(server, format!("EXISTS {name}")).await, 0, "the successor's lock is gone");
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

/// Seen to fail when a connection that ended leaves the others in the pool: the release is tried twice.
#[tokio::test]
async fn connections_that_were_closed_while_idle_do_not_fail_a_release() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(Watch::new(server.client()));
    let mut guards = Vec::new();
    for name in ["one", "two", "three"] {
        guards.push(lock.acquire(name).await.expect("free"));
    }
    // At once, each on a connection of its own.
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
async fn a_release_that_is_late_after_its_comparison_is_refused() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(server.client());
    let slow = lock.clone().recipe(Watch::new(relay.client()));
    slow.acquire("warm").await.expect("free").release().await.expect("held");
    let late = slow.acquire("late").await.expect("free");
    relay.set(Mode::HoldReplies);
    let late = tokio::spawn(late.release());
    let gets = async || ask::<String>(&server, "INFO commandstats").await.contains("cmdstat_get:calls=2,");
    eventually("it has compared", gets).await;
    expire(&server, &key("late", "watch")).await;
    let others = lock.recipe(Watch::new(server.client()));
    let successor = others.acquire("late").await.expect("over");
    relay.set(Mode::Pass);
    assert_eq!(late.await.expect("no panic").expect_err("late").kind(), LockErrorKind::Release);
    assert!(holds(&successor).await);
}

/// Seen to fail when only the connection that was tried is given up.
#[tokio::test]
async fn it_releases_also_after_all_its_connections_were_closed() {
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
