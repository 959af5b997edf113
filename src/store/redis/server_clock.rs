//! What the clock of the server says, learnt from its stamps.

use super::{Timestamp, script};
use crate::wire::{Greet, number};
use redis::{Pipeline, Value};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};

/// Leads from the clock of this process to that of the server. Clocks of two hosts are never compared: each stamp was
/// taken between a request and its answer, and that bounds the offset.
#[derive(Default)]
pub(super) struct ServerClock {
    learnt: OnceLock<AtomicI64>,
}

impl ServerClock {
    /// Takes in a stamp of the server, in microseconds, of a request that was sent and answered then.
    pub(super) fn learn(&self, stamp: u64, sent: Timestamp, received: Timestamp) {
        let stamp = i64::try_from(stamp).unwrap_or(i64::MAX);
        let least = stamp.saturating_sub(received.as_micros());
        let most = stamp.saturating_sub(sent.as_micros()).max(least);
        let offset = self.learnt.get_or_init(|| AtomicI64::new(least + (most - least) / 2));
        // Two at a time may overwrite each other: either bound holds.
        let known = offset.load(Relaxed);
        if known != known.clamp(least, most) {
            offset.store(known.clamp(least, most), Relaxed);
        }
    }

    /// Microseconds to add to the clock of this process. Until the server has said anything, what this host believes
    /// the time to be.
    pub(super) fn offset(&self) -> i64 {
        self.learnt.get().map_or_else(guess, |offset| offset.load(Relaxed))
    }
}

impl Greet for ServerClock {
    fn words(&self) -> Pipeline {
        script::introduction()
    }

    fn heard(&self, answers: &[Value], sent: Timestamp, received: Timestamp) {
        if let Some(Value::Array(time)) = answers.last()
            && let [seconds, micros] = &time[..]
            && let (Ok(seconds), Ok(micros)) = (number(seconds), number(micros))
        {
            self.learn(seconds.saturating_mul(1_000_000).saturating_add(micros), sent, received);
        }
    }
}

fn guess() -> i64 {
    let since_epoch = crate::clock::wall().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_micros()).unwrap_or(0).saturating_sub(Timestamp::now().as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_is_no_panic() {
        let (clock, now) = (ServerClock::default(), Timestamp::now());
        let time = |seconds: i64| Value::Array(vec![Value::Int(seconds), Value::Int(i64::MAX)]);
        clock.heard(&[time(i64::MAX)], now, now);
        clock.heard(&[time(0)], now, now);
    }

    #[test]
    fn every_stamp_bounds_the_offset() {
        let (clock, at) = (ServerClock::default(), Timestamp::from_micros);
        clock.learn(1_000_500, at(0), at(1_000));
        assert_eq!(clock.offset(), 1_000_000);
        clock.learn(1_010_100, at(10_000), at(10_300));
        assert_eq!(clock.offset(), 1_000_000, "within the bounds, nothing is learnt");
        clock.learn(2_000_000, at(20_000), at(20_100));
        assert_eq!(clock.offset(), 1_979_900, "the server's clock was set forward");
        clock.learn(1_020_200, at(20_200), at(20_300));
        assert_eq!(clock.offset(), 1_000_000, "and back");
    }
}
