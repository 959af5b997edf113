//! What tests of faults share: a lock, commands to its server, and two faults that every recipe has to survive.
//!
//! The tests of `tools/lock-table` include this file.

use crate::support::{MS, RedisServer, Relay, SECOND, eventually};
use redis::{Cmd, FromRedisValue, Pipeline, RedisFuture, Value, aio::ConnectionLike};
use stampede_guard::{
    Lock,
    lock::{Connection, IntoEndpoint, LeaseStatus, LockErrorKind, LockGuard},
};
use tokio::time::timeout;

/// Returns a lock with long timeouts, so that a busy machine does not look like a failed server.
pub(crate) fn lock(redis: impl IntoEndpoint) -> Lock {
    Lock::new(redis).store_timeout(20 * SECOND).ttl(60 * SECOND).delay(3 * MS)
}

/// Returns the Redis key of a lock for a recipe.
pub(crate) fn key(name: &str, of: &str) -> String {
    format!("{{lock:r{name}}}:{of}")
}

/// Sends a command line, split at spaces, and returns the reply.
pub(crate) async fn ask<T: FromRedisValue>(server: &RedisServer, words: impl AsRef<str>) -> T {
    let mut words = words.as_ref().split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    for word in words {
        cmd.arg(word);
    }
    cmd.query_async(&mut server.connection().await).await.expect("the server accepts the command")
}

/// Expires a key on the server, as if its TTL were over.
pub(crate) async fn expire(server: &RedisServer, key: &str) {
    let expiring: i64 = ask(server, format!("PEXPIRE {key} 1")).await;
    assert_eq!(expiring, 1, "{key} exists");
    eventually("the key expires", async || ask::<i64>(server, format!("EXISTS {key}")).await == 0).await;
}

/// Reports whether the server still has this holder's lock.
pub(crate) async fn holds(guard: &LockGuard) -> bool {
    guard.check().await.expect("an answer") == LeaseStatus::Held
}

pub(crate) async fn relay(server: &RedisServer) -> Relay {
    Relay::to(([127, 0, 0, 1], server.port()).into()).await
}

/// Asserts that Redis has no key of `name` and no key without expiry.
pub(crate) async fn nothing_left(server: &RedisServer, name: &str) {
    for key in ask::<Vec<String>>(server, "KEYS *").await {
        assert!(!key.contains(name), "{key} is left");
        assert_ne!(ask::<i64>(server, format!("PTTL {key}")).await, -1, "{key} has no expiry");
    }
}

/// Drops attempts at random moments, and asserts that each lock is free again.
pub(crate) async fn drop_attempts_at_random(recipes: &[fn(Lock) -> Lock]) {
    let server = RedisServer::start();
    for with in recipes {
        let lock = with(lock(server.client()));
        lock.acquire("attempt").await.expect("free").release().await.expect("held");
        for _ in 0..150 {
            let limit = MS * fastrand::u32(..400) / 1000;
            let attempt = timeout(limit, lock.try_acquire("attempt")).await;
            if let Ok(guard) = attempt {
                drop(guard.expect("an answer").expect("the dropped attempt was released"));
            }
            lock.drain().await;
        }
        nothing_left(&server, "attempt").await;
    }
}

/// A connection that answers every command with the same reply.
#[derive(Clone)]
pub(crate) struct Says(pub(crate) Value);

impl ConnectionLike for Says {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { Ok(self.0.clone()) })
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, n: usize) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move { Ok(vec![self.0.clone(); n]) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Answers attempts with replies of a wrong type, and asserts that each is an error of the store. Such replies come from
/// a client or a proxy whose replies are out of step with its requests.
pub(crate) async fn answer_unexpectedly(recipes: &[fn(Lock) -> Lock]) {
    let array = |parts: &[Value]| Value::Array(parts.to_vec());
    let (one, nil) = (Value::Int(1), Value::Nil);
    let strings = [Value::SimpleString("QUEUED".into()), Value::BulkString(b"1".into())];
    let arrays = [array(&[]), array(std::slice::from_ref(&one)), array(&[one.clone(), nil.clone(), nil])];
    for says in [one].into_iter().chain(strings).chain(arrays) {
        for with in recipes {
            let lock = with(lock(Connection(Says(says.clone()))));
            let answer = lock.try_acquire("none").await;
            assert_eq!(answer.expect_err("no answer").kind(), LockErrorKind::Store, "{says:?} {lock:?}");
        }
    }
}
