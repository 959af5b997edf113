//! Waiters and those who wake them, under every kind of schedule. Nobody here polls: a wake-up that is lost is a deadlock.

use super::*;
use crate::{key::Key, sync::explore};
use futures_util::FutureExt;
use shuttle::{
    future::{block_on, spawn},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

fn at() -> Address {
    Address::new("sg", 0, Key::from("k"))
}

/// What a store is to its waiters: it has the answer or not.
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

fn is_empty(wakes: &Wakes) -> bool {
    wakes.lock().is_empty()
}

/// Seen to deadlock when they ask before they listen.
fn whoever_listens_and_then_asks_is_woken(wake: fn(&Wakes)) {
    explore(move || {
        let (wakes, answer) = (Wakes::new(), Answer::default());
        let waiters = [(); 2].map(|()| {
            let (wakes, answer) = (wakes.clone(), answer.clone());
            spawn(async move {
                let mut listener = wakes.listen(&at());
                while !answer.is_there() {
                    listener.woken().await;
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
fn whoever_listens_and_then_asks_is_woken_by_a_fill() {
    whoever_listens_and_then_asks_is_woken(|wakes| wakes.wake(at().hash()));
}

#[test]
fn whoever_listens_and_then_asks_is_woken_by_an_invalidation() {
    whoever_listens_and_then_asks_is_woken(|wakes| wakes.gone(at().hash()));
}

#[test]
fn whoever_listens_and_then_asks_is_woken_with_everybody() {
    whoever_listens_and_then_asks_is_woken(Wakes::wake_all);
}

/// Seen to fail when `woken` takes note of what it has heard before it returns, and when `gone` is a flag of the last
/// wake-up and not a count.
#[test]
fn an_invalidation_among_wake_ups_is_heard_by_whoever_drops_the_wait_half_way() {
    explore(|| {
        let (wakes, listens, answer) = (Wakes::new(), Answer::default(), Answer::default());
        let waiter = spawn({
            let (wakes, listens, answer) = (wakes.clone(), listens.clone(), answer.clone());
            async move {
                let mut listener = wakes.listen(&at());
                listens.give();
                while !answer.is_there() {
                    // Polled once and dropped, then begun anew.
                    let dropped = match listener.woken().now_or_never() {
                        Some(dropped) => dropped,
                        None => listener.woken().await,
                    };
                    if dropped {
                        return true;
                    }
                }
                listener.woken().now_or_never() == Some(true)
            }
        });
        let other = thread::spawn({
            let wakes = wakes.clone();
            move || wakes.wake(at().hash())
        });
        let in_time = listens.is_there();
        wakes.gone(at().hash());
        other.join().unwrap();
        answer.give();
        wakes.wake(at().hash());
        let heard = block_on(waiter).unwrap();
        assert!(heard || !in_time);
        assert!(is_empty(&wakes));
    });
}

/// Seen to deadlock when the listener that leaves takes the seat with it, and to leave one behind when it does not count.
#[test]
fn the_last_one_to_leave_takes_nobody_else_along() {
    explore(|| {
        let (wakes, answer) = (Wakes::new(), Answer::default());
        let passers_by = [(); 2].map(|()| {
            let wakes = wakes.clone();
            thread::spawn(move || drop(wakes.listen(&at())))
        });
        let (listening, given) = (wakes.clone(), answer.clone());
        let waiter = spawn(async move {
            let mut listener = listening.listen(&at());
            while !given.is_there() {
                listener.woken().await;
            }
        });
        answer.give();
        wakes.wake(at().hash());
        block_on(waiter).unwrap();
        for passer_by in passers_by {
            passer_by.join().unwrap();
        }
        assert!(is_empty(&wakes));
    });
}

/// Seen to fail when a token is not listed before it is handed out, or stays listed after its listener.
#[test]
fn a_ghost_is_a_holder_that_was_given_up_and_no_other() {
    explore(|| {
        let wakes = Wakes::new();
        // The lease as the store sees it: who holds it, and what its holder had given up by then.
        let (held, given_up) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
        let leader = thread::spawn({
            let (wakes, held, given_up) = (wakes.clone(), held.clone(), given_up.clone());
            move || {
                let mut listener = wakes.listen(&at());
                let first = listener.token();
                *held.lock().unwrap() = Some(first);
                given_up.lock().unwrap().push(first);
                let second = listener.token();
                *held.lock().unwrap() = Some(second);
                given_up.lock().unwrap().push(second);
                drop(listener);
                [first, second]
            }
        });
        let waiter = thread::spawn({
            let wakes = wakes.clone();
            move || {
                let mut listener = wakes.listen(&at());
                let own = listener.token();
                let holder = *held.lock().unwrap();
                if let Some(holder) = holder
                    && listener.is_ghost(holder)
                {
                    assert!(given_up.lock().unwrap().contains(&holder), "it was alive");
                }
                assert!(!listener.is_ghost(own));
            }
        });
        let mut late = wakes.listen(&at());
        let own = late.token();
        for token in leader.join().unwrap() {
            assert!(late.is_ghost(token));
        }
        waiter.join().unwrap();
        assert!(!late.is_ghost(own));
        assert!(!late.is_ghost(Token::unique(Inbox::unique())), "of another process");
        drop(late);
        assert!(is_empty(&wakes));
    });
}
