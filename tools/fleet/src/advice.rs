//! Finds the first bottleneck, and simulates that size again with each remedy.

use crate::{
    args::Args,
    fleet,
    load::{Load, MAXCLIENTS},
    row::Row,
};
use serde::Serialize;
use std::fmt;

pub(crate) struct Advice {
    pub(crate) first: Option<First>,
    /// The fleet that was simulated again: the smallest with a bottleneck, otherwise the largest.
    of: Option<Row>,
    pub(crate) remedies: Vec<Remedy>,
}

/// The first bottleneck.
#[derive(Serialize)]
pub(crate) struct First {
    what: What,
    /// The approximate size at which the limit is reached, interpolated between two simulated sizes.
    processes: f64,
    /// The utilisation in the simulated fleet.
    busy: f64,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    RedisHits,
    RedisMisses,
    Messages,
    Origin,
}

#[derive(Serialize)]
pub(crate) struct Remedy {
    flags: String,
    what: &'static str,
    enough: Enough,
    row: Row,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Enough {
    Yes,
    /// Nothing is too busy, but the 99th percentile grows.
    ButSlower,
    No,
}

pub(crate) fn on(args: &Args, rows: &[Row]) -> Advice {
    let over = rows.iter().position(|row| row.redis.max(row.origin) >= LIMIT);
    let first = over.map(|at| First::of(at.checked_sub(1).map(|before| &rows[before]), &rows[at]));
    let of = over.or(rows.len().checked_sub(1)).map(|at| rows[at].clone());
    let remedies = of.iter().flat_map(|row| remedies(args, row)).collect();
    Advice { first, of, remedies }
}

impl First {
    fn of(before: Option<&Row>, row: &Row) -> Self {
        // If Redis does not answer in time, all processes call the origin. Then Redis is the bottleneck, not the
        // origin.
        let redis = row.redis >= LIMIT && (row.timeouts > 0 || row.redis >= row.origin);
        let busy = |row: &Row| if redis { row.redis } else { row.origin };
        let what = match row.redis_for {
            _ if !redis => What::Origin,
            [hits, misses, messages] if hits >= misses.max(messages) => What::RedisHits,
            [_, misses, messages] if misses >= messages => What::RedisMisses,
            _ => What::Messages,
        };
        let (from, at) = before.map_or((0.0, 0.0), |row| (f64::from(row.processes), busy(row)));
        let part = ((LIMIT - at) / (busy(row) - at)).clamp(0.0, 1.0);
        Self { what, processes: from + part * (f64::from(row.processes) - from), busy: busy(row) }
    }
}

/// Simulates the remedies, the cheapest first.
fn remedies(args: &Args, row: &Row) -> Vec<Remedy> {
    let load = &args.load;
    let times = |busy: f64| (busy / HALF).ceil().max(2.0) as u32;
    let shards = load.shards * times(row.redis);
    let mut tries: Vec<(String, &'static str, Load)> = Vec::new();
    if !load.near {
        tries.push(("--near".into(), "the near cache", Load { near: true, ..load.clone() }));
    }
    if load.early == 0.0 {
        tries.push(("--early 1".into(), "early refresh", Load { early: 1.0, ..load.clone() }));
    }
    if !load.near && load.early == 0.0 {
        let both = Load { near: true, early: 1.0, ..load.clone() };
        tries.push(("--near --early 1".into(), "the near cache and early refresh", both));
    }
    let ttl = load.ttl * LONGER;
    tries.push((format!("--ttl {ttl}"), "entries that are fresh for longer", Load { ttl, ..load.clone() }));
    if row.redis >= LIMIT {
        tries.push((format!("--shards {shards}"), "a cluster", Load { shards, ..load.clone() }));
        if !load.near {
            let both = Load { shards, near: true, ..load.clone() };
            tries.push((format!("--shards {shards} --near"), "a cluster and the near cache", both));
        }
    }
    if row.origin >= LIMIT {
        let workers = load.workers * times(row.origin);
        tries.push((format!("--workers {workers}"), "a larger origin", Load { workers, ..load.clone() }));
    }
    let simulate = |load: &Load| fleet::simulate(load, row.processes, args.seconds(row.processes));
    let remedy = |(flags, what, load): (String, &'static str, Load)| {
        let then = simulate(&load);
        let enough = match () {
            () if then.redis.max(then.origin) >= LIMIT => Enough::No,
            () if then.p99_ms > 2.0 * row.p99_ms + 1.0 => Enough::ButSlower,
            () => Enough::Yes,
        };
        Remedy { flags, what, enough, row: then }
    };
    tries.into_iter().map(remedy).collect()
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(of) = &self.of else { return Ok(()) };
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        match &self.first {
            None => writeln!(
                f,
                "nothing gives in up to {} processes: Redis is {} busy, the origin {}",
                of.processes,
                percent(of.redis),
                percent(of.origin)
            )?,
            Some(First { what, processes, busy }) => writeln!(
                f,
                "first to give in: {what}, {} busy from about {processes:.0} processes; {} processes ask {} of it",
                percent(LIMIT),
                of.processes,
                percent(*busy)
            )?,
        }
        writeln!(
            f,
            "{:24} {:>10} {:>8} {:>9} {:>9} {:>9}",
            of.processes.to_string() + " processes, simulated again",
            "commands/s",
            "calls/s",
            "Redis",
            "origin",
            "p99, ms"
        )?;
        let line = |flags: &str, row: &Row| {
            format!(
                "  {flags:26} {:10.0} {:8.1} {:>9} {:>9} {:9.2}",
                row.commands_per_s,
                row.origin_calls_per_s,
                percent(row.redis),
                percent(row.origin),
                row.p99_ms
            )
        };
        writeln!(f, "{}", line("as it is", of))?;
        for Remedy { flags, enough, row, .. } in &self.remedies {
            let mark = match enough {
                _ if self.first.is_none() => "",
                Enough::Yes => "  enough",
                Enough::ButSlower => "  enough, but slower",
                Enough::No => "",
            };
            writeln!(f, "{}{mark}", line(flags, row))?;
        }
        let find = |wanted: Enough| self.remedies.iter().find(|remedy| remedy.enough == wanted);
        match find(Enough::Yes).or_else(|| find(Enough::ButSlower)) {
            _ if self.first.is_none() => {}
            Some(Remedy { flags, what, .. }) => writeln!(f, "what to do: {what} ({flags})")?,
            None => writeln!(f, "none of these is enough")?,
        }
        if of.connections > MAXCLIENTS {
            writeln!(
                f,
                "beyond {} processes Redis needs a `maxclients` over its default",
                MAXCLIENTS / (of.connections / of.processes)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RedisHits => "Redis, by its hits",
            Self::RedisMisses => "Redis, by its misses",
            Self::Messages => "Redis, by its messages",
            Self::Origin => "the origin",
        })
    }
}

/// Maximum utilisation. Above it, queues grow faster than the load.
const LIMIT: f64 = 0.7;
const HALF: f64 = 0.5;
const LONGER: f64 = 4.0;
