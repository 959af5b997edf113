//! The properties that must hold after every simulation.

use crate::{
    calls::{calls, dropped_flights, explains_overload, fresh_hits, waits},
    plan::{Climate, Ends, How, Plan, Step},
    run::{Outcome, VIEW},
    shown::Shown,
    world::{Answer, Asked, Value},
};
use stampede_guard::{
    ErrorKind,
    store::{CacheKey, Entry, FillCondition, FillOutcome, Kind, Lease, LeaseReply},
    testing::{Event, EventKind},
};
use std::{collections::HashMap, time::Duration};

/// Returns the first property that does not hold.
pub(crate) fn check(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    for (caller, asked) in outcome.record.asked.iter().enumerate() {
        let Some((at, answer)) = asked.answer else {
            hold(asked.within, || format!("caller {caller} has vanished"))?; // nested callers may be dropped
            continue;
        };
        answered(plan, outcome, asked, at, answer)
            .and_then(|()| waits(plan, outcome, caller))
            .map_err(|what| format!("caller {caller}: {what}; {asked:?}"))?;
    }
    stored(outcome)?;
    calls(plan, outcome)?;
    dropped_flights(plan, outcome)?;
    fresh_hits(plan, outcome)?;
    nothing_is_left(plan, outcome)
}

fn answered(plan: &Plan, outcome: &Outcome, asked: &Asked, at: Duration, answer: Answer) -> Result<(), String> {
    match answer {
        Answer::Value(value) => valid(plan, outcome, asked, at, value),
        Answer::Error(kind) => {
            let failing = |ends| plan.asks().any(|ask| ask.ends == ends);
            let slow = plan.asks().any(|ask| ask.within.is_some() || ask.takes > plan.settings.fetch_timeout);
            let expected = match kind {
                ErrorKind::Origin => failing(Ends::Badly),
                ErrorKind::Panicked => failing(Ends::Panicking),
                ErrorKind::TimedOut => slow,
                ErrorKind::Overloaded => explains_overload(plan, outcome, asked, at),
                _ => false,
            };
            hold(expected, || "an error that nothing explains".into())
        }
        Answer::Panicked => hold(plan.asks().any(|ask| ask.ends == Ends::Panicking), || "a panic from nowhere".into()),
        Answer::Dropped => Ok(()),
        Answer::Never => Err("it was never answered".into()),
    }
}

fn valid(plan: &Plan, outcome: &Outcome, asked: &Asked, at: Duration, value: Value) -> Result<(), String> {
    let call = &outcome.record.calls[value.call];
    let caller = &outcome.record.asked[call.caller];
    hold(value.key == asked.key && call.key == asked.key, || "the value of another key".into())?;
    hold(call.well, || "the value of a call that failed".into())?;
    hold(value.version >= asked.floor, || format!("version {} after {} was invalidated", value.version, asked.floor))?;
    if std::ptr::eq(caller, asked) {
        return Ok(());
    }
    let told = told(plan, outcome, asked);
    hold(value.version >= told, || format!("version {}, although its node had learned of {told}", value.version))?;
    hold(call.how != How::Private, || "a private value of another caller".into())?;
    let ended = confirmed(outcome, value, at).unwrap_or(Duration::MAX);
    if call.how == How::NotStored {
        let waited = call.node == asked.node && asked.at <= ended && call.began <= at;
        return hold(waited, || "a value that must not be stored, and the caller did not wait for it".into());
    }
    let settings = &plan.settings;
    let useful = settings.fresh_for + settings.stale_while_revalidate.max(settings.stale_if_error);
    hold(ended.saturating_add(useful) > asked.at, || "a value older than its lifetimes".into())
}

/// Returns when the call of the value, or the last one before `at` that has renewed it, has ended.
pub(crate) fn confirmed(outcome: &Outcome, value: Value, at: Duration) -> Option<Duration> {
    let calls = outcome.record.calls.iter().enumerate();
    let confirms = calls.filter(|(number, call)| *number == value.call || call.renews == Some(value.call) && call.well);
    confirms.filter_map(|(_, call)| call.ended.filter(|ended| *ended <= at)).max()
}

/// Returns the newest version of which the node had learned the invalidation before this caller asked.
fn told(plan: &Plan, outcome: &Outcome, asked: &Asked) -> u64 {
    // A flight that is not polled does not handle its messages.
    if plan.asks().any(|ask| ask.held.is_some()) {
        return 0;
    }
    let heard = |event: &&Event| {
        let gone = matches!(event.kind(), EventKind::Notified { invalidated: true, .. });
        gone && event.node == Some(asked.node) && event.at < asked.at && key(event) == Some(asked.key)
    };
    let last = outcome.history.iter().filter(heard).map(|event| event.at).max();
    last.map_or(0, |at| version_before(outcome, asked.key, at))
}

/// Checks each fill: its writer held the lease, and its value is not older than the last invalidation or the value
/// stored before.
fn stored(outcome: &Outcome) -> Result<(), String> {
    let mut leases: HashMap<u64, Lease> = HashMap::new();
    let mut ids = HashMap::new();
    let (mut floors, mut newest): (HashMap<u64, u64>, HashMap<u64, u64>) = (HashMap::new(), HashMap::new());
    for event in &outcome.history {
        let Some(key) = key(event) else {
            if let EventKind::Flushed = event.kind() {
                (leases, ids) = Default::default();
            }
            continue;
        };
        match event.kind() {
            EventKind::GetOrLease(_, LeaseReply::Granted { lease, .. }) => _ = leases.insert(key, *lease),
            EventKind::Release(token, ..) => {
                _ = leases.remove(&key).filter(|lease| lease.token != *token).map(|lease| leases.insert(key, lease))
            }
            EventKind::Expire => _ = leases.remove(&key),
            EventKind::Evicted => _ = ids.remove(&key),
            EventKind::Invalidate => {
                leases.remove(&key);
                ids.remove(&key);
                floors.insert(key, version_before(outcome, key, event.at));
            }
            EventKind::Fill(right, writes, FillOutcome::Stored) => {
                let entry = &writes[0].entry;
                if ids.get(&key) == Some(&entry.meta().id) {
                    continue; // the same fill, sent again
                }
                let entitled = match right {
                    FillCondition::Lease(lease) => leases.get(&key) == Some(lease),
                    FillCondition::ReplaceMarker(marker) => ids.get(&key) == Some(marker),
                };
                hold(entitled, || format!("{}, without the right to it", Shown(event)))?;
                leases.remove(&key);
                ids.insert(key, entry.meta().id);
                if entry.meta().kind != Kind::Value {
                    continue;
                }
                let value = decode(entry.payload().bytes());
                let how = outcome.record.calls[value.call].how;
                hold(!matches!(how, How::Private | How::NotStored), || format!("{}, which was {how:?}", Shown(event)))?;
                let floor = floors.get(&key).copied().unwrap_or(0);
                hold(value.version >= floor, || format!("{}: {value:?} after {floor} was invalidated", Shown(event)))?;
                let newest = newest.entry(key).or_insert(0);
                hold(value.version >= *newest, || format!("{}: {value:?} over version {newest}", Shown(event)))?;
                *newest = value.version;
            }
            _ => {}
        }
    }
    Ok(())
}

fn nothing_is_left(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let rest = &outcome.rest;
    let still = |what| format!("{what}: {rest:?}");
    hold(rest.drained, || still("`drain` does not end"))?;
    hold(rest.in_flight.iter().all(|n| *n == 0), || still("something is in flight"))?;
    hold(rest.listening.iter().all(|n| *n == 0), || still("a listener is registered"))?;
    hold(rest.tasks == 0, || still("a task is left"))?;
    let heard = matches!(plan.climate, Climate::Calm | Climate::Shaky | Climate::Rough)
        && !plan.any(|step| matches!(step, Step::Kill(_) | Step::KillOnceItLeads(_)));
    hold(!heard || rest.leases == 0, || still("a lease was not released"))?;
    let answers = outcome
        .record
        .asked
        .iter()
        .filter(|asked| matches!(asked.answer, Some((_, Answer::Value(_) | Answer::Error(_)))));
    let counted = |r: &stampede_guard::Stats| {
        r.hits + r.stale_hits + r.misses + r.coalesced + r.bypassed + r.failed_open + r.rejected
    };
    let counted: u64 = rest.reports.iter().map(counted).sum();
    hold(counted == answers.count() as u64, || still("the number of answers differs from the reports"))
}

fn version_before(outcome: &Outcome, key: u64, at: Duration) -> u64 {
    let before = outcome.record.writes.iter().filter(|write| write.key == key && write.at < at);
    before.map(|write| write.version).max().unwrap_or(0)
}

pub(crate) fn key(event: &Event) -> Option<u64> {
    let number = |key: &str| key.strip_prefix(VIEW)?.strip_prefix(':')?.parse().ok();
    let key = |at: &CacheKey| number(std::str::from_utf8(at.primary()).expect("text")).expect("a key of the view");
    event.key().map(key)
}

/// Returns the value of an entry, unless it is a marker.
pub(crate) fn value(entry: &Entry) -> Option<Value> {
    (entry.meta().kind == Kind::Value).then(|| decode(entry.payload().bytes()))
}

fn decode(payload: &[u8]) -> Value {
    bincode::serde::decode_from_slice(payload, bincode::config::standard()).expect("a value").0
}

pub(crate) fn hold(holds: bool, else_what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(else_what()) }
}
