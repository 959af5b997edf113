//! The result of one fleet.

use crate::{
    load::{Load, MICROSECOND, MILLISECOND, SECOND},
    origin::Origin,
    redis::Redis,
    tally::Tally,
};
use serde::Serialize;

#[derive(Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) processes: u32,
    pub(crate) seconds: f64,
    pub(crate) requests_per_s: f64,
    pub(crate) commands_per_s: f64,
    pub(crate) wakes_per_s: f64,
    /// Messages that drop near copies.
    pub(crate) invalidations_per_s: f64,
    pub(crate) origin_calls: u64,
    pub(crate) origin_calls_per_s: f64,
    /// Share of hits among all answers, including near hits.
    pub(crate) hit_ratio: f64,
    pub(crate) near_hit_ratio: f64,
    pub(crate) hit_p50_us: f64,
    pub(crate) hit_p99_us: f64,
    pub(crate) miss_p50_ms: f64,
    pub(crate) miss_p99_ms: f64,
    pub(crate) p99_ms: f64,
    /// Utilisation of the busiest shard, as a fraction of its capacity.
    pub(crate) redis: f64,
    /// The shares of hits, misses and messages in that work.
    pub(crate) redis_for: [f64; 3],
    pub(crate) origin: f64,
    pub(crate) timeouts: u64,
    pub(crate) unanswered: u64,
    /// At each server.
    pub(crate) connections: u32,
}

impl Row {
    pub(crate) fn of(
        load: &Load,
        processes: u32,
        seconds: f64,
        tally: &Tally,
        redis: &Redis<'_>,
        origin: &Origin,
    ) -> Self {
        let per_second = |count: u64| count as f64 / seconds;
        let part = |some: u64, all: u64| if all == 0 { 0.0 } else { some as f64 / all as f64 };
        let all = tally.hits.and(&tally.misses);
        let spent = &redis.spent;
        let whole = (spent.reads + spent.misses + spent.messages).max(1.0);
        Self {
            processes,
            seconds,
            requests_per_s: per_second(tally.requests),
            commands_per_s: per_second(redis.commands),
            wakes_per_s: per_second(redis.wakes),
            invalidations_per_s: per_second(redis.invalidations),
            origin_calls: origin.calls,
            origin_calls_per_s: per_second(origin.calls),
            hit_ratio: part(tally.hits.total(), all.total()),
            near_hit_ratio: part(tally.near_hits, all.total()),
            hit_p50_us: tally.hits.quantile(0.5) / MICROSECOND,
            hit_p99_us: tally.hits.quantile(0.99) / MICROSECOND,
            miss_p50_ms: tally.misses.quantile(0.5) / MILLISECOND,
            miss_p99_ms: tally.misses.quantile(0.99) / MILLISECOND,
            p99_ms: all.quantile(0.99) / MILLISECOND,
            redis: redis.given.iter().copied().fold(0.0, f64::max) / SECOND / seconds,
            redis_for: [spent.reads, spent.misses, spent.messages].map(|part| part / whole),
            origin: origin.work / SECOND / seconds / f64::from(load.workers),
            timeouts: tally.timeouts,
            unanswered: tally.requests - all.total(),
            connections: processes * load.connections(),
        }
    }

    pub(crate) fn print(&self) {
        println!(
            "{:9} {:10.0} {:10.0} {:7.1} {:9.0} {:8.1} {:6.2} {:8.0} {:8.0} {:8.1} {:8.1} {:7.1} {:7.1}",
            self.processes,
            self.requests_per_s,
            self.commands_per_s,
            self.wakes_per_s,
            self.invalidations_per_s,
            self.origin_calls_per_s,
            100.0 * self.hit_ratio,
            self.hit_p50_us,
            self.hit_p99_us,
            self.miss_p50_ms,
            self.miss_p99_ms,
            100.0 * self.redis,
            100.0 * self.origin,
        );
    }
}

pub(crate) fn print_head() {
    println!(
        "{:>9} {:>10} {:>10} {:>7} {:>9} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "", "", "Redis", "", "dropped", "origin", "hits", "hit p50", "p99", "miss p50", "p99", "Redis", "origin"
    );
    println!(
        "{:>9} {:>10} {:>10} {:>7} {:>9} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "processes",
        "requests/s",
        "commands/s",
        "wakes/s",
        "copies/s",
        "calls/s",
        "%",
        "µs",
        "µs",
        "ms",
        "ms",
        "busy %",
        "busy %"
    );
}
