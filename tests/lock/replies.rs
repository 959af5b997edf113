//! Commands that are executed, and whose replies are lost together with the connection.

use crate::{
    RECIPES,
    site::{Longest, Site, Subject},
    suite::is_free,
    support::{MS, Relay, SECOND, relay::Mode},
};
use futures_util::future::join_all;
use stampede_guard::{Lock, lock::LockErrorKind};
use std::time::{Duration, Instant};

/// A lock with connections that lose replies, once those connections have been made.
pub(crate) struct Lossy {
    pub(crate) lock: Lock,
    relays: Vec<Relay>,
}

impl Lossy {
    pub(crate) async fn new(site: &Site, recipe: &Subject) -> Self {
        let relays = site.relays().await;
        let lock = site.through(&relays).lock(recipe);
        assert!(is_free(&lock, "connected").await);
        Self { lock, relays }
    }

    /// The next so many replies of each server.
    pub(crate) fn lose(&self, replies: usize) {
        for relay in &self.relays {
            relay.lose_replies(replies);
        }
    }
}

/// One reply, and those of the attempts to make it good as well.
///
/// Seen to fail without asking again, and where an error is taken for "somebody else holds it".
pub(crate) async fn an_acquisition_whose_replies_are_lost_leaves_one_holder_or_none(recipe: &Subject) {
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
            assert!(!free || guard.remaining() == Some(Duration::ZERO), "two hold it");
            drop(guard);
            lossy.lock.shutdown().await;
        }
        // What may be over by the time that it is heard of is nobody's.
        Ok(None) => assert!(before.elapsed() >= ttl(recipe) / 2, "its own lock was taken for somebody else's"),
        Err(error) => {
            assert!(replies > 1 || !promised.replay_safe, "{error}");
            assert_eq!((error.kind(), error.lock()), (LockErrorKind::Store, "lost"), "{error}");
        }
    }
    is_free_in_the_end(&site, recipe).await;
}

/// What is left of it by then is left from the second question on, not from the first. Every way takes 100 ms: the lock is
/// set after 100, asked for again after 500, and known after 700, when it has 500 to go by what is known.
///
/// Seen to fail with what is left counted from the first question.
#[tokio::test]
async fn what_is_asked_for_again_has_the_time_that_is_left() {
    join_all(["set_px", "fused"].map(async |name| {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name).expect("it is listed");
        let lossy = Lossy::new(&recipe.shared(), recipe).await;
        lossy.relays[0].set(Mode::Delay(100 * MS));
        let (lock, before) = (lossy.lock.clone().ttl(1200 * MS), Instant::now());
        lossy.lose(1);
        let granted = lock.try_acquire("slow").await.expect("an answer");
        let elapsed = before.elapsed();
        // To connect anew and to ask takes 400 ms, during which nobody knows what is left.
        assert!(granted.is_some() || elapsed >= 770 * MS, "{name}: not granted after {elapsed:?}");
    }))
    .await;
}

/// Seen to fail without a second release.
pub(crate) async fn a_release_whose_replies_are_lost_frees_it_once(recipe: &Subject) {
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
    // Released once: not for the next one as well.
    let next = site.lock(recipe).wait(30 * SECOND).acquire("lost").await.expect("released, or expired");
    lossy.lock.shutdown().await;
    assert!(!is_free(&site.lock(recipe), "lost").await, "two hold it");
    next.release().await.expect("held");
}

/// By its release, its undoing, or its ttl; for ever where it has none and nobody knows whose it is.
async fn is_free_in_the_end(site: &Site, recipe: &Subject) {
    let lock = site.lock(recipe);
    if recipe.guarantees().crash_frees {
        // Where it has no expiry yet, a contender gives it one: its own.
        let lock = lock.ttl(ttl(recipe)).wait(30 * SECOND);
        drop(lock.acquire("lost").await.expect("freed"));
    } else {
        assert!(!is_free(&lock, "lost").await);
        assert_eq!(site.longest().await, [Longest::Ever]);
    }
}

/// What some of these wait for; those who ask several servers within it need more than they wait.
fn ttl(recipe: &Subject) -> Duration {
    if recipe.servers > 1 { 2 * SECOND } else { 400 * MS }
}
