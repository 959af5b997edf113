//! What the page shows, as server-sent events.
//!
//! Each page has a stream of its own, which looks at the server every 50 ms and sends what has changed since its last
//! event. So a herd of any size is some twenty events a second, and a slow reader gets fewer and larger ones: nothing
//! queues for it.

use super::{
    Demo, MAX_REQUESTS, Store,
    run::{Run, Sample, Summary},
};
use axum::{
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use stampede_guard::{HotKey, Stats};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Streams frames until the client leaves or the server stops.
pub(super) async fn stream(State(demo): State<Arc<Demo>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut stopped = demo.stopped.clone();
    let stopped = async move { _ = stopped.changed().await };
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let page = Page { demo, ticks, seen: [(0, 0); 2], last: String::new() };
    let frames = stream::unfold(page, async |mut page| Some((Ok(page.next().await), page)));
    Sse::new(frames.take_until(stopped)).keep_alive(KeepAlive::default())
}

/// The stream of one page.
struct Page {
    demo: Arc<Demo>,
    ticks: Interval,
    /// The id of the herd in each lane, and how many of its samples the page has.
    seen: [(u32, usize); 2],
    /// The last event.
    last: String,
}

impl Page {
    /// Waits until there is something new to show.
    async fn next(&mut self) -> Event {
        loop {
            self.ticks.tick().await;
            let frame = self.frame();
            if frame != self.last {
                self.last.clone_from(&frame);
                return Event::default().data(frame);
            }
        }
    }

    fn frame(&mut self) -> String {
        let [without, with] = self.demo.runs();
        let mut stats = self.demo.guard.stats();
        let saved = Saved::of(&stats.hot_keys);
        stats.hot_keys.truncate(SHOWN_KEYS);
        let frame = Frame {
            without: without.map(|run| lane(&run, &mut self.seen[0])),
            with: with.map(|run| lane(&run, &mut self.seen[1])),
            delay_ms: self.demo.origin.delay().as_millis(),
            failing: self.demo.origin.is_failing(),
            max_requests: MAX_REQUESTS,
            store: StoreState::of(&self.demo.store),
            breaker_open: self.demo.guard.health().breaker_open,
            saved,
            stats,
        };
        serde_json::to_string(&frame).expect("numbers and text are JSON")
    }
}

fn lane(run: &Run, (id, known): &mut (u32, usize)) -> Lane {
    if *id != run.id() {
        (*id, *known) = (run.id(), 0);
    }
    // In this order: once the summary says that the herd has ended, its last sample is there.
    let summary = run.summary();
    let from = *known;
    let samples = run.samples(from);
    *known += samples.len();
    Lane { summary, from, samples }
}

/// All that the page shows. Only samples are not repeated, so that a page which has missed an event catches up.
#[derive(Serialize)]
struct Frame {
    without: Option<Lane>,
    with: Option<Lane>,
    delay_ms: u128,
    failing: bool,
    max_requests: usize,
    store: StoreState,
    breaker_open: bool,
    saved: Saved,
    stats: Stats,
}

/// What the guard has saved with all keys that it tracks.
#[derive(Default, Serialize)]
struct Saved {
    requests: u64,
    calls: u64,
    /// The time that the saved calls of a key would have taken, if each took the average of the calls that were made.
    seconds: f64,
}

impl Saved {
    fn of(keys: &[HotKey]) -> Self {
        keys.iter().fold(Self::default(), |sum, key| Self {
            requests: sum.requests + key.requests,
            calls: sum.calls + key.saved_calls,
            seconds: sum.seconds + key.saved_calls as f64 * key.fetch_time.as_secs_f64() / key.fetches.max(1) as f64,
        })
    }
}

#[derive(Serialize)]
struct Lane {
    #[serde(flatten)]
    summary: Summary,
    /// The number of samples before these. A stream begins with zero, also for a page that has samples from an earlier one.
    from: usize,
    /// New since the last event.
    samples: Vec<Sample>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum StoreState {
    Embedded,
    Redis,
    OwnRedis,
    /// Stopped by the page.
    StoppedRedis,
    /// Stopping or starting.
    ChangingRedis,
}

impl StoreState {
    fn of(store: &Store) -> Self {
        match store {
            Store::Embedded => Self::Embedded,
            Store::Redis => Self::Redis,
            Store::OwnRedis(redis) => match redis.try_lock() {
                Ok(redis) if redis.pid().is_some() => Self::OwnRedis,
                Ok(_) => Self::StoppedRedis,
                Err(_) => Self::ChangingRedis,
            },
        }
    }
}

/// Maximum number of hot keys in an event.
const SHOWN_KEYS: usize = 6;
const PERIOD: Duration = Duration::from_millis(50);
