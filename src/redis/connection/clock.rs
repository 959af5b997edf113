//! The clock of a server, as its replies tell.

use crate::clock::{Timestamp, wall_clock};
use redis::{FromRedisValue, Value};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};

/// The offset from the clock of this process to the clock of a server.
///
/// The clocks of two hosts are never compared: the server takes each stamp between a request and its reply, and that
/// bounds the offset.
#[derive(Default)]
pub(crate) struct ServerClock {
    offset_micros: OnceLock<AtomicI64>,
}

impl ServerClock {
    /// Learns from a stamp of the server, in microseconds, whose request was sent and answered at these moments.
    pub(in crate::redis) fn learn(&self, stamp: u64, sent: Timestamp, received: Timestamp) {
        let stamp = i64::try_from(stamp).unwrap_or(i64::MAX);
        let min = stamp.saturating_sub(received.as_micros());
        let max = stamp.saturating_sub(sent.as_micros()).max(min);
        let offset = self.offset_micros.get_or_init(|| AtomicI64::new(min + (max - min) / 2));
        // Two concurrent calls may overwrite each other: the bounds of either one hold.
        let current = offset.load(Relaxed);
        if current != current.clamp(min, max) {
            offset.store(current.clamp(min, max), Relaxed);
        }
    }

    /// Learns from the reply to `TIME`.
    pub(in crate::redis) fn learn_time(&self, time: &Value, sent: Timestamp, received: Timestamp) {
        if let Ok((seconds, micros)) = <(u64, u64)>::from_redis_value_ref(time) {
            self.learn(seconds.saturating_mul(1_000_000).saturating_add(micros), sent, received);
        }
    }

    /// Returns the microseconds to add to the clock of this process. Before the first stamp this is a guess from the
    /// wall clock of this host.
    pub(in crate::redis) fn offset(&self) -> i64 {
        self.offset_micros.get().map_or_else(guess, |offset| offset.load(Relaxed))
    }
}

fn guess() -> i64 {
    let since_epoch = wall_clock().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_micros()).unwrap_or(0).saturating_sub(Timestamp::now().as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_clock_accepts_an_impossible_time() {
        let (clock, now) = (ServerClock::default(), Timestamp::now());
        let time = |seconds: i64| Value::Array(vec![Value::Int(seconds), Value::Int(i64::MAX)]);
        clock.learn_time(&time(i64::MAX), now, now);
        clock.learn_time(&time(0), now, now);
    }

    #[test]
    fn server_clock_offset_stays_within_every_stamp() {
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
