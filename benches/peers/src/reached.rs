//! What this crate was to reach, and whether it did.

use crate::{Result, figures::Own, report::wrapped, scenarios::memory, subjects::own, table::Table};
use std::fmt::Write;

/// As Markdown; what was not reached has the reason.
pub(crate) fn table(tables: &[Table]) -> Result<String> {
    let figures = Own::of(tables)?;
    let mut text = String::from("| work | limit | to reach | measured | reached |\n|---|---|---|---|---|\n");
    let mut row = |work: &str, limit: &str, to_reach: &str, measured: String, reached: bool, why_not: &str| {
        let reached = if reached { "yes".to_owned() } else { format!("**no**: {why_not}") };
        let _ = writeln!(text, "| {work} | {limit} | {to_reach} | {measured} | {reached} |");
    };
    row(
        "2 processes x 500 on one cold key, 50 ms: origin calls / last answer / Redis commands",
        "1 / 50 ms / about 6",
        "1 / 55 ms / 12",
        format!("{:.0} / {:.1} ms / {:.0}", figures.herd_calls, figures.herd_last, figures.herd_commands),
        figures.herd_calls <= 1.0 && figures.herd_last <= 55.0 && figures.herd_commands <= 12.0,
        &format!(
            "so long it takes these cores to start and answer a thousand callers; moka, without Redis: {:.1} ms",
            figures.moka_last
        ),
    );
    row(
        "Redis hit, 64 callers, 64 keys, 1 KiB, against raw GET",
        "1.00",
        "0.95",
        format!("{:.2}; of one key {:.2}", figures.hit, figures.same),
        figures.hit >= 0.95,
        "a hit looks into the flights, decodes and judges an entry, more than twice the instructions of the GET; reads together (`MGET`) make up for most of that, and what is left hangs on how the threads of these two cores wake each other",
    );
    row(
        "near hit, embedded hit against moka `get`; through the layer",
        "1.00",
        "0.8; 1 µs",
        format!(
            "{:.2}, {:.2}; {:.2} µs, {:.2} µs",
            figures.near,
            figures.embedded,
            figures.near_layer / 1e3,
            figures.embedded_layer / 1e3
        ),
        figures.near >= 0.8 && figures.near_layer <= 1e3,
        "the layer makes a key and a response by RFC 9111; how fast this machine is, says the service without the layer",
    );
    row(
        "miss, compute 0, 64 callers, against raw GET",
        "0.33",
        "0.22",
        format!("{:.2}", figures.miss),
        figures.miss >= 0.22,
        "each of both scripts takes 7 to 10 µs of an idle Redis and some 20 of this one, and the client 60 to 75 µs: three round trips, the lease, its fence, a task of its own",
    );
    row(
        "500 callers in 2 processes, failing origin: calls / last answer",
        "1 / 50 ms",
        "1 / 60 ms",
        format!("{:.0} / {:.1} ms", figures.error_calls, figures.error_last),
        figures.error_calls <= 1.0 && figures.error_last <= 60.0,
        "see the first row",
    );
    row(
        "caller that leads is dropped, 100 waiters: calls / recovery",
        "1 / 0",
        "1 / 0 extra",
        format!("{:.0} / {:.1} ms", figures.leader_calls, figures.recovery),
        figures.leader_calls <= 1.0 && figures.recovery <= SLACK,
        "the computation went on, the answer took its time to a hundred waiters",
    );
    row(
        "Redis SIGSTOPped 3 s, 16 clients: failed / worst latency",
        "0 / 50 ms",
        "0 / 300 ms",
        format!("{:.0} / {:.0} ms", figures.stop_failed, figures.stop_worst),
        figures.stop_failed == 0.0 && figures.stop_worst <= 300.0 + SLACK,
        "the operation timeout of 250 ms, the 50 ms, and what the other subjects took of these cores",
    );
    row(
        "Redis SIGKILLed 15 s: failed / worst latency / back",
        "0 / 50 ms / 0",
        "0 / 300 ms / 1.5 s",
        format!("{:.0} / {:.0} ms / {:.1} s", figures.kill_failed, figures.kill_worst, figures.back / 1e3),
        figures.kill_failed == 0.0 && figures.kill_worst <= 300.0 + SLACK && figures.back <= 1_500.0,
        "see the table below",
    );
    if let Some(memory) = tables.iter().find(|table| table.name == memory::NAME) {
        let figure = |column| memory.figure(own::FETCH.name, column).ok_or("no figures of memory");
        let (waiter, idle, future) = (figure(memory::WAITER)?, figure(memory::IDLE)?, figure(memory::FUTURE)?);
        row(
            "memory per waiting caller; per idle key",
            "task size; 0",
            "under 1 KiB over the caller's own future; 0",
            format!("{waiter:.0} bytes over a future of {future:.0}; {idle:.0} bytes"),
            waiter < 1024.0 && idle < PAGE_NOISE,
            "what waits is in a box of its own",
        );
    }
    let _ = write!(
        text,
        "\n{}",
        wrapped(&format!(
            "A recovery counts as none, and latencies of an outage as reached, up to {SLACK:.0} ms beyond: timers are of whole \
             milliseconds, and an answer takes its time to a hundred waiters. Of a dropped leader the worse of both places is \
             shown; failures are those of all repeats; the hits of the third row are asked for by one thread.",
        ))
    );
    Ok(text)
}

/// Milliseconds.
const SLACK: f64 = 5.0;
/// Bytes per key that whole pages make of nothing.
const PAGE_NOISE: f64 = 8.0;
