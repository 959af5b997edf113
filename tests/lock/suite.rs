//! `lock_suite!`: the same cases for every recipe, and each of its claims.

use crate::{
    site::{LONG, Longest, Site, Subject},
    support::MS,
};
use stampede_guard::{
    Lock,
    lock::{Hold, LockErrorKind},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::task::{JoinSet, yield_now};

/// Instantiates every case for each of the recipes.
#[macro_export]
macro_rules! lock_suite {
    ($($name:ident: $label:literal, $servers:literal, $make:expr;)*) => {
        /// In the order of the table.
        pub(crate) const RECIPES: &[Subject] =
            &[$(Subject { name: stringify!($name), label: $label, servers: $servers, make: $make }),*];

        $(mod $name {
            $crate::lock_suite!($name;
                suite::what_is_held_is_busy_and_what_is_released_is_free
                suite::a_dropped_guard_is_released_behind
                suite::it_is_looked_at_without_being_taken
                suite::what_remains_of_it_is_known
                suite::an_extension_prolongs_it_or_is_refused
                suite::a_foreign_release_is_refused_or_happens
                suite::ten_thousand_rounds_have_one_holder_each
                crash::what_expires_is_free_and_known_to_be_lost
                crash::a_late_release_says_so_and_frees_nobody_elses
                crash::a_killed_holder_frees_it_with_its_ttl_or_never
                replies::an_acquisition_whose_replies_are_lost_leaves_one_holder_or_none
                replies::a_release_whose_replies_are_lost_frees_it_once
                answers::what_cannot_be_a_lock_is_refused_and_nothing_is_sent
                answers::a_server_that_is_down_is_not_a_lock_that_is_held
                guarantees::a_crash_frees_it_as_claimed
                guarantees::only_its_owner_releases_it_as_claimed
                guarantees::its_holder_prolongs_it_as_claimed
                guarantees::its_name_tells_holders_apart_as_claimed
                guarantees::what_is_sent_twice_counts_once_as_claimed
                guarantees::no_clock_of_a_host_is_sent_as_claimed
                guarantees::its_connection_may_be_shared_as_claimed
                guarantees::it_has_one_slot_of_its_own_as_claimed
            );
        })*
    };
    ($name:ident; $($module:ident::$case:ident)*) => {$(
        #[tokio::test]
        async fn $case() {
            let recipe = $crate::RECIPES.iter().find(|recipe| recipe.name == stringify!($name));
            $crate::$module::$case(recipe.expect("it is listed")).await;
        }
    )*};
}

/// Whether somebody else would get it. If so, it is given back.
pub(crate) async fn is_free(lock: &Lock, name: &str) -> bool {
    match lock.try_acquire(name).await.expect("an answer") {
        Some(guard) => guard.release().await.is_ok(),
        None => false,
    }
}

pub(crate) async fn what_is_held_is_busy_and_what_is_released_is_free(recipe: &Subject) {
    let site = recipe.shared();
    let [mine, other] = [site.lock(recipe), site.lock(recipe)];
    for _ in 0..3 {
        let guard = mine.acquire("held").await.expect("free");
        for lock in [&mine, &other] {
            assert!(lock.try_acquire("held").await.expect("an answer").is_none());
            let busy = lock.clone().retries(2).acquire("held").await.expect_err("held");
            assert_eq!((busy.kind(), busy.lock()), (LockErrorKind::Acquisition, "held"), "{busy}");
            assert!(busy.to_string().contains("somebody else held it at 3 attempts"), "{busy}");
        }
        assert!(is_free(&other, "another").await, "names are locks of their own");
        guard.release().await.expect("held until now");
        assert!(is_free(&other, "held").await);
    }
}

pub(crate) async fn a_dropped_guard_is_released_behind(recipe: &Subject) {
    let site = recipe.shared();
    let lock = site.lock(recipe);
    drop(lock.acquire("dropped").await.expect("free"));
    lock.shutdown().await;
    assert!(is_free(&site.lock(recipe), "dropped").await);
}

pub(crate) async fn it_is_looked_at_without_being_taken(recipe: &Subject) {
    let site = recipe.shared();
    let [mine, other] = [site.lock(recipe), site.lock(recipe)];
    other.check("looked").await.expect("nobody has it");
    let guard = mine.acquire("looked").await.expect("to look at it is not to take it");
    assert_eq!(guard.check().await.expect("an answer"), Hold::Held);
    let held = other.check("looked").await.expect_err("held");
    assert_eq!((held.kind(), held.lock()), (LockErrorKind::Held, "looked"), "{held}");

    let patient = other.clone().wait(LONG);
    let waits = tokio::spawn(async move { patient.check("looked").await });
    guard.release().await.expect("held");
    waits.await.expect("no panic").expect("released");

    let guard = mine.acquire("looked").await.expect("free");
    site.delete(0..).await;
    assert_eq!(guard.check().await.expect("an answer"), Hold::Lost);
    guard.lost().await;
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
}

pub(crate) async fn what_remains_of_it_is_known(recipe: &Subject) {
    let guard = recipe.shared().lock(recipe).acquire("remains").await.expect("free");
    match guard.remaining() {
        Some(remaining) => assert!(recipe.guarantees().crash_frees && remaining > LONG / 2 && remaining <= LONG),
        None => assert!(!recipe.guarantees().crash_frees, "it ends by itself"),
    }
    guard.release().await.expect("held");
}

pub(crate) async fn an_extension_prolongs_it_or_is_refused(recipe: &Subject) {
    let site = recipe.shared();
    let guard = site.lock(recipe).acquire("extended").await.expect("free");
    if !recipe.guarantees().extendable {
        let before = guard.remaining();
        for refused in [guard.extend(10 * LONG).await, guard.keep_alive()] {
            let refused = refused.expect_err("not extendable");
            assert_eq!((refused.kind(), refused.lock()), (LockErrorKind::Recipe, "extended"), "{refused}");
        }
        assert!(guard.remaining() <= before);
        return guard.release().await.expect("still held");
    }
    guard.extend(10 * LONG).await.expect("held");
    assert!(guard.remaining().expect("it ends") > 5 * LONG);
    assert!(site.longest().await.iter().all(|left| *left > Longest::For(5 * LONG)));
    site.delete(0..).await;
    let lost = guard.extend(LONG).await.expect_err("it is gone");
    assert_eq!((lost.kind(), lost.lock()), (LockErrorKind::Extend, "extended"), "{lost}");
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
}

/// The lock is deleted under its holder, and somebody else's by the time it is released.
///
/// Seen to fail with a release script that does not compare.
pub(crate) async fn a_foreign_release_is_refused_or_happens(recipe: &Subject) {
    let Foreign { refused, stands } = foreign_release(&recipe.shared(), recipe).await;
    let safe = recipe.guarantees().owner_safe;
    assert_eq!((refused, stands), (safe, safe));
}

/// What comes of a foreign release.
pub(crate) struct Foreign {
    /// Who released what is somebody else's was told so.
    pub(crate) refused: bool,
    /// The other one's lock.
    pub(crate) stands: bool,
}

pub(crate) async fn foreign_release(site: &Site, recipe: &Subject) -> Foreign {
    let former = site.lock(recipe).acquire("foreign").await.expect("free");
    site.delete(0..).await;
    let other = site.lock(recipe);
    let present = other.acquire("foreign").await.expect("deleted");
    let refused = match former.release().await {
        Ok(()) => false,
        Err(error) => error.kind() == LockErrorKind::Release,
    };
    let stands = other.try_acquire("foreign").await.expect("an answer").is_none();
    if stands {
        present.release().await.expect("held");
    }
    Foreign { refused, stands }
}

/// Seen to fail with a counter that takes 2 for 1, and with a release by `WATCH` that takes every refused `EXEC` for a
/// loss.
pub(crate) async fn ten_thousand_rounds_have_one_holder_each(recipe: &Subject) {
    let site = recipe.shared();
    let (inside, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (inside, total) = (inside.clone(), total.clone());
        let lock = site.lock(recipe).wait(2 * LONG).delay(10 * MS);
        tasks.spawn(async move {
            for _ in 0..ROUNDS / TASKS {
                let guard = lock.acquire("rounds").await.expect("in time");
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold it");
                let seen = total.load(SeqCst);
                yield_now().await;
                total.store(seen + 1, SeqCst);
                inside.fetch_sub(1, SeqCst);
                guard.release().await.expect("held until now");
            }
        });
    }
    while let Some(end) = tasks.join_next().await {
        end.expect("one holder at a time");
    }
    assert_eq!(total.load(SeqCst), ROUNDS);
    assert!(is_free(&site.lock(recipe), "rounds").await);
    // No temporary keys, no queues. The count of those who hold it is 0.
    let names = site.names().await.concat();
    assert!(names.is_empty() || site.values().await == [[b"0"]], "left behind: {names:?}");
}

const TASKS: usize = 4;
const ROUNDS: usize = 10_000;
