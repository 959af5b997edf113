//! Holders that are gone, or late.

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
use stampede_guard::lock::{Hold, LockErrorKind};
use std::time::{Duration, Instant};

pub(crate) async fn what_expires_is_free_and_known_to_be_lost(recipe: &Subject) {
    let site = recipe.shared();
    let guard = site.lock(recipe).ttl(SHORT).wait(30 * SECOND).acquire("expired").await.expect("free");
    if recipe.guarantees().crash_frees {
        guard.lost().await;
        site.lock(recipe).wait(30 * SECOND).check("expired").await.expect("its time is over");
        assert_eq!(guard.check().await.expect("an answer"), Hold::Lost);
        assert_eq!(guard.remaining(), Some(Duration::ZERO));
        return;
    }
    for _ in 0..3 {
        tokio::time::sleep(SHORT).await;
        assert!(!is_free(&site.lock(recipe), "expired").await);
        assert_eq!(guard.check().await.expect("an answer"), Hold::Held);
    }
    guard.release().await.expect("it does not end by itself");
    assert!(is_free(&site.lock(recipe), "expired").await);
}

/// It has expired, and somebody else has it. What is not owner-safe goes by its own timer here, which tells it as well;
/// what that does not tell is in `a_foreign_release_is_refused_or_happens`.
pub(crate) async fn a_late_release_says_so_and_frees_nobody_elses(recipe: &Subject) {
    if !recipe.guarantees().crash_frees {
        return; // never late
    }
    let site = recipe.shared();
    let former = site.lock(recipe).ttl(SHORT).wait(30 * SECOND).acquire("late").await.expect("free");
    former.lost().await;
    let other = site.lock(recipe);
    let present = other.clone().wait(30 * SECOND).acquire("late").await.expect("expired");
    let late = former.release().await.expect_err("it is somebody else's");
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

/// What the child does: it acquires, and holds until it is killed.
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

/// Seen to fail without an expiry of the temporary key.
pub(crate) async fn a_killed_holder_frees_it_with_its_ttl_or_never(recipe: &Subject) {
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
        assert!(!is_free(&lock, "killed").await, "nobody has released it");
        tokio::time::sleep(5 * MS).await;
    }
    assert_eq!(site.longest().await, [Longest::Ever], "for ever");
}

const SHORT: Duration = Duration::from_millis(150);
