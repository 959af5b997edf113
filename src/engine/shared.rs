//! One future, awaited by many.
//!
//! Not `futures_util`'s `Shared`, in which a wake-up can be lost (futures-rs #2706): it comes while one caller polls, so
//! it goes to those who were there before. Whoever comes during that poll finds the future taken and sleeps; and if the
//! one that was woken goes away before it polls again, nobody does. Here whoever comes waits for that poll to end, and
//! polls after it.

use crate::{
    store::BoxFuture,
    sync::{Mutex, MutexGuard},
};
use std::{
    collections::BTreeMap,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, PoisonError, Weak},
    task::{Context, Poll, Wake, Waker},
};

/// A share in the future. It is polled by whoever is there, and dropped with the last of them.
pub(crate) struct Shared<T> {
    work: Arc<Work<T>>,
    /// Among those who wait, once it has been polled.
    number: Option<u64>,
}

/// Comes by a share while somebody else has one.
pub(crate) struct WeakShared<T>(Weak<Work<T>>);

struct Work<T> {
    progress: Mutex<Progress<T>>,
    waiting: Arc<Waiting>,
}

enum Progress<T> {
    Running(BoxFuture<'static, T>),
    Done(T),
}

/// Everybody who is to be woken; the future sees them as one.
#[derive(Default)]
struct Waiting {
    wakers: Mutex<Wakers>,
}

/// In the order in which they came, which is that of their numbers. One alone, as it is with most, takes no map.
#[derive(Default)]
struct Wakers {
    one: Option<(u64, Waker)>,
    more: BTreeMap<u64, Waker>,
    last: u64,
}

impl<T> Shared<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        let progress = Mutex::new(Progress::Running(Box::pin(future)));
        Self { work: Arc::new(Work { progress, waiting: Arc::default() }), number: None }
    }

    pub(crate) fn downgrade(&self) -> WeakShared<T> {
        WeakShared(Arc::downgrade(&self.work))
    }
}

impl<T> WeakShared<T> {
    pub(crate) fn upgrade(&self) -> Option<Shared<T>> {
        self.0.upgrade().map(|work| Shared { work, number: None })
    }
}

impl<T: Clone> Future for Shared<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Self { work, number } = self.get_mut();
        // Before the future is polled: a wake-up from now on is for this caller too, an earlier one shows in the poll.
        work.waiting.put(number, cx.waker());
        let mut progress = lock(&work.progress);
        let done = match &mut *progress {
            Progress::Done(done) => return Poll::Ready(done.clone()),
            Progress::Running(future) => {
                let waker = Waker::from(work.waiting.clone());
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(done) => done,
                    Poll::Pending => return Poll::Pending,
                }
            }
        };
        *progress = Progress::Done(done.clone());
        drop(progress);
        work.waiting.wake_by_ref();
        Poll::Ready(done)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let _waker = lock(&self.work.waiting.wakers).remove(number);
        }
    }
}

impl Waiting {
    fn put(&self, number: &mut Option<u64>, waker: &Waker) {
        let mut wakers = lock(&self.wakers);
        let number = *number.get_or_insert_with(|| {
            wakers.last += 1;
            wakers.last
        });
        let replaced = wakers.insert(number, waker.clone());
        drop(wakers); // first: what a waker drops is not ours
        drop(replaced);
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let (one, mut woken) = lock(&self.wakers).take();
        match one {
            Some((_, waker)) if woken.is_empty() => return waker.wake(),
            Some((number, waker)) => _ = woken.insert(number, waker),
            None => {}
        }
        woken.into_values().for_each(Waker::wake);
    }
}

impl Wakers {
    /// In place of the one of the same number, which is returned.
    fn insert(&mut self, number: u64, waker: Waker) -> Option<Waker> {
        match &mut self.one {
            Some((one, known)) if *one == number => Some(mem::replace(known, waker)),
            None if !self.more.contains_key(&number) => {
                self.one = Some((number, waker));
                None
            }
            _ => self.more.insert(number, waker),
        }
    }

    fn remove(&mut self, number: u64) -> Option<Waker> {
        match self.one.take_if(|(one, _)| *one == number) {
            Some((_, waker)) => Some(waker),
            None => self.more.remove(&number),
        }
    }

    fn take(&mut self) -> (Option<(u64, Waker)>, BTreeMap<u64, Waker>) {
        (self.one.take(), mem::take(&mut self.more))
    }
}

/// The future may panic while it is polled, and then does so for the next one too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
