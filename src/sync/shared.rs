//! One future, awaited by many callers.
//!
//! Not `futures_util`'s `Shared`, which can lose a wake-up (futures-rs #2706). A wake-up that arrives while caller A
//! polls goes only to the callers that registered before that poll. Caller B, which arrives during the poll, finds the
//! future taken and sleeps. If the notified caller is dropped before it polls again, the future is never polled. Here B
//! waits until A's poll has ended, and polls after it.
//!
//! Not tokio's `OnceCell`: if the caller that polls is dropped, the next caller begins the work again.

use super::mutex::Mutex;
use futures_util::{FutureExt, future::BoxFuture};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker, ready},
    thread,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, futures::OwnedNotified},
    task::{unconstrained, yield_now},
};

pin_project! {
    /// A handle of the future. Any of the handles polls it; it is dropped with the last of them.
    pub(crate) struct Shared<T> {
        work: Arc<Work<T>>,
        // The next wake-up of the future. `None` before this handle is polled.
        #[pin]
        woken: Option<OwnedNotified>,
    }
}

/// A weak handle: upgrades while another handle exists.
#[derive(Debug)]
pub(crate) struct WeakShared<T>(Weak<Work<T>>);

struct Work<T> {
    progress: Mutex<Progress<T>>,
    /// Whether a task polls the future next. Until then the handles wait for a wake-up.
    is_queued: AtomicBool,
    /// Notifies the handles of each wake-up of the future.
    wakes: Arc<Notify>,
    /// The waker of the future.
    waker: Waker,
}

enum Progress<T> {
    Running(BoxFuture<'static, T>),
    Done(T),
}

/// The task that polls a future first. If its runtime ends before, or the future panics, the handles poll the future.
struct FirstPoll<T>(WeakShared<T>);

/// Wakes all waiting handles.
struct WakeAll(Arc<Notify>);

impl<T> Shared<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        // A future without tokio's budget wakes all handles when it is polled. The handle that polls it would do so again,
        // without end.
        let progress = Mutex::new(Progress::Running(Box::pin(unconstrained(future))));
        let wakes = Arc::<Notify>::default();
        let waker = Waker::from(Arc::new(WakeAll(wakes.clone())));
        Self::of(Arc::new(Work { progress, is_queued: AtomicBool::new(false), wakes, waker }))
    }

    fn of(work: Arc<Work<T>>) -> Self {
        Self { work, woken: None }
    }

    pub(crate) fn downgrade(&self) -> WeakShared<T> {
        WeakShared(Arc::downgrade(&self.work))
    }

    /// Reports whether the future has completed, with an output for which `wanted` is true.
    pub(crate) fn is_done_and(&self, wanted: impl FnOnce(&T) -> bool) -> bool {
        matches!(&*self.work.progress.lock(), Progress::Done(done) if wanted(done))
    }
}

impl<T: Clone + Send + 'static> Shared<T> {
    /// Lets a task begin the future, after the runtime has polled the tasks that are ready now. PERF: the task polls it,
    /// so that no handle is woken for that. Without a runtime the next poll of a handle begins it.
    pub(crate) fn queue(&self) {
        self.work.is_queued.store(true, SeqCst);
        let first_poll = FirstPoll(self.downgrade());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(first_poll.run());
        }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self::of(self.work.clone())
    }
}

/// Of no future.
impl<T> Default for WeakShared<T> {
    fn default() -> Self {
        Self(Weak::new())
    }
}

impl<T> WeakShared<T> {
    pub(crate) fn upgrade(&self) -> Option<Shared<T>> {
        self.0.upgrade().map(Shared::of)
    }

    /// Returns a handle of the future if it runs. Otherwise begins another future, which later callers join.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(crate) fn join_or<F: Future<Output = T> + Send + 'static>(&mut self, begin: impl FnOnce() -> F) -> Shared<T> {
        let running = self.upgrade().filter(|running| !running.is_done_and(|_| true));
        running.unwrap_or_else(|| {
            let begun = Shared::new(begin());
            *self = begun.downgrade();
            begun
        })
    }
}

impl<T: Clone> Future for Shared<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut this = self.project();
        loop {
            if let Some(woken) = this.woken.as_mut().as_pin_mut() {
                ready!(woken.poll(cx));
            }
            let mut progress = this.work.progress.lock();
            let future = match &mut *progress {
                Progress::Done(done) => return Poll::Ready(done.clone()),
                Progress::Running(future) => future,
            };
            // Registered before the future is polled: a later wake-up reaches this caller too, and an earlier one shows
            // in the poll.
            this.woken.set(Some(this.work.wakes.clone().notified_owned()));
            if this.work.is_queued.load(SeqCst) {
                continue;
            }
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&this.work.waker)) {
                *progress = Progress::Done(done.clone());
                drop(progress);
                // This caller has no waker in the list: it returns with the result.
                this.work.wakes.notify_waiters();
                return Poll::Ready(done);
            }
        }
    }
}

impl<T: Clone> FirstPoll<T> {
    async fn run(self) {
        yield_now().await;
        if let Some(shared) = self.0.upgrade() {
            shared.work.is_queued.store(false, SeqCst);
            shared.now_or_never();
        }
    }
}

impl<T> Drop for FirstPoll<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade()
            && (shared.work.is_queued.swap(false, SeqCst) || thread::panicking())
        {
            shared.work.wakes.notify_waiters();
        }
    }
}

impl Wake for WakeAll {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::schedules::explore;
    use futures_util::poll;
    use shuttle::{
        future::{JoinHandle, block_on, spawn},
        thread,
    };
    use std::{future::poll_fn, mem, panic, sync::mpsc, time::Duration};
    use tokio::{runtime::Builder, sync::oneshot, task::coop};

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
    fn poll_as(number: usize, woken: &Arc<Mutex<Vec<usize>>>, shared: Pin<&mut Shared<()>>) -> Poll<()> {
        let waker = Waker::from(Arc::new(Noted(number, woken.clone())));
        shared.poll(&mut Context::from_waker(&waker))
    }

    /// Seen to fail when the caller that polls the future to its end is woken like all other callers.
    #[test]
    fn shared_future_does_not_wake_the_caller_that_returns() {
        let (reply, woken) = (Reply::default(), Arc::default());
        let shared = Shared::new(reply.clone().arrived());
        let mut callers = [(); 4].map(|()| Box::pin(shared.clone()));
        for (number, caller) in callers[..3].iter_mut().enumerate() {
            assert!(poll_as(number, &woken, caller.as_mut()).is_pending());
        }
        reply.0.lock().0 = true;
        assert!(poll_as(3, &woken, callers[3].as_mut()).is_ready());
        assert_eq!(*woken.lock(), [0, 1, 2]);
    }

    /// Seen to fail (it is not woken) when the dropped task wakes no handle, and when one that panics wakes none.
    #[test]
    fn queued_future_begins_without_its_task() {
        let run = |future: BoxFuture<'static, ()>, is_driven| {
            let runtime = Builder::new_current_thread().build().unwrap();
            let mut handle = Box::pin(Shared::new(future));
            {
                let _entered = runtime.enter();
                handle.queue();
            }
            let woken = Arc::default();
            assert!(poll_as(0, &woken, handle.as_mut()).is_pending());
            if is_driven {
                runtime.block_on(async {
                    for _ in 0..4 {
                        yield_now().await; // the task panics
                    }
                });
            }
            drop(runtime);
            assert_eq!(*woken.lock(), [0]);
            poll_as(0, &woken, handle.as_mut())
        };
        assert!(run(Box::pin(async {}), false).is_ready());
        let panics = || run(Box::pin(async { panic!("on purpose") }), true);
        assert!(panic::catch_unwind(panics).is_err());
        let mut outside_of_a_runtime = Box::pin(Shared::new(async {}));
        outside_of_a_runtime.queue();
        assert!(poll_as(0, &Arc::default(), outside_of_a_runtime.as_mut()).is_ready());
    }

    /// Seen to fail (it polls without end) when the future takes part in tokio's budget.
    #[test]
    fn handle_without_budget_is_pending() {
        let (ended, has_ended) = mpsc::channel();
        std::thread::spawn(move || {
            Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(async {
                let (_never, reply) = oneshot::channel::<()>();
                let mut handle = Shared::new(async move { drop(reply.await) }).boxed();
                while coop::has_budget_remaining() {
                    coop::consume_budget().await;
                }
                assert!(poll!(&mut handle).is_pending());
            });
            ended.send(()).unwrap();
        });
        has_ended.recv_timeout(Duration::from_secs(10)).expect("the poll returns");
    }

    /// Seen to deadlock when a dropped task wakes no handle.
    #[test]
    fn schedules_of_a_queued_future_lose_no_wake_up() {
        explore(|| {
            let reply = Reply::default();
            let shared = Shared::new(reply.clone().arrived());
            shared.work.is_queued.store(true, SeqCst);
            let tasks = [(); 2].map(|()| spawn(FirstPoll(shared.downgrade()).run()));
            let callers = [(); 3].map(|()| spawn(shared.clone()));
            drop(shared);
            let arriving = thread::spawn(move || reply.arrive());
            callers[0].abort();
            tasks.iter().for_each(JoinHandle::abort);
            arriving.join().unwrap();
            for caller in callers {
                let _ = block_on(caller);
            }
        });
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
