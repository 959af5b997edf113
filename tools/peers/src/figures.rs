//! Our own figures, taken from the tables.

use crate::{
    Result,
    scenarios::{
        embedded::{self, BARE, FETCH_ARC, LAYER, NEAR, NEAR_LAYER},
        herd::{ERROR_HERD, HERD},
        leader, outage, throughput,
    },
    subjects::own,
    table::Table,
};
use serde_json::{Value, json};

/// Returns the last line of the output.
pub(crate) fn json(tables: &[Table]) -> Result<Value> {
    let own = Own::of(tables)?;
    Ok(json!({
        "herd": {
            "origin_calls": count(own.herd_calls),
            "last_answer_ms": rounded(own.herd_last),
            "compute_ms": 50,
            "redis_commands": count(own.herd_commands),
        },
        "redis_hit_vs_raw_get": rounded(own.hit),
        "near_hit_vs_moka": rounded(own.near),
        "miss_vs_raw_get": rounded(own.miss),
        "error_herd": { "origin_calls": count(own.error_calls), "last_answer_ms": rounded(own.error_last) },
        "leader_dropped": { "origin_calls": count(own.leader_calls), "recovery_ms": rounded(own.recovery) },
        "sigstop": { "failed": count(own.stop_failed), "worst_ms": rounded(own.stop_worst) },
        "sigkill": { "failed": count(own.kill_failed), "worst_ms": rounded(own.kill_worst), "back_ms": rounded(own.back) },
    }))
}

/// The median of an even number of counts may be a half.
fn count(figure: f64) -> Value {
    if figure.fract() == 0.0 { json!(figure as u64) } else { json!(figure) }
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// The figures of the JSON line and of the first table.
pub(crate) struct Own {
    pub(crate) herd_calls: f64,
    pub(crate) herd_last: f64,
    pub(crate) herd_commands: f64,
    /// Of moka, in the same herd.
    pub(crate) moka_last: f64,
    pub(crate) hit: f64,
    /// Of one key.
    pub(crate) same: f64,
    pub(crate) near: f64,
    pub(crate) embedded: f64,
    /// Nanoseconds that the layer adds to a service.
    pub(crate) near_layer: f64,
    pub(crate) embedded_layer: f64,
    pub(crate) miss: f64,
    pub(crate) error_calls: f64,
    pub(crate) error_last: f64,
    pub(crate) leader_calls: f64,
    pub(crate) recovery: f64,
    pub(crate) stop_failed: f64,
    pub(crate) stop_worst: f64,
    pub(crate) kill_failed: f64,
    pub(crate) kill_worst: f64,
    pub(crate) back: f64,
}

impl Own {
    /// Takes the medians of `fetch`. Of the leader, takes the worse of both instances; of failures, the maximum.
    pub(crate) fn of(tables: &[Table]) -> Result<Self> {
        let find = |name: &str| tables.iter().find(|table| table.name == name);
        let figure = |name: &str, subject: &str, column: &str| {
            let figure = find(name).and_then(|table| table.figure(subject, column));
            figure.ok_or_else(|| format!("{name}: {subject} has no {column}"))
        };
        let fetch = |name: &str, column: &str| figure(name, own::FETCH.name, column);
        let most = |name: &str, column: &str| {
            let row = find(name).and_then(|table| table.rows.iter().find(|row| row.subject == own::FETCH.name));
            let most = row.and_then(|row| row.figures(column).last().copied());
            most.ok_or_else(|| format!("{name}: nothing under {column}"))
        };
        let local = |subject: &str, column: &str| figure(embedded::NAME, subject, column);
        Ok(Self {
            herd_calls: fetch(HERD, "origin calls")?,
            herd_last: fetch(HERD, "last answer, ms")?,
            herd_commands: fetch(HERD, "Redis commands")?,
            moka_last: figure(HERD, "moka", "last answer, ms")?,
            same: fetch(throughput::SAME, "of raw GET")?,
            hit: fetch(throughput::HIT, "of raw GET")?,
            near: local(NEAR, "of moka get")?,
            embedded: local(FETCH_ARC, "of moka get")?,
            near_layer: local(NEAR_LAYER, "ns")? - local(BARE, "ns")?,
            embedded_layer: local(LAYER, "ns")? - local(BARE, "ns")?,
            miss: fetch(throughput::MISS, "of raw GET")?,
            error_calls: fetch(ERROR_HERD, "origin calls")?,
            error_last: fetch(ERROR_HERD, "last answer, ms")?,
            leader_calls: fetch(leader::NAME, leader::CALLS)?.max(fetch(leader::NAME, leader::CALLS_THERE)?),
            recovery: fetch(leader::NAME, leader::RECOVERY)?.max(fetch(leader::NAME, leader::RECOVERY_THERE)?),
            stop_failed: most(outage::SIGSTOP, "failed")?,
            stop_worst: fetch(outage::SIGSTOP, "worst, ms")?,
            kill_failed: most(outage::SIGKILL, "failed")?,
            kill_worst: fetch(outage::SIGKILL, "worst, ms")?,
            back: fetch(outage::SIGKILL, "back, ms").or_else(|_| most(outage::SIGKILL, "back, ms"))?,
        })
    }
}
