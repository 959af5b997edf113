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
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
};

/// A handle of the future. Any of the handles polls it; it is dropped with the last of them.
pub(crate) struct Shared<T> {
    work: Arc<Work<T>>,
    /// The number of this handle among the waiting ones, once it has been polled.
    number: Option<usize>,
}

/// A weak handle: upgrades while another handle exists.
#[derive(Debug)]
pub(crate) struct WeakShared<T>(Weak<Work<T>>);

struct Work<T> {
    progress: Mutex<Progress<T>>,
    waiting: Arc<Waiting>,
}

enum Progress<T> {
    Running(BoxFuture<'static, T>),
    Done(T),
}

/// The wakers of all waiting handles, which the future sees as one waker. The place of each one is the number of its
/// handle, so they are in the order of their arrival.
#[derive(Default)]
struct Waiting(Mutex<Vec<Option<Waker>>>);

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

    /// Returns the number of handles.
    pub(crate) fn handles(&self) -> usize {
        self.0.strong_count()
    }
}

impl<T: Clone> Future for Shared<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Self { work, number } = self.get_mut();
        let mut _replaced = None; // dropped after the lock, because to drop a waker may run foreign code
        let mut progress = work.progress.lock();
        let done = match &mut *progress {
            Progress::Done(done) => {
                *number = None; // the caller that polled the future to its end wakes all waiting callers
                return Poll::Ready(done.clone());
            }
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
        // This caller returns with the result. To wake it too would poll its task once for nothing.
        let _own = work.waiting.remove(number);
        let notified = mem::take(&mut *work.waiting.0.lock()); // no handle registers any more
        notified.into_iter().flatten().for_each(Waker::wake);
        Poll::Ready(done)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let _waker = self.work.waiting.remove(&mut self.number);
    }
}

impl Waiting {
    /// Registers the waker, and returns the waker that it replaces.
    fn put(&self, number: &mut Option<usize>, waker: &Waker) -> Option<Waker> {
        let mut wakers = self.0.lock();
        if let Some(number) = *number {
            return wakers[number].replace(waker.clone());
        }
        *number = Some(wakers.len());
        wakers.push(Some(waker.clone()));
        None
    }

    /// Removes the waker with this number, if it is still waiting, and the number.
    fn remove(&self, number: &mut Option<usize>) -> Option<Waker> {
        self.0.lock().get_mut(number.take()?)?.take()
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let notified: Vec<_> = self.0.lock().iter_mut().map(Option::take).collect();
        notified.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::explore;
    use shuttle::{
        future::{block_on, spawn},
        thread,
    };
    use std::future::poll_fn;

    /// What a future awaits, until the test opens it.
    #[derive(Clone, Default)]
    struct Reply(Arc<Mutex<(bool, Vec<Waker>)>>);

    impl Reply {
        fn arrive(&self) {
            self.0.lock().0 = true;
            let wakers = mem::take(&mut self.0.lock().1);
            wakers.into_iter().for_each(Waker::wake);
        }

        async fn arrived(self) {
            poll_fn(|cx| {
                let (has_arrived, wakers) = &mut *self.0.lock();
                wakers.clear(); // a second poll registers once, and none after the reply
                match has_arrived {
                    true => Poll::Ready(()),
                    false => {
                        wakers.push(cx.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await;
        }
    }

    /// Writes its number down when it is woken.
    struct Noted(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Noted {
        fn wake(self: Arc<Self>) {
            self.1.lock().push(self.0);
        }
    }

    /// Polls the handle with a waker that notes the number.
    fn poll_as(number: usize, woken: &Arc<Mutex<Vec<usize>>>, shared: &mut Shared<()>) -> Poll<()> {
        let waker = Waker::from(Arc::new(Noted(number, woken.clone())));
        Pin::new(shared).poll(&mut Context::from_waker(&waker))
    }

    /// Seen to fail when the caller that polls the future to its end is woken like all other callers.
    #[test]
    fn shared_future_does_not_wake_the_caller_that_returns() {
        let (reply, woken) = (Reply::default(), Arc::default());
        let shared = Shared::new(reply.clone().arrived());
        let mut callers = [(); 4].map(|()| shared.clone());
        for (number, caller) in callers.iter_mut().enumerate() {
            assert!(poll_as(number, &woken, caller).is_pending());
        }
        reply.0.lock().0 = true;
        assert!(poll_as(2, &woken, &mut callers[2]).is_ready());
        assert_eq!(*woken.lock(), [0, 1, 3]);
    }

    /// Seen to fail when a waker is added at the end, because woken callers register again in any order.
    #[test]
    fn callers_are_woken_in_the_order_of_their_arrival() {
        let (reply, woken) = (Reply::default(), Arc::default());
        let shared = Shared::new(reply.clone().arrived());
        let mut callers = [(); 3].map(|()| shared.clone());
        for number in [0, 1, 2] {
            assert!(poll_as(number, &woken, &mut callers[number]).is_pending());
        }
        shared.work.waiting.wake_by_ref();
        for number in [2, 0, 1, 0] {
            assert!(poll_as(number, &woken, &mut callers[number]).is_pending());
        }
        reply.arrive();
        assert_eq!(*woken.lock(), [0, 1, 2, 0, 1, 2]);
    }

    /// Seen to deadlock with `futures_util`'s `Shared`, if its caller may be interrupted between the future's poll and
    /// its own. Also with a share that records its waker after the poll, or that wakes no other when it is done.
    #[test]
    fn schedules_of_a_shared_future_lose_no_wake_up() {
        explore(|| {
            let reply = Reply::default();
            let shared = Shared::new(reply.clone().arrived());
            let callers = [(); 3].map(|()| spawn(shared.clone()));
            drop(shared);
            let arriving = thread::spawn(move || reply.arrive());
            callers[0].abort();
            arriving.join().unwrap();
            for caller in callers {
                let _ = block_on(caller);
            }
        });
    }
}
