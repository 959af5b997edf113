//! The lock as a handle, with the default recipe and the fused one.

use crate::support::RedisServer;
use stampede_guard::{
    Lock,
    lock::{Fused, LockErrorKind},
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn lock() -> Lock {
    Lock::new(RedisServer::shared().client()).op_timeout(10 * SECOND)
}

#[tokio::test]
async fn what_is_held_is_busy_and_what_is_released_is_free() {
    for lock in [lock(), lock().recipe(Fused)] {
        let guard = lock.acquire("busy").await.expect("free");
        assert!(lock.try_acquire("busy").await.expect("an answer").is_none());
        let busy = lock.acquire("busy").await.expect_err("held");
        assert_eq!(busy.kind(), LockErrorKind::Acquisition, "{busy}");
        guard.release().await.expect("held until now");
        lock.check("busy").await.expect("free");
        lock.acquire("busy").await.expect("free").release().await.expect("held");
    }
}

#[tokio::test]
async fn who_waits_is_handed_the_lock_in_turn() {
    for lock in [lock(), lock().recipe(Fused)] {
        let lock = lock.wait(30 * SECOND);
        let guard = lock.acquire("turns").await.expect("free");
        let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..20 {
            let (lock, order) = (lock.clone(), order.clone());
            tasks.spawn(async move {
                let guard = lock.acquire("turns").await.expect("in time");
                order.lock().unwrap().push(n);
                guard.release().await.expect("held");
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        guard.release().await.expect("held");
        tasks.join_all().await;
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }
}
