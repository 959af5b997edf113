//! The clocks of the servers, learnt from their stamps.

use super::{
    connection::{reconnecting::Handshake, script::number},
    scripts,
};
use crate::clock::Timestamp;
use redis::{Pipeline, Value};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};

/// The offsets from the clock of this process to the clocks of the servers. Each failure domain of the store has a clock
/// of its own, because the clocks of two nodes may differ.
///
/// The clocks of two hosts are never compared: the server takes each stamp between a request and its reply, and that
/// bounds the offset.
pub(super) struct ServerClocks {
    domains: Box<[DomainClock]>,
}

#[derive(Default)]
struct DomainClock {
    offset_micros: OnceLock<AtomicI64>,
    /// Whether the offset is of the current server.
    is_current: AtomicBool,
}

impl ServerClocks {
    /// Creates the clocks of this number of failure domains, at least one.
    pub(super) fn of(domains: usize) -> Self {
        Self { domains: (0..domains.max(1)).map(|_| DomainClock::default()).collect() }
    }

    /// Learns from a stamp of the server, in microseconds, whose request was sent and answered at these moments.
    pub(super) fn learn(&self, domain: u16, stamp: u64, sent: Timestamp, received: Timestamp) {
        let clock = self.clock(domain);
        clock.is_current.store(true, Relaxed);
        let stamp = i64::try_from(stamp).unwrap_or(i64::MAX);
        let min = stamp.saturating_sub(received.as_micros());
        let max = stamp.saturating_sub(sent.as_micros()).max(min);
        let offset = clock.offset_micros.get_or_init(|| AtomicI64::new(min + (max - min) / 2));
        // Two concurrent calls may overwrite each other: the bounds of either one hold.
        let current = offset.load(Relaxed);
        if current != current.clamp(min, max) {
            offset.store(current.clamp(min, max), Relaxed);
        }
    }

    /// Learns from the reply to `TIME`.
    pub(super) fn learn_time(&self, domain: u16, time: &Value, sent: Timestamp, received: Timestamp) {
        if let Value::Array(time) = time
            && let [seconds, micros] = &time[..]
            && let (Ok(seconds), Ok(micros)) = (number(seconds), number(micros))
        {
            self.learn(domain, seconds.saturating_mul(1_000_000).saturating_add(micros), sent, received);
        }
    }

    /// Returns `true` if the time of the server is to be asked for: once for each new connection that has not brought
    /// it.
    pub(super) fn must_ask(&self, domain: u16) -> bool {
        let is_current = &self.clock(domain).is_current;
        !is_current.load(Relaxed) && !is_current.swap(true, Relaxed)
    }

    /// Returns the microseconds to add to the clock of this process. Before the first stamp this is a guess from the
    /// wall clock of this host.
    pub(super) fn offset(&self, domain: u16) -> i64 {
        self.clock(domain).offset_micros.get().map_or_else(guess, |offset| offset.load(Relaxed))
    }

    fn clock(&self, domain: u16) -> &DomainClock {
        &self.domains[usize::from(domain) % self.domains.len()]
    }
}

impl Handshake for ServerClocks {
    fn commands(&self) -> Pipeline {
        scripts::introduction()
    }

    fn on_connected(&self) {
        for clock in &self.domains {
            clock.is_current.store(false, Relaxed);
        }
    }

    /// Learns from the last reply, unless it comes from any node of a cluster.
    fn on_replies(&self, answers: &[Value], sent: Timestamp, received: Timestamp) {
        if let (Some(time), [_]) = (answers.last(), &*self.domains) {
            self.learn_time(0, time, sent, received);
        }
    }
}

fn guess() -> i64 {
    let since_epoch = crate::clock::wall_clock().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_micros()).unwrap_or(0).saturating_sub(Timestamp::now().as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn server_clock_accepts_an_impossible_time() {
        let (clock, now) = (ServerClocks::of(1), Timestamp::now());
        let time = |seconds: i64| Value::Array(vec![Value::Int(seconds), Value::Int(i64::MAX)]);
        clock.on_replies(&[time(i64::MAX)], now, now);
        clock.on_replies(&[time(0)], now, now);
    }

    #[test]
    fn server_clock_offset_stays_within_every_stamp() {
        let (clock, at) = (ServerClocks::of(1), Timestamp::from_micros);
        clock.learn(0, 1_000_500, at(0), at(1_000));
        assert_eq!(clock.offset(0), 1_000_000);
        clock.learn(0, 1_010_100, at(10_000), at(10_300));
        assert_eq!(clock.offset(0), 1_000_000, "within the bounds, nothing is learnt");
        clock.learn(0, 2_000_000, at(20_000), at(20_100));
        assert_eq!(clock.offset(0), 1_979_900, "the server's clock was set forward");
        clock.learn(0, 1_020_200, at(20_200), at(20_300));
        assert_eq!(clock.offset(0), 1_000_000, "and back");
    }

    #[test]
    fn server_clock_is_asked_for_once_per_connection_without_time() {
        let (clock, at) = (ServerClocks::of(1), Timestamp::from_micros);
        let time = Value::Array(vec![Value::Int(5), Value::Int(0)]);
        assert_eq!([(); 2].map(|()| clock.must_ask(0)), [true, false], "no connection has brought the time yet");
        clock.on_connected();
        clock.on_replies(from_ref(&time), at(0), at(0));
        assert!(!clock.must_ask(0), "the handshake has brought it");
        clock.on_connected();
        assert_eq!([(); 2].map(|()| clock.must_ask(0)), [true, false], "a connection has repaired itself");

        let cluster = ServerClocks::of(2);
        cluster.on_replies(&[time], at(0), at(0));
        assert!(cluster.must_ask(1) && cluster.must_ask(0), "the time of any node is not the time of each");
    }
}
