//! Waiters and wake-ups under many schedules. No waiter here polls, so a lost wake-up is a deadlock.

use super::*;
use crate::{key::Key, sync::schedules::explore};
use futures_util::FutureExt;
use shuttle::{
    future::{block_on, spawn},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

fn key() -> CacheKey {
    CacheKey::new("sg", 0, Key::from("k"))
}

/// The state of the store as a waiter sees it: the answer is there or not.
#[derive(Clone, Default)]
struct Answer(Arc<AtomicBool>);

impl Answer {
    fn give(&self) {
        self.0.store(true, SeqCst);
    }

    fn is_there(&self) -> bool {
        self.0.load(SeqCst)
    }
}

fn is_empty(wakes: &WakeRegistry) -> bool {
    wakes.table.lock().is_empty()
}

/// Seen to deadlock when the waiters ask before they listen.
fn listens_before_it_asks(wake: fn(&WakeRegistry)) {
    explore(move || {
        let (wakes, answer) = (WakeRegistry::new(), Answer::default());
        let waiters = [(); 2].map(|()| {
            let (wakes, answer) = (wakes.clone(), answer.clone());
            spawn(async move {
                let mut listener = wakes.listen(&key());
                while !answer.is_there() {
                    listener.notified().await;
                }
            })
        });
        answer.give();
        wake(&wakes);
        for waiter in waiters {
            block_on(waiter).unwrap();
        }
        assert!(is_empty(&wakes));
    });
}

#[test]
fn waiter_that_listens_first_is_woken_by_a_fill() {
    listens_before_it_asks(|wakes| wakes.wake(key().hash()));
}

#[test]
fn waiter_that_listens_first_is_woken_by_an_invalidation() {
    listens_before_it_asks(|wakes| wakes.invalidated(key().hash()));
}

#[test]
fn waiter_that_listens_first_is_woken_by_wake_all() {
    listens_before_it_asks(WakeRegistry::wake_all);
}

/// Seen to fail when `notified` records the wake-up before it returns. Also when `invalidations` is a flag of
/// the last wake-up instead of a count.
#[test]
fn waiter_learns_of_invalidation_after_its_wait_was_dropped() {
    explore(|| {
        let (wakes, listens, answer) = (WakeRegistry::new(), Answer::default(), Answer::default());
        let waiter = spawn({
            let (wakes, listens, answer) = (wakes.clone(), listens.clone(), answer.clone());
            async move {
                let mut listener = wakes.listen(&key());
                listens.give();
                while !answer.is_there() {
                    // Polled once and dropped, then started again.
                    let dropped = match listener.notified().now_or_never() {
                        Some(dropped) => dropped,
                        None => listener.notified().await,
                    };
                    if dropped {
                        return true;
                    }
                }
                listener.notified().now_or_never() == Some(true)
            }
        });
        let other = thread::spawn({
            let wakes = wakes.clone();
            move || wakes.wake(key().hash())
        });
        let in_time = listens.is_there();
        wakes.invalidated(key().hash());
        other.join().unwrap();
        answer.give();
        wakes.wake(key().hash());
        let count = block_on(waiter).unwrap();
        assert!(count || !in_time);
        assert!(is_empty(&wakes));
    });
}

/// Seen to deadlock when a dropped listener removes the shared subscription, and to leak one when listeners are not
/// counted.
#[test]
fn dropped_listener_leaves_other_listeners_subscribed() {
    explore(|| {
        let (wakes, answer) = (WakeRegistry::new(), Answer::default());
        let passers_by = [(); 2].map(|()| {
            let wakes = wakes.clone();
            thread::spawn(move || drop(wakes.listen(&key())))
        });
        let (listening, given) = (wakes.clone(), answer.clone());
        let waiter = spawn(async move {
            let mut listener = listening.listen(&key());
            while !given.is_there() {
                listener.notified().await;
            }
        });
        answer.give();
        wakes.wake(key().hash());
        block_on(waiter).unwrap();
        for passer_by in passers_by {
            passer_by.join().unwrap();
        }
        assert!(is_empty(&wakes));
    });
}

/// Seen to fail when a token is listed after it is handed out, or stays listed after its listener.
#[test]
fn listener_reports_only_given_up_tokens_as_orphaned() {
    explore(|| {
        let wakes = WakeRegistry::new();
        // The store's view: the holder of the lease, and the tokens that had been given up by then.
        let (held, given_up) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
        let leader = thread::spawn({
            let (wakes, held, given_up) = (wakes.clone(), held.clone(), given_up.clone());
            move || {
                let mut listener = wakes.listen(&key());
                let first = listener.token();
                *held.lock() = Some(first);
                given_up.lock().push(first);
                let second = listener.token();
                *held.lock() = Some(second);
                given_up.lock().push(second);
                drop(listener);
                [first, second]
            }
        });
        let waiter = thread::spawn({
            let wakes = wakes.clone();
            move || {
                let mut listener = wakes.listen(&key());
                let own = listener.token();
                let holder = *held.lock();
                if let Some(holder) = holder
                    && listener.is_orphaned_lease(holder)
                {
                    assert!(given_up.lock().contains(&holder), "a live token was reported as orphaned");
                }
                assert!(!listener.is_orphaned_lease(own));
            }
        });
        let mut late = wakes.listen(&key());
        let own = late.token();
        for token in leader.join().unwrap() {
            assert!(late.is_orphaned_lease(token));
        }
        waiter.join().unwrap();
        assert!(!late.is_orphaned_lease(own));
        assert!(!late.is_orphaned_lease(Token::unique(Inbox::unique())), "the token is of another process");
        drop(late);
        assert!(is_empty(&wakes));
    });
}
