//! One future, awaited by many callers.
//!
//! Not `futures_util`'s `Shared`, which can lose a wake-up (futures-rs #2706). A wake-up that arrives while caller A
//! polls goes only to the callers that registered before that poll. Caller B, which arrives during the poll, finds the
//! future taken and sleeps. If the notified caller is dropped before it polls again, the future is never polled. Here B
//! waits until A's poll has ended, and polls after it.
//!
//! Not tokio's `OnceCell`: if the caller that polls is dropped, the next caller begins the work again.

use super::mutex::Mutex;
use futures_util::future::BoxFuture;
use std::{
    collections::BTreeMap,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
};

/// A handle of the future. Any of the handles polls it; it is dropped with the last of them. If a poll panics, the next
/// handle polls the future again.
pub(crate) struct Shared<T> {
    work: Arc<Work<T>>,
    /// The number of this handle among the waiting ones, once it has been polled.
    number: Option<u64>,
}

/// A weak handle: upgrades while another handle exists.
pub(crate) struct WeakShared<T>(Weak<Work<T>>);

struct Work<T> {
    progress: Mutex<Progress<T>>,
    waiting: Arc<Waiting>,
}

enum Progress<T> {
    Running(BoxFuture<'static, T>),
    Done(T),
}

/// The wakers of all waiting handles, which the future sees as one waker.
#[derive(Default)]
struct Waiting {
    wakers: Mutex<Wakers>,
}

/// The wakers in the order of their numbers, which is the order of their arrival. PERF: a single one, the usual case,
/// needs no map.
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

    /// Reports whether the future has completed, with an output for which `wanted` is true.
    pub(crate) fn is_done_and(&self, wanted: impl FnOnce(&T) -> bool) -> bool {
        matches!(&*self.work.progress.lock(), Progress::Done(done) if wanted(done))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { work: self.work.clone(), number: None }
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
        // Dropped after the lock, because dropping a waker may run foreign code.
        let mut _replaced = None;
        let mut progress = work.progress.lock();
        let done = match &mut *progress {
            Progress::Done(done) => return Poll::Ready(done.clone()),
            Progress::Running(future) => {
                // Registered before the future is polled: a later wake-up reaches this caller too, and an earlier one
                // shows in the poll.
                _replaced = work.waiting.put(number, cx.waker());
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
            let _waker = self.work.waiting.wakers.lock().remove(number);
        }
    }
}

impl Waiting {
    /// Registers the waker, and returns the one that it replaces.
    fn put(&self, number: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        let mut wakers = self.wakers.lock();
        let number = *number.get_or_insert_with(|| {
            wakers.last += 1;
            wakers.last
        });
        wakers.insert(number, waker.clone())
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let (one, mut notified) = self.wakers.lock().take();
        match one {
            Some((_, waker)) if notified.is_empty() => return waker.wake(),
            Some((number, waker)) => _ = notified.insert(number, waker),
            None => {}
        }
        notified.into_values().for_each(Waker::wake);
    }
}

impl Wakers {
    /// Inserts the waker, and returns the previous one with this number.
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
