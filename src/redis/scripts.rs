//! The Lua scripts, with one typed function each.

use super::connection::{
    script::{self, Script, ScriptCall, digits, millis, number, unexpected},
    subscriber::CHANNEL,
};
use crate::{
    key::{CacheKey, KeyHash},
    store::{
        error::StoreError,
        lease::{FailureMarker, Lease, LeaseReply, LeaseRequest, Leaves},
        token::{Inbox, Token},
    },
};
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

pub(super) static LEAD: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/get_or_lease.lua")));
pub(super) static FILL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/fill.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/release.lua")));
static EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/extend.lua")));
static INVALIDATE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/invalidate.lua")));
static WAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/wake.lua")));

/// Returns the introduction with all scripts.
pub(super) fn introduction() -> Arc<Pipeline> {
    script::introduction(&[&LEAD, &FILL, &RELEASE, &EXTEND, &INVALIDATE, &WAKE].map(|script| script.text))
}

pub(super) fn release(lease: &str, token: Token, failure_marker: Option<FailureMarker>, hash: KeyHash) -> ScriptCall {
    // The failure marker has six digits for a time span.
    let span = |span: Duration| span.as_millis().min(999_999);
    let (blocks_for, remembered_for, report) = failure_marker.map_or((0, 0, Bytes::new()), |marker| {
        (span(marker.blocks_for), span(marker.remembered_for).max(1), marker.report)
    });
    let mut call = RELEASE.call(&[lease]);
    call.arg(token.as_bytes()).arg(blocks_for).arg(remembered_for).arg(&*report);
    call.arg(CHANNEL).arg(hash.as_bytes());
    call
}

pub(super) fn extend(lease: &str, held: Lease, span: Duration) -> ScriptCall {
    let mut call = EXTEND.call(&[lease]);
    call.arg(&owner(held)).arg(millis(span));
    call
}

/// Invalidates. `names` are the leases of these cache keys, then all entries.
pub(super) fn invalidate(names: &[String], keys: &[CacheKey], leaves: Leaves) -> ScriptCall {
    let mut call = INVALIDATE.call(names);
    call.arg(CHANNEL);
    call.arg(match leaves {
        Leaves::Nothing => Vec::new(),
        Leaves::StaleValues => b"e".to_vec(),
        Leaves::Lease(request) => {
            let (keep, px) = kept(request);
            [request.token.as_bytes(), &keep[..], px.to_string().as_bytes()].concat()
        }
    });
    for key in keys {
        call.arg(key.hash().as_bytes());
    }
    call
}

/// Wakes waiters: `left` is the rest of a lease that has ended. The calls run one after the other, so that the server
/// serves other clients in between.
pub(super) fn wake(lease: &str, hash: KeyHash, left: &[u8]) -> Vec<ScriptCall> {
    let (outcome, inboxes) = left.split_at(left.len().min(1));
    let message = [outcome, hash.as_bytes()].concat();
    let call = |wave| {
        let mut call = WAKE.call(&[lease]);
        call.arg(CHANNEL).arg(&message).arg(wave);
        call
    };
    inboxes.chunks(WAVE).map(call).collect()
}

/// Calls `get_or_lease`, or another script with its keys, arguments and replies. `names` are the name that the layout
/// uses, that of the lease, and the other one of the layout.
pub(super) fn get_or_lease(
    script: &Script,
    names: &[String; 3],
    key: &CacheKey,
    request: LeaseRequest,
    seen: Option<&[u8]>,
    inbox: Option<Inbox>,
) -> ScriptCall {
    let mut call = script.call(names);
    let (keep, px) = kept(request);
    call.arg(request.token.as_bytes()).arg(px);
    call.arg(seen.unwrap_or_default());
    match &inbox {
        Some(inbox) => call.arg(inbox.as_bytes()),
        None => call.arg(b""),
    };
    call.arg(MAX_INBOXES).arg(&keep).arg([&key.hash().as_bytes()[..], &key.layout().to_le_bytes()].concat());
    call
}

/// Returns how long a lease is kept after its end, in milliseconds, and how long in all.
fn kept(request: LeaseRequest) -> ([u8; 7], u64) {
    let kept_for = request.kept_for.min(MAX_KEPT);
    let mut keep = [0; 7];
    write_digits(&mut keep, kept_for.as_millis() as u64);
    (keep, millis(request.lease.saturating_add(kept_for)))
}

/// The reply of `get_or_lease`. The entry of a hit is not decoded yet. The stamp of a grant is also the server's time.
pub(super) enum LeadReply {
    Hit(Bytes),
    /// The entry is too large for a reply of a script.
    LargeHit,
    Granted {
        stamp: u64,
        seen_alive: bool,
        failures: u32,
    },
    Other(LeaseReply),
}

/// Parses the reply of `get_or_lease`: also whether the entry is, or is to be stored, under the other name of its layout.
/// `about_seen`: whether the script was sent the id of the entry that the caller has seen.
pub(super) fn parse_lead_reply(answer: Value, about_seen: bool) -> Result<(LeadReply, bool), StoreError> {
    let is_alive = |alive: &Value| Ok::<_, StoreError>(number(alive)? != 0 && about_seen);
    let mut parts = match answer {
        Value::Array(parts) => parts,
        // PERF: one string instead of an array, which costs the script more; with other measures the script takes 6.9
        // µs instead of 8.8 (docs/decisions/0031-cheap-scripts.md).
        Value::BulkString(granted) => {
            if let Some((stamp, [alive, failures, other])) = granted.split_at_checked(16)
                && let (Some(stamp), Some(failures)) = (digits(stamp), char::from(*failures).to_digit(10))
            {
                let seen_alive = *alive == b'1' && about_seen;
                return Ok((LeadReply::Granted { stamp, seen_alive, failures }, *other == b'1'));
            }
            return Err(unexpected(&Value::BulkString(Vec::new())));
        }
        answer => return Err(unexpected(&answer)),
    };
    let has_other_name = matches!(parts.first(), Some(Value::Int(2)));
    let reply = match (parts.first(), parts.get(1..).unwrap_or_default()) {
        (Some(Value::Int(1 | 2)), [_]) => match parts.pop() {
            Some(Value::BulkString(entry)) => LeadReply::Hit(entry.into()),
            _ => return Err(unexpected(&Value::Array(parts))),
        },
        (Some(Value::Int(1 | 2)), []) => LeadReply::LargeHit,
        (Some(Value::Int(3)), [remaining, Value::BulkString(holder), waiting, registered, alive]) => {
            LeadReply::Other(LeaseReply::Wait {
                remaining: Duration::from_millis(number(remaining)?),
                holder: parse_owner(holder).ok_or_else(|| unexpected(&Value::Nil))?,
                waiting: usize::try_from(number(waiting)?).unwrap_or(usize::MAX),
                registered: number(registered)? != 0,
                seen_alive: is_alive(alive)?,
            })
        }
        (Some(Value::Int(4)), [retry_in, Value::BulkString(report), alive]) => LeadReply::Other(LeaseReply::Failed {
            retry_in: Duration::from_millis(number(retry_in)?),
            report: Bytes::copy_from_slice(report),
            seen_alive: is_alive(alive)?,
        }),
        _ => return Err(unexpected(&Value::Array(parts))),
    };
    Ok((reply, has_other_name))
}

/// Parses the reply of `fill` or `release`: whether the lease was held, and the waiters that are left to wake.
pub(super) fn parse_end(answer: Value) -> Result<(bool, Vec<u8>), StoreError> {
    match answer {
        Value::BulkString(left) if is_left(&left) => Ok((true, left)),
        Value::BulkString(other) => Err(unexpected(&Value::BulkString(other))),
        answer => Ok((number(&answer)? != 0, Vec::new())),
    }
}

/// Reports whether the text can be an outcome and the inboxes that are left. The reply to another request must not be
/// published.
fn is_left(text: &[u8]) -> bool {
    let inboxes = text.len().saturating_sub(1);
    let names_an_outcome = matches!(text.first(), Some(b'v' | b'p' | b's' | b'f' | b'r' | b'g'));
    names_an_outcome && inboxes > 0 && inboxes.is_multiple_of(INBOX) && inboxes <= MAX_INBOXES * INBOX
}

/// Parses the reply of `invalidate` for this number of leases: the waiters of each that are left to wake, and the stamp
/// of the lease that was to be granted.
pub(super) fn parse_invalidated(
    answer: Value,
    leases: usize,
    leaves: Leaves,
) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
    let Value::Array(mut parts) = answer else { return Err(unexpected(&answer)) };
    let granted = parts.split_off(parts.len().min(leases));
    let stamp = match (&granted[..], leaves) {
        ([stamp], Leaves::Lease(_)) => Some(number(stamp)?),
        ([], Leaves::Nothing | Leaves::StaleValues) if parts.len() == leases => None,
        _ => return Err(unexpected(&Value::Array(granted))),
    };
    let left = |left| match left {
        Value::BulkString(left) if left.is_empty() || is_left(&left) => Ok(left),
        other => Err(unexpected(&other)),
    };
    Ok((parts.into_iter().map(left).collect::<Result<_, _>>()?, stamp))
}

/// Encodes token and stamp as the scripts compare them. PERF: into an array, because each fill encodes one.
pub(super) fn owner(lease: Lease) -> [u8; 32] {
    let mut owner = [0; 32];
    owner[..16].copy_from_slice(lease.token.as_bytes());
    write_digits(&mut owner[16..], lease.stamp);
    owner
}

/// Parses what [`owner`] encodes. The name of the entry is not a part of it.
fn parse_owner(owner: &[u8]) -> Option<Lease> {
    let (token, stamp) = owner.split_first_chunk()?;
    Some(Lease { token: Token::from_bytes(*token), stamp: digits(stamp)?, second_name: false })
}

/// Fills the buffer with the last digits of the number.
fn write_digits(buffer: &mut [u8], mut number: u64) {
    for digit in buffer.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Maximum time for which a lease is kept after its end: seven digits of milliseconds, 2.8 hours.
const MAX_KEPT: Duration = Duration::from_millis(9_999_999);

/// Maximum number of inboxes in a lease. Further processes poll, because each question of a waiter reads the whole list
/// (docs/decisions/0128-waves-of-wake-ups.md).
const MAX_INBOXES: usize = 1024;
/// Bytes of the inboxes that one call wakes: 64, each of eight bytes. The scripts that end a lease wake as many.
const WAVE: usize = 64 * INBOX;
/// Bytes of an inbox.
const INBOX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// On a connection that is out of step the reply may be an entry of another request. Its bytes must be published to
    /// no channel.
    ///
    /// Seen to fail if every string counts as a list of inboxes.
    #[test]
    fn reply_with_inboxes_is_not_taken_from_other_strings() {
        let end = |text: &[u8]| parse_end(Value::BulkString(text.to_vec()));
        let inboxes = |count: usize| [b"v".to_vec(), vec![b'i'; count * INBOX]].concat();
        assert_eq!(end(&inboxes(1)).ok(), Some((true, inboxes(1))));
        assert!(end(&inboxes(MAX_INBOXES)).is_ok());
        let granted = b"1700000000123456" as &[u8];
        for other in [&inboxes(0), &inboxes(MAX_INBOXES + 1), &inboxes(2)[..12], &[granted, b"100"].concat(), b"", b"1"]
        {
            assert!(end(other).is_err(), "{} bytes", other.len());
            let reply = Value::Array(vec![Value::BulkString(other.to_vec())]);
            assert!(other.is_empty() || parse_invalidated(reply, 1, Leaves::Nothing).is_err());
        }
        assert_eq!([0, 1].map(|number| parse_end(Value::Int(number)).ok()), [false, true].map(|is| Some((is, vec![]))));
    }
}
