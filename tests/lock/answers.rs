//! Errors that must not look like a lock or like a busy lock: invalid input, and servers that are down.

use crate::{
    site::{Site, Subject},
    suite::is_free,
    support::{MS, RedisServer, SECOND},
    traffic::sent,
};
use stampede_guard::{
    Lock,
    lock::{LockError, LockErrorKind},
};
use std::time::Duration;

/// Seen to fail without the check for control characters.
pub(crate) async fn invalid_lock_input_is_refused_without_sending_commands(recipe: &Subject) {
    let servers = recipe.start();
    let site = Site::of(&servers);
    let lock = site.lock(recipe);
    let long = "x".repeat(1 << 20);
    let names = [
        ("", "needs a name"),
        (long.as_str(), "1,024 bytes at most"),
        ("\0", "control characters"),
        ("night\0ly", "control characters"),
        ("a\r\nb", "control characters"),
        ("\u{7f}", "control characters"),
        ("\u{85}", "control characters"),
    ];
    let nothing = sent(&servers, async || {
        for (name, reason) in names {
            refused(&lock, name, reason).await;
        }
        for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(999)] {
            refused(&lock.clone().ttl(ttl), "brief", "a millisecond at least").await;
        }
    });
    assert_eq!(nothing.await, []);

    let guard = lock.acquire("lives").await.expect("free");
    let nothing = sent(&servers, async || {
        if let Err(error) = guard.extend(Duration::from_micros(999)).await {
            assert_eq!((error.kind(), error.lock()), (LockErrorKind::Input, "lives"), "{error}");
        } else {
            panic!("an extension of less than a millisecond was accepted");
        }
    });
    assert_eq!(nothing.await, []);
    assert!(!sent(&servers, async || drop(guard.check().await)).await.is_empty(), "the monitor records commands");
    guard.release().await.expect("held");
    assert!(is_free(&lock, &"x".repeat(1024)).await, "a name of the maximum length is accepted");
}

async fn refused(lock: &Lock, name: &str, reason: &str) {
    for error in [
        lock.try_acquire(name).await.map(drop).expect_err("invalid input"),
        lock.acquire(name).await.map(drop).expect_err("invalid input"),
    ] {
        let said = error.to_string();
        assert_eq!(error.kind(), LockErrorKind::Input, "{said}");
        assert!(said.contains(&format!("{:?}", error.lock())) && said.contains(reason), "{said}");
        match name.len() {
            ..=1024 => assert_eq!(error.lock(), name),
            n => assert!(error.lock().starts_with(&name[..32]) && error.lock().contains(&n.to_string()), "{said}"),
        }
        assert!(said.len() < 256, "the message is short: {said}");
    }
}

/// With several servers, a majority of them is taken down.
///
/// Seen to fail if an error is taken for a busy lock.
pub(crate) async fn server_down_is_reported_as_store_error_not_as_held(recipe: &Subject) {
    tokio::join!(without(recipe, RedisServer::kill), without(recipe, RedisServer::pause));
}

async fn without(recipe: &Subject, take_away: fn(&RedisServer)) {
    let servers = recipe.start();
    let site = Site::of(&servers);
    let lock = site.lock(recipe).store_timeout(100 * MS);
    let guard = loop {
        match lock.acquire("down").await {
            Ok(guard) => break guard,
            // The machine was busy. A late grant is released in the background.
            Err(error) => assert_eq!(error.kind(), LockErrorKind::Store, "{error}"),
        }
        lock.drain().await;
        site.delete(0..).await;
    };
    servers.iter().take(servers.len() / 2 + 1).for_each(take_away);

    let waits = lock.clone().wait(50 * MS);
    let (held, tried, waited, free, checked, extended) = tokio::join!(
        lock.try_acquire("down"),
        lock.acquire("down"),
        waits.acquire("down"),
        lock.try_acquire("free"),
        guard.check(),
        guard.extend(SECOND),
    );
    for acquired in [held.map(drop), tried.map(drop), waited.map(drop), free.map(drop), checked.map(drop)] {
        no_answer(acquired);
    }
    if recipe.guarantees().extendable {
        no_answer(extended);
    }
    no_answer(guard.release().await);
}

fn no_answer(answer: Result<(), LockError>) {
    let error = answer.expect_err("the servers are down");
    assert_eq!(error.kind(), LockErrorKind::Store, "{error}");
    assert!(error.to_string().contains("the server did not confirm"), "{error}");
}
