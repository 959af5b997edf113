//! Holders that crash or release too late.

use crate::{
    RECIPES,
    site::{Longest, Site, Subject},
    suite::is_free,
    support::{
        MS, SECOND,
        child::{self, Env},
        processes,
    },
};
use redis::Client;
use serde::{Deserialize, Serialize};
use stampede_guard::lock::{LeaseStatus, LockErrorKind};
use std::time::{Duration, Instant};

pub(crate) async fn expired_lock_is_free_and_reported_lost(recipe: &Subject) {
    let site = recipe.shared();
    let guard = site.lock(recipe).ttl(SHORT).wait(30 * SECOND).acquire("expired").await.expect("free");
    if recipe.guarantees().crash_frees {
        guard.lost().await;
        let next = site.lock(recipe).wait(30 * SECOND).acquire("expired").await.expect("its ttl is over");
        next.release().await.expect("held");
        assert_eq!(guard.check().await.expect("an answer"), LeaseStatus::Lost);
        assert_eq!(guard.remaining(), Some(Duration::ZERO));
        return;
    }
    for _ in 0..3 {
        tokio::time::sleep(SHORT).await;
        assert!(!is_free(&site.lock(recipe), "expired").await);
        assert_eq!(guard.check().await.expect("an answer"), LeaseStatus::Held);
    }
    guard.release().await.expect("this recipe has no expiry");
    assert!(is_free(&site.lock(recipe), "expired").await);
}

/// The lock has expired and another holder has it. A recipe that is not owner-safe detects this by the holder's own
/// timer; `foreign_release_is_refused_if_owner_safe` covers the case that the timer cannot detect.
pub(crate) async fn late_release_fails_and_keeps_next_holders_lock(recipe: &Subject) {
    if !recipe.guarantees().crash_frees {
        return; // such a lock never expires, so no release is late
    }
    let site = recipe.shared();
    let former = site.lock(recipe).ttl(SHORT).wait(30 * SECOND).acquire("late").await.expect("free");
    former.lost().await;
    let other = site.lock(recipe);
    let present = other.clone().wait(30 * SECOND).acquire("late").await.expect("expired");
    let late = former.release().await.expect_err("another holder has the lock");
    assert_eq!((late.kind(), late.lock()), (LockErrorKind::Release, "late"), "{late}");
    assert!(!is_free(&other, "late").await);
    present.release().await.expect("held");
}

#[derive(Serialize, Deserialize)]
struct Task {
    recipe: String,
    urls: Vec<String>,
    namespace: String,
}

/// Child process: acquires the lock and holds it until it is killed.
#[tokio::test]
async fn holder() {
    let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
    let recipe = RECIPES.iter().find(|recipe| recipe.name == task.recipe).expect("it is listed");
    let clients = task.urls.iter().map(|url| Client::open(url.as_str()).expect("a URL")).collect();
    let lock = Site::new(clients, task.namespace).lock(recipe).ttl(SHORT).wait(30 * SECOND);
    child::ready_and_wait().await;
    let _guard = lock.acquire("killed").await.expect("free");
    child::report(&());
    std::future::pending::<()>().await;
}

/// Seen to fail if the temporary key for `RENAMENX` has no expiry.
pub(crate) async fn killed_holder_frees_lock_after_ttl_or_never(recipe: &Subject) {
    let site = recipe.shared();
    let urls = site.clients.iter().map(|client| format!("redis://{}", client.get_connection_info().addr())).collect();
    let task = Task { recipe: recipe.name.to_owned(), urls, namespace: site.namespace.clone() };
    let mut holder = processes::spawn(1, "crash::holder", &task).remove(0);
    holder.wait_ready().await;
    let before = Instant::now();
    holder.go().await;
    let () = holder.result().await;
    holder.kill().await;

    let lock = site.lock(recipe);
    if recipe.guarantees().crash_frees {
        let guard = lock.wait(30 * SECOND).acquire("killed").await.expect("freed by its ttl");
        // Redis and the recipes count in whole milliseconds.
        assert!(before.elapsed() >= SHORT - 2 * MS, "acquired although it was held: {:?}", before.elapsed());
        guard.release().await.expect("held");
        return;
    }
    while before.elapsed() < 3 * SHORT {
        assert!(!is_free(&lock, "killed").await, "the killed holder did not release it");
        tokio::time::sleep(5 * MS).await;
    }
    assert_eq!(site.longest().await, [Longest::Ever], "the lock has no expiry");
}

const SHORT: Duration = Duration::from_millis(150);
