//! How many calls of the origin there may be, and for which callers.

use crate::{
    check::{confirmed, hold, key, value},
    plan::{Climate, How, Plan, STORE_TIMEOUT, Step, ms},
    run::Outcome,
    world::{Answer, Asked, Call},
};
use stampede_guard::{
    store::FillOutcome,
    testing::{Event, EventKind, Operation},
};
use std::time::Duration;

/// Checks each call: a caller wanted its result when it began, and no earlier call made it needless.
pub(crate) fn calls(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let calls = &outcome.record.calls;
    for (number, call) in calls.iter().enumerate() {
        hold(is_wanted(outcome, call), || format!("call {number} is for no caller: {call:?}"))?;
        for before in calls[..number].iter().filter(|before| before.key == call.key) {
            let enough = match plan.climate {
                Climate::Calm => enough_in_a_fleet(plan, outcome, before, call),
                Climate::Silence => enough_around_a_silence(plan, outcome, before, call),
                Climate::StoreFailure if before.node == call.node && is_down(plan, call.node) => {
                    // A refresh opens a flight in place of the one that runs, and may leave before it calls. Later callers
                    // join neither.
                    outcome.record.asked.iter().any(|asked| may_replace(asked, before, call)) || !overlap(before, call)
                }
                Climate::StoreFailure | Climate::Shaky | Climate::Rough | Climate::Storm => true,
            };
            hold(enough, || format!("call {number} was one too many: {call:?} after {before:?}"))?;
        }
    }
    Ok(())
}

/// Reports whether a caller of the node waits for the result, or its caller was served the stale entry already.
fn is_wanted(outcome: &Outcome, call: &Call) -> bool {
    let waits = |asked: &Asked| {
        let is_answered = asked.answer.is_some_and(|(at, _)| at < call.began);
        (asked.key, asked.node) == (call.key, call.node) && asked.at <= call.began && !is_answered
    };
    let is_refresh = matches!(outcome.record.asked[call.caller].answer, Some((_, Answer::Value(_))));
    is_refresh || outcome.record.asked.iter().any(waits)
}

/// One call in the fleet until its value is stale, and never two of a node at a time. A refresh waits only for the end of
/// the call before.
fn enough_in_a_fleet(plan: &Plan, outcome: &Outcome, before: &Call, call: &Call) -> bool {
    if before.node == call.node && overlap(before, call) {
        return false;
    }
    is_dropped(outcome, before)
        || call.how == How::Refreshing && !overlap(before, call)
        || is_spaced(plan, before, call)
}

/// One call in the fleet, as without the silence. Exceptions: callers that ask while the store is silent, or have just
/// asked, do not wait for it, and it may miss what is stored meanwhile.
fn enough_around_a_silence(plan: &Plan, outcome: &Outcome, before: &Call, call: &Call) -> bool {
    let Some(silence) = &plan.silence else { return false };
    let around = silence.start.saturating_sub(ms(300))..silence.end + ms(300);
    let may_fail_open = |call: &Call| outcome.record.asked[call.caller].at >= silence.start.saturating_sub(ms(300));
    let is_lost = before.ended.is_none_or(|ended| around.contains(&ended));
    is_lost
        || call.how == How::Refreshing && !overlap(before, call)
        || may_fail_open(before)
        || may_fail_open(call)
        || is_spaced(plan, before, call)
}

/// Reports whether the call ended with its caller.
fn is_dropped(outcome: &Outcome, call: &Call) -> bool {
    let answer = outcome.record.asked[call.caller].answer;
    call.how == How::Scoped && answer.is_some_and(|answer| Some(answer) == call.ended.map(|at| (at, Answer::Dropped)))
}

/// Checks that a flight that is dropped lets go of its waiters: one of them asks the store.
pub(crate) fn dropped_flights(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    if plan.climate != Climate::Calm {
        return Ok(());
    }
    let asked = &outcome.record.asked;
    for call in outcome.record.calls.iter().filter(|call| is_dropped(outcome, call)) {
        let (opened, dropped) = (asked[call.caller].at, call.ended.unwrap_or_default());
        let soon = dropped..dropped + ms(50) + plan.latency(call.node, Operation::GetOrLease);
        let joined = |joiner: &&Asked| {
            let waits = !joiner.refreshes && joiner.answer.is_none_or(|(at, _)| at > soon.end);
            (joiner.key, joiner.node) == (call.key, call.node) && opened < joiner.at && joiner.at < dropped && waits
        };
        let asks = |event: &Event| {
            let asks = matches!(event.kind(), EventKind::Get(_) | EventKind::GetOrLease(..));
            asks && event.node == Some(call.node) && soon.contains(&event.at) && key(event) == Some(call.key)
        };
        if let Some(joiner) = asked.iter().find(joined) {
            hold(outcome.history.iter().any(asks), || format!("{joiner:?} was not released at the end of {call:?}"))?;
        }
    }
    Ok(())
}

/// Checks that a fresh entry is served as soon as one read is answered, whichever callers leave meanwhile: a read
/// belongs to none of them.
pub(crate) fn fresh_hits(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    if plan.climate != Climate::Calm {
        return Ok(());
    }
    let fills = || {
        outcome.history.iter().filter_map(|event| match event.kind() {
            EventKind::Fill(_, writes, FillOutcome::Stored) => Some((key(event)?, event.at, value(&writes[0].entry)?)),
            _ => None,
        })
    };
    for asked in outcome.record.asked.iter().filter(|asked| !asked.held && !asked.within && !asked.refreshes) {
        let Some((answered, Answer::Value(_) | Answer::Error(_))) = asked.answer else { continue };
        let latency = plan.latency(asked.node, Operation::Get) + ms(2);
        let Some((_, stored, value)) = fills().filter(|(key, at, _)| *key == asked.key && *at <= asked.at).last()
        else {
            continue;
        };
        let ended = confirmed(outcome, value, stored).unwrap_or_default();
        if ended + plan.settings.fresh_for < asked.at + latency {
            continue;
        }
        // A caller that came before the entry may have opened a flight that this caller joins.
        let opens = |other: &Asked| {
            let left = other.answer.map_or(Duration::MAX, |(at, _)| at);
            (other.key, other.node) == (asked.key, asked.node)
                && other.at <= stored
                && left.saturating_add(3 * STORE_TIMEOUT) > asked.at
        };
        if outcome.record.asked.iter().any(opens) {
            continue;
        }
        let took = answered - asked.at;
        hold(took <= latency, || format!("a fresh hit took {took:?} of a store that takes {latency:?}: {asked:?}"))?;
    }
    Ok(())
}

fn is_spaced(plan: &Plan, before: &Call, call: &Call) -> bool {
    call.began >= before.ended.unwrap_or(Duration::MAX).saturating_add(plan.settings.fresh_for)
}

/// Reports whether the refresh came before the second call, and was there while the first one ran.
fn may_replace(asked: &Asked, before: &Call, call: &Call) -> bool {
    let is_there = asked.at <= call.began && asked.answer.is_none_or(|(at, _)| at >= before.began);
    asked.refreshes && (asked.key, asked.node) == (call.key, call.node) && is_there
}

fn overlap(before: &Call, call: &Call) -> bool {
    call.began < before.ended.unwrap_or(Duration::MAX)
}

/// Reports whether an `Overloaded` error at this time is explained: the caller has waited enough, or it waited in the
/// queue for a fetch without the store, and all permits are in use.
pub(crate) fn explains_overload(plan: &Plan, outcome: &Outcome, asked: &Asked, at: Duration) -> bool {
    let waited = at >= asked.at + plan.settings.wait;
    // A caller that is not polled may hold its permit before its call begins, and is late to see its error.
    let since = |call: &Call| {
        Some(&outcome.record.asked[call.caller]).filter(|asked| asked.held).map_or(call.began, |asked| asked.at)
    };
    let from = if asked.held { asked.at } else { at };
    let runs =
        |call: &&Call| call.node == asked.node && since(call) <= at && call.ended.is_none_or(|ended| ended >= from);
    let may_queue = !matches!(plan.climate, Climate::Calm | Climate::Shaky);
    waited || may_queue && outcome.record.calls.iter().filter(runs).count() >= plan.settings.max_fallback_fetches
}

/// Checks that the caller did not wait longer than it may.
pub(crate) fn waits(plan: &Plan, outcome: &Outcome, number: usize) -> Result<(), String> {
    let asked = &outcome.record.asked[number];
    let Some((at, answer)) = asked.answer.filter(|(_, answer)| *answer != Answer::Dropped) else { return Ok(()) };
    let (took, longest) = (at - asked.at, longest(plan, outcome, number));
    hold(took <= longest, || format!("{answer:?} took {took:?}, longer than {longest:?}"))
}

/// Returns the maximum time that the caller may wait. Its own call counts in full, because one that is not shared has no
/// timeout.
fn longest(plan: &Plan, outcome: &Outcome, number: usize) -> Duration {
    let settings = &plan.settings;
    let own = outcome.record.calls.iter().filter(|call| call.caller == number);
    let own: Duration = own.map(|call| call.ended.map_or(Duration::ZERO, |ended| ended - call.began)).sum();
    // A refresh waits for an earlier call, may miss the one after it, and then calls.
    let calls = if outcome.record.asked[number].refreshes { 3 } else { 1 };
    let step = calls * (settings.lease + 2 * STORE_TIMEOUT); // a lost message costs a lease
    let work = calls * work(plan);
    match plan.climate {
        Climate::Calm if settings.is_patient() => {
            let drops = plan.asks().filter(|ask| ask.how == How::Scoped && ask.patience.is_some()).count();
            // A node that misses a wake-up asks a lease later, when the entry may be past its lifetimes.
            let lifetimes = settings.fresh_for + settings.stale_while_revalidate;
            let misses = plan.any(|step| matches!(step, Step::LoseWakes(_))) && lifetimes < settings.lease;
            (1 + drops as u32 + u32::from(misses)) * work + plan.keys as u32 * step
        }
        Climate::Silence => work + 3 * step,
        Climate::Rough if settings.is_patient() => own + 4 * (work + step),
        _ => {
            let pause = plan.asks().filter_map(|ask| ask.held).max().unwrap_or_default();
            settings.wait + own + pause + QUEUE + step
        }
    }
}

/// Returns the maximum time that a fetch takes, with the fetches within it.
fn work(plan: &Plan) -> Duration {
    let slowest = |key| plan.asks().filter(|ask| ask.key == key).map(|ask| ask.takes).max().unwrap_or_default();
    let total: Duration = (0..plan.keys).map(|key| slowest(key) + ms(100)).sum();
    total.min(plan.settings.fetch_timeout)
}

fn is_down(plan: &Plan, node: usize) -> bool {
    plan.latencies[node].iter().all(|(_, fault)| !format!("{fault:?}").contains("Delayed"))
        && !plan.latencies[node].is_empty()
}

/// Maximum time that a flight waits for a `max_fallback_fetches` permit.
const QUEUE: Duration = ms(1000);
