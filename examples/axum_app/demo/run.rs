//! One herd, and how it went from moment to moment.

use crate::{
    Result,
    herd::{Answers, Observer},
    origin::Origin,
};
use serde::Serialize;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// A herd that runs or has ended.
pub(super) struct Run {
    /// Random, so that a page tells this herd from the one before.
    id: u32,
    pub(super) guard: bool,
    pub(super) requests: usize,
    sent: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    slowest_micros: AtomicU64,
    timeline: Mutex<Timeline>,
}

#[derive(Default)]
struct Timeline {
    samples: Vec<Sample>,
    origin_calls: u64,
    ended: bool,
    problem: Option<String>,
}

/// A moment of a herd: milliseconds since its first request, requests without an answer, calls that the origin works on.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Sample(u64, u64, u64);

/// The figures of a herd.
#[derive(Serialize)]
pub(super) struct Summary {
    id: u32,
    guard: bool,
    requests: usize,
    sent: u64,
    answered: u64,
    failed: u64,
    slowest_ms: f64,
    origin_calls: u64,
    /// Answers for which the origin was not called. A failed answer saves nothing.
    saved_calls: u64,
    ended: bool,
    problem: Option<String>,
}

impl Run {
    pub(super) fn new(guard: bool, requests: usize) -> Self {
        Self {
            id: fastrand::u32(..),
            guard,
            requests,
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            slowest_micros: AtomicU64::new(0),
            timeline: Mutex::default(),
        }
    }

    /// Takes samples until the herd has ended.
    pub(super) async fn record(&self, origin: &Origin, herd: impl Future<Output = Result<Answers>>) {
        let mut end = End { run: self, problem: Some("the herd ended early".to_owned()) };
        let before = origin.calls();
        let sampling = async {
            let mut ticks = interval(SAMPLING);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while self.sent.load(Relaxed) == 0 {
                ticks.tick().await;
            }
            let began = Instant::now();
            loop {
                self.sample(began.elapsed(), origin, before);
                ticks.tick().await;
            }
        };
        end.problem = tokio::select! {
            answers = herd => answers.map_or_else(|error| Some(error.to_string()), |answers| answers.first_failure),
            () = sampling => None,
        };
        self.sample(self.slowest(), origin, before);
    }

    fn sample(&self, at: Duration, origin: &Origin, calls_before: u64) {
        // In this order, because a request may be sent and answered between the two.
        let answered = self.answered.load(Relaxed);
        let waiting = self.sent.load(Relaxed).saturating_sub(answered);
        let mut timeline = self.timeline();
        let at = timeline.samples.last().map_or(0, |last| last.0).max(at.as_millis() as u64);
        timeline.samples.push(Sample(at, waiting, origin.running()));
        timeline.origin_calls = origin.calls() - calls_before;
    }

    /// Returns the samples from this one on.
    pub(super) fn samples(&self, from: usize) -> Vec<Sample> {
        self.timeline().samples.get(from..).unwrap_or_default().to_vec()
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn summary(&self) -> Summary {
        // In this order, because an answer that fails is counted as failed first.
        let answered = self.answered.load(Relaxed);
        let failed = self.failed.load(Relaxed);
        let timeline = self.timeline();
        Summary {
            id: self.id,
            guard: self.guard,
            requests: self.requests,
            sent: self.sent.load(Relaxed),
            answered,
            failed,
            slowest_ms: self.slowest().as_micros() as f64 / 1e3,
            origin_calls: timeline.origin_calls,
            saved_calls: answered.saturating_sub(failed).saturating_sub(timeline.origin_calls),
            ended: timeline.ended,
            problem: timeline.problem.clone(),
        }
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_micros.load(Relaxed))
    }

    fn timeline(&self) -> std::sync::MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the end of a herd on drop, so that a page does not wait for a herd that has panicked.
struct End<'a> {
    run: &'a Run,
    problem: Option<String>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut timeline = self.run.timeline();
        timeline.ended = true;
        timeline.problem = self.problem.take();
    }
}

impl Observer for Arc<Run> {
    fn on_sent(&self) {
        self.sent.fetch_add(1, Relaxed);
    }

    fn on_answer(&self, took: Duration, failed: bool) {
        self.slowest_micros.fetch_max(took.as_micros() as u64, Relaxed);
        self.failed.fetch_add(u64::from(failed), Relaxed);
        self.answered.fetch_add(1, Relaxed);
    }
}

const SAMPLING: Duration = Duration::from_millis(10);
