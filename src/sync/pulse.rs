//! Shows whether a future that other tasks wait for is still polled.
//!
//! Tokio has no primitive for this: a future that is held and not polled is neither dropped nor finished. A timer in
//! each future would show it as well, but other tasks wait for few of these futures.

use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
    task::{Context, Poll},
};

/// The pulse of one future.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Counts the beginnings and the ends of polls, so it is odd during a poll.
    beats: AtomicUsize,
    waker: AtomicWaker,
}

impl Pulse {
    /// Wakes the future, and returns a reading for [`is_beating_since`](Self::is_beating_since).
    pub(crate) fn feel(&self) -> usize {
        let beats = self.beats.load(Acquire);
        self.waker.wake();
        beats
    }

    /// Reports whether the future was polled since the reading, or is being polled now. A poll in progress counts,
    /// because the future may block its thread.
    pub(crate) fn is_beating_since(&self, reading: usize) -> bool {
        let beats = self.beats.load(Acquire);
        beats != reading || beats % 2 == 1
    }
}

pin_project! {
    /// A future with a pulse.
    pub(crate) struct WithPulse<F> {
        #[pin]
        future: F,
        pulse: Arc<Pulse>,
    }
}

impl<F> WithPulse<F> {
    pub(crate) fn new(future: F, pulse: Arc<Pulse>) -> Self {
        Self { future, pulse }
    }
}

impl<F: Future> Future for WithPulse<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.pulse.beats.fetch_or(1, AcqRel); // odd already if the leader before panicked during a poll
        this.pulse.waker.register(cx.waker());
        let polled = this.future.poll(cx);
        this.pulse.beats.fetch_add(1, AcqRel);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn pulse_shows_whether_the_future_is_polled() {
        let pulse = Arc::new(Pulse::default());
        let mut held = Box::pin(WithPulse::new(pending::<()>(), pulse.clone()));
        assert!(futures_util::poll!(&mut held).is_pending());
        let reading = pulse.feel();
        yield_now().await;
        assert!(!pulse.is_beating_since(reading));

        let task = tokio::spawn(held);
        yield_now().await;
        let reading = pulse.feel();
        assert!(!pulse.is_beating_since(reading));
        yield_now().await;
        assert!(pulse.is_beating_since(reading), "the woken task was polled");
        task.abort();
    }

    /// Seen to fail (it beats for ever) when the beginning of a poll is counted after a poll that panicked.
    #[tokio::test]
    async fn pulse_shows_the_next_future_after_a_panic() {
        let pulse = Arc::new(Pulse::default());
        let panics = WithPulse::new(async { panic!("on purpose") }, pulse.clone());
        assert!(tokio::spawn(panics).await.is_err());
        let mut held = Box::pin(WithPulse::new(pending::<()>(), pulse.clone()));
        assert!(futures_util::poll!(&mut held).is_pending());
        assert!(!pulse.is_beating_since(pulse.feel()));
    }

    #[tokio::test]
    async fn pulse_beats_during_a_poll_that_blocks() {
        let pulse = Arc::new(Pulse::default());
        let felt = {
            let pulse = pulse.clone();
            async move { pulse.is_beating_since(pulse.feel()) }
        };
        assert!(WithPulse::new(felt, pulse).await);
    }
}
