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

/// Returns the introduction with all scripts.
pub(super) fn introduction() -> Arc<Pipeline> {
    script::introduction(&[&LEAD, &FILL, &RELEASE, &EXTEND, &INVALIDATE].map(|script| script.text))
}

pub(super) fn release(lease: &str, token: Token, failure_marker: Option<FailureMarker>, hash: KeyHash) -> ScriptCall {
    // The failure marker has six digits for a time span.
    let span = |span: Duration| span.as_millis().min(999_999);
    let (blocks_for, remembered_for, report) = failure_marker.map_or((0, 0, Bytes::new()), |marker| {
        (span(marker.blocks_for), span(marker.remembered_for).max(1), marker.report)
    });
    let mut call = RELEASE.call(&[lease]);
    call.arg(token.as_bytes()).arg(blocks_for).arg(remembered_for).arg(&*report).arg(CHANNEL).arg(hash.as_bytes());
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
    keys.iter().for_each(|key| _ = call.arg(key.hash().as_bytes()));
    call
}

/// Calls `get_or_lease`, or another script with its keys, arguments and replies. `names` are a name of the layout, that of
/// the lease, and one or all of the other names of the layout.
pub(super) fn get_or_lease(
    script: &Script,
    names: &[String],
    key: &CacheKey,
    request: LeaseRequest,
    seen: Option<&[u8]>,
    inbox: Option<Inbox>,
) -> ScriptCall {
    let mut call = script.call(names);
    let (keep, px) = kept(request);
    call.arg(request.token.as_bytes()).arg(px);
    call.arg(seen.unwrap_or_default()).arg(inbox.as_ref().map_or(&[][..], |inbox| inbox.as_bytes()));
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
    /// The two names have entries of other layouts.
    Taken,
}

/// Parses the reply of `get_or_lease`: also under which of the names of the layout that it got the entry is, or is to be
/// stored.
/// `about_seen`: whether the script was sent the id of the entry that the caller has seen.
pub(super) fn parse_lead_reply(answer: Value, about_seen: bool) -> Result<(LeadReply, usize), StoreError> {
    let is_alive = |alive: &Value| Ok::<_, StoreError>(number(alive)? != 0 && about_seen);
    let mut parts = match answer {
        Value::Array(parts) => parts,
        // PERF: one string instead of an array, which costs the script more; with other measures the script takes 6.9
        // µs instead of 8.8 (docs/decisions/0031-cheap-scripts.md).
        Value::BulkString(granted) => {
            if let Some((stamp, [alive, failures, other @ b'0'..=b'7'])) = granted.split_at_checked(16)
                && let (Some(stamp), Some(failures)) = (digits(stamp), char::from(*failures).to_digit(10))
            {
                let seen_alive = *alive == b'1' && about_seen;
                return Ok((LeadReply::Granted { stamp, seen_alive, failures }, usize::from(*other - b'0')));
            }
            return Err(unexpected(&Value::BulkString(Vec::new())));
        }
        answer => return Err(unexpected(&answer)),
    };
    let other = if let Some(Value::Int(hit @ 11..=17)) = parts.first() { *hit as usize - 10 } else { 0 };
    let reply = match (parts.first(), parts.get(1..).unwrap_or_default()) {
        (Some(Value::Int(1 | 11..=17)), [_]) => match parts.pop() {
            Some(Value::BulkString(entry)) => LeadReply::Hit(entry.into()),
            _ => return Err(unexpected(&Value::Array(parts))),
        },
        (Some(Value::Int(1 | 11..=17)), []) => LeadReply::LargeHit,
        (Some(Value::Int(5)), []) => LeadReply::Taken,
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
    Ok((reply, other))
}

/// Parses the reply of `fill`, `release` or `extend`: whether the lease was held.
pub(super) fn parse_held(reply: Value) -> Result<bool, StoreError> {
    match reply {
        Value::Int(held @ (0 | 1)) => Ok(held == 1),
        reply => Err(unexpected(&reply)),
    }
}

/// Parses the reply of `invalidate`: the stamp of the lease that was to be granted.
pub(super) fn parse_invalidated(reply: &Value, leaves: Leaves) -> Result<Option<u64>, StoreError> {
    match (reply, leaves) {
        (Value::BulkString(_), Leaves::Lease(_)) => Ok(Some(number(reply)?)),
        (Value::Int(1), Leaves::Nothing | Leaves::StaleValues) => Ok(None),
        _ => Err(unexpected(reply)),
    }
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
    Some(Lease { token: Token::from_bytes(*token), stamp: digits(stamp)?, name: 0 })
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

/// Maximum number of inboxes in a lease. Further processes poll, because the script that ends the lease publishes to all
/// inboxes, and the server serves no other client meanwhile (docs/decisions/0128-bounded-wake-ups.md).
const MAX_INBOXES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// On a connection that is out of step the reply may be that to another request: an entry, or the digits of a grant,
    /// which are a number as well.
    #[test]
    fn reply_to_another_request_is_no_outcome() {
        let granted = Value::BulkString(b"1700000000123456100".to_vec());
        for other in [granted, Value::Int(2), Value::Int(-1), Value::Nil, Value::Array(Vec::new())] {
            assert!(parse_held(other.clone()).is_err(), "{other:?}");
            assert!(parse_invalidated(&other, Leaves::Nothing).is_err());
        }
        assert_eq!([0, 1].map(|held| parse_held(Value::Int(held)).ok()), [Some(false), Some(true)]);
    }
}
