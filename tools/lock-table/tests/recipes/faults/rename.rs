//! `RENAMENX`: acquired in one step, and released by the holder's own timer.

use super::{ask, expire, held_back::HeldBack, holds, key, lock};
use crate::support::{Monitor, RedisServer, SECOND, herd};
use lock_table::Rename;
use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Seen to fail with `SETNX` and `PEXPIRE` outside of a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn rename_lock_never_exists_without_expiry() {
    let server = RedisServer::start();
    let (name, done) = (key("atomic", "rename"), AtomicBool::new(false));
    let looking = async {
        let (mut connection, mut seen) = (server.connection().await, 0);
        while !done.load(Relaxed) {
            let left: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut connection).await.expect("an answer");
            assert_ne!(left, -1);
            seen += usize::from(left > 0);
        }
        seen
    };
    let contending = async {
        let locks: Vec<_> = (0..4).map(|_| lock(server.client()).recipe(Rename).wait(60 * SECOND)).collect();
        herd(4, |i| {
            let lock = locks[i].clone();
            async move {
                for _ in 0..200 {
                    lock.acquire("atomic").await.expect("in time").release().await.expect("held");
                }
            }
        })
        .await;
        done.store(true, Relaxed);
    };
    let (seen, ()) = tokio::join!(looking, contending);
    assert!(seen > 100, "looked at {seen} times while it was held");
}

/// Seen to fail with one temporary key for all attempts, and without its `DEL`.
#[tokio::test]
async fn rename_attempts_use_and_remove_own_temporary_keys() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(Rename);
    let guard = lock.acquire("busy").await.expect("free");
    let monitor = Monitor::start(&server).await;
    for acquired in herd(100, |_| {
        let lock = lock.clone();
        async move { lock.try_acquire("busy").await.expect("an answer").is_some() }
    })
    .await
    {
        assert!(!acquired);
    }
    let sent = monitor.stop().await;
    let temporary = sent.iter().filter(|command| command.name == "PSETEX");
    let temporary: Vec<_> = temporary.map(|command| command.args.split(' ').next().expect("a key")).collect();
    assert_eq!(temporary.len(), 100);
    assert_eq!(temporary.iter().collect::<HashSet<_>>().len(), 100);
    assert_eq!(ask::<Vec<String>>(&server, "KEYS *").await, [key("busy", "rename")]);
    guard.release().await.expect("held");
    assert!(ask::<Vec<String>>(&server, "KEYS *").await.is_empty());
}

#[tokio::test]
async fn late_rename_holder_deletes_successors_lock() {
    let server = RedisServer::shared();
    let slow = HeldBack::before("DEL", server).await;
    let late = lock(slow.redis()).recipe(Rename).acquire("late").await.expect("free");
    let late = tokio::spawn(late.release());
    slow.arrived().await;
    expire(server, &key("late", "rename")).await;
    let others = lock(server.client()).recipe(Rename);
    let successor = others.acquire("late").await.expect("over");
    slow.let_go();
    late.await.expect("no panic").expect("the holder does not notice");
    assert!(!holds(&successor).await);
    assert!(others.try_acquire("late").await.expect("an answer").is_some(), "a third holder acquires the lock");
}
