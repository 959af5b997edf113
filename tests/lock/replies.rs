//! Commands that the server executes, but whose replies are lost together with the connection.

use crate::{
    site::{Longest, Site, Subject},
    suite::is_free,
    support::{MS, Relay, SECOND},
};
use futures_util::future::join_all;
use stampede_guard::{Lock, lock::LockErrorKind};
use std::time::{Duration, Instant};

/// A lock whose connections, once established, lose replies on request.
pub(crate) struct Lossy {
    pub(crate) lock: Lock,
    pub(crate) relays: Vec<Relay>,
}

impl Lossy {
    pub(crate) async fn new(site: &Site, recipe: &Subject) -> Self {
        let relays = site.relays().await;
        let lock = site.through(&relays).lock(recipe);
        assert!(is_free(&lock, "connected").await);
        Self { lock, relays }
    }

    /// Drops the next `replies` replies of each server.
    pub(crate) fn lose(&self, replies: usize) {
        for relay in &self.relays {
            relay.lose_replies(replies);
        }
    }
}

/// Loses one to four replies, so that the replies to repeated attempts are lost too.
///
/// Seen to fail without a second attempt, and if an error is taken for a busy lock.
pub(crate) async fn lost_acquire_replies_leave_at_most_one_holder(recipe: &Subject) {
    join_all((1..=4).map(|replies| lost_while_acquiring(recipe, replies))).await;
}

async fn lost_while_acquiring(recipe: &Subject, replies: usize) {
    let site = recipe.shared();
    let (lossy, promised) = (Lossy::new(&site, recipe).await, recipe.guarantees());
    let lock = lossy.lock.clone().ttl(ttl(recipe));
    let before = Instant::now();
    lossy.lose(replies);
    let granted = lock.try_acquire("lost").await;
    lossy.lose(0);
    match granted {
        Ok(Some(guard)) => {
            let free = is_free(&site.lock(recipe), "lost").await;
            assert!(!free || guard.remaining() == Some(Duration::ZERO), "two holders");
            drop(guard);
            lossy.lock.drain().await;
        }
        // A grant that may have expired when its reply arrives is reported as busy.
        Ok(None) => assert!(before.elapsed() >= ttl(recipe) / 2, "its own lock counted as busy"),
        Err(error) => {
            assert!(replies > 1 || !promised.replay_safe, "{error}");
            assert_eq!((error.kind(), error.lock()), (LockErrorKind::Store, "lost"), "{error}");
        }
    }
    is_free_in_the_end(&site, recipe).await;
}

/// Seen to fail without a second release.
pub(crate) async fn lost_release_replies_free_lock_once(recipe: &Subject) {
    join_all((1..=4).map(|replies| lost_while_releasing(recipe, replies))).await;
}

async fn lost_while_releasing(recipe: &Subject, replies: usize) {
    let site = recipe.shared();
    let (lossy, promised) = (Lossy::new(&site, recipe).await, recipe.guarantees());
    let before = Instant::now();
    let guard = lossy.lock.clone().ttl(ttl(recipe)).acquire("lost").await.expect("free");
    lossy.lose(replies);
    let released = guard.release().await;
    lossy.lose(0);
    if let Err(error) = released
        && before.elapsed() < ttl(recipe)
    {
        assert!(replies > 1 || !promised.replay_safe, "{error}");
        assert_eq!((error.kind(), error.lock()), (LockErrorKind::Store, "lost"), "{error}");
    }
    // The lost release must not also release the lock of the next holder.
    let next = site.lock(recipe).wait(30 * SECOND).acquire("lost").await.expect("released, or expired");
    lossy.lock.drain().await;
    assert!(!is_free(&site.lock(recipe), "lost").await, "two holders");
    next.release().await.expect("held");
}

/// Asserts that the lock becomes free by its release or by its TTL. Without a TTL, a lock that lost its owner stays
/// forever.
async fn is_free_in_the_end(site: &Site, recipe: &Subject) {
    let lock = site.lock(recipe);
    if recipe.guarantees().crash_frees {
        // If the lock has no expiry yet, a contender sets its own TTL.
        let lock = lock.ttl(ttl(recipe)).wait(30 * SECOND);
        drop(lock.acquire("lost").await.expect("freed"));
    } else {
        assert!(!is_free(&lock, "lost").await);
        assert_eq!(site.longest().await, [Longest::Ever]);
    }
}

/// Lock TTL, which some cases wait for. Recipes with several servers need more time to acquire within it.
fn ttl(recipe: &Subject) -> Duration {
    if recipe.servers > 1 { 2 * SECOND } else { 400 * MS }
}
