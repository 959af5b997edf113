//! Herds in one process: on one key, and with a key for each caller.

use crate::{
    Extent,
    kit::{self, head, median, ms, row},
    support::{Monitor, Origin, RedisServer, herd},
};
use stampede_guard::{ErrorKind, StampedeGuard};
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

pub(crate) async fn of_one_key(extent: Extent) {
    let server = RedisServer::start();
    let guard = kit::guard(server.client()).max_waiters(usize::MAX);
    ask(&guard, 1, |_| "warm".to_owned()).await;
    head(&["callers", "origin calls", "Redis commands", "last answer less 50 ms, ms", "µs per caller"]);
    for &callers in extent.of(&[1, 10, 100, 1_000, 10_000, 100_000]) {
        let mut beyond = Vec::new();
        let (mut calls, mut commands) = (0, 0);
        for repetition in 0..extent.times(300).min(if callers < 10_000 { 5 } else { 3 }) {
            let key = format!("{callers}-{repetition}");
            let monitor = Monitor::start(&server).await;
            let (took, made) = ask(&guard, callers, |_| key.clone()).await;
            (calls, commands) = (made.max(calls), monitor.stop().await.len().max(commands));
            beyond.push(ms(took.saturating_sub(COMPUTE)));
        }
        let beyond = median(beyond);
        let each = format!("{:.2}", beyond * 1e3 / callers as f64);
        row(&[callers.to_string(), calls.to_string(), commands.to_string(), format!("{beyond:.1}"), each]);
    }
}

pub(crate) async fn of_many_keys(extent: Extent) {
    let server = RedisServer::start();
    head(&[
        "keys",
        "origin calls",
        "last answer less 50 ms, ms",
        "µs per key",
        "default `store_timeout`: origin calls",
        "failed open",
        "refused",
        "last answer less 50 ms, ms",
    ]);
    for &keys in extent.of(&[1, 10, 100, 1_000, 10_000, 100_000]) {
        let patient = kit::guard(server.client()).namespace("patient").store_timeout(A_MINUTE).wait_timeout(A_MINUTE);
        let usual = kit::guard(server.client()).namespace("usual");
        let mut cells = vec![keys.to_string()];
        for guard in [&patient, &usual] {
            server.flushall().await;
            ask(guard, 1, |_| "warm".to_owned()).await;
            let (took, calls) = ask(guard, keys, |key| key.to_string()).await;
            let beyond = ms(took.saturating_sub(COMPUTE));
            cells.push(calls.to_string());
            if std::ptr::eq(guard, &usual) {
                let report = guard.stats();
                cells.extend([report.failed_open.to_string(), report.rejected.to_string()]);
            }
            cells.push(format!("{beyond:.1}"));
            if std::ptr::eq(guard, &patient) {
                cells.push(format!("{:.1}", beyond * 1e3 / keys as f64));
            }
        }
        row(&cells);
    }
}

/// Sends all callers at once. Returns the time until the last answer and the number of origin calls.
async fn ask(guard: &StampedeGuard, callers: usize, key: impl Fn(usize) -> String) -> (Duration, usize) {
    let (origin, began) = (Origin::new(), Instant::now());
    let answers = herd(callers, |caller| {
        let (guard, origin, key) = (guard.clone(), origin.clone(), key(caller));
        async move {
            let call = async move || Ok::<_, Infallible>(origin.work(COMPUTE).await as u64);
            guard.fetch(key, call).await
        }
    })
    .await;
    let took = began.elapsed();
    let refused = answers.into_iter().filter_map(Result::err);
    assert!(
        refused.map(|error| error.kind()).all(|kind| kind == ErrorKind::Overloaded),
        "all other callers are answered"
    );
    guard.drain().await; // the fills continue after the answers
    (took, origin.calls())
}

const COMPUTE: Duration = Duration::from_millis(50);
const A_MINUTE: Duration = Duration::from_secs(60);
