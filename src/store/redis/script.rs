//! The scripts, one typed function each.

use super::{Ask, KeyHash, Lead, Lease, Right, StoreError, Token, Tombstone};
use crate::{
    lease::Inbox,
    wire::{CHANNEL, Call, Script, digits, load, millis, number, unexpected},
};
use bytes::Bytes;
use redis::Value;
use std::time::Duration;

/// Who decides who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The lease: the first who asks.
    Lease,
    /// A lock, which has let this one through. Where a lease stands it ends: it is a fence, and no more.
    LockTaken,
    /// A lock, which somebody else holds: nothing is granted. Where no lease stands, nobody is named as its holder, and
    /// no wake-up will come.
    LockBusy,
}

pub(super) struct Scripts {
    lead: Script,
    fill: Script,
    abandon: Script,
    extend: Script,
    invalidate: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            lead: Script::new(LEAD),
            fill: Script::new(FILL),
            abandon: Script::new(ABANDON),
            extend: Script::new(EXTEND),
            invalidate: Script::new(INVALIDATE),
        }
    }
}

impl Scripts {
    pub(super) fn lead(
        &self,
        entry: &str,
        lease: &str,
        ask: Ask,
        seen: Option<&[u8]>,
        inbox: Option<Inbox>,
        by: By,
    ) -> Call {
        let mut call = self.lead.call(&[entry, lease]);
        call.arg(ask.token.as_bytes()).arg(millis(ask.lease)).arg(seen.unwrap_or_default());
        call.arg(inbox.as_ref().map_or(&[][..], |inbox| inbox.as_bytes())).arg(MAX_INBOXES);
        match by {
            By::Lease => {}
            By::LockTaken => _ = call.arg("take"),
            By::LockBusy => _ = call.arg("look"),
        }
        call
    }

    /// `writes` begins with the entry of the address itself: its name, its envelope, and for how long it is kept.
    pub(super) fn fill(&self, lease: &str, right: Right, hash: KeyHash, writes: &[(String, Bytes, Duration)]) -> Call {
        let mut keys = vec![lease];
        keys.extend(writes.iter().map(|(name, ..)| name.as_str()));
        let mut call = self.fill.call(&keys);
        match right {
            Right::Lease(lease) => call.arg(owner(lease)).arg(b""),
            Right::Promote(marker) => call.arg(b"").arg(marker.as_bytes()),
        };
        call.arg(CHANNEL).arg(hash.as_bytes());
        for (_, envelope, kept) in writes {
            call.arg(envelope).arg(millis(*kept));
        }
        call
    }

    pub(super) fn abandon(&self, lease: &str, token: Token, tombstone: Option<Tombstone>, hash: KeyHash) -> Call {
        let none = Tombstone { first: Duration::ZERO, most: Duration::ZERO, code: 0 };
        let Tombstone { first, most, code } = tombstone.unwrap_or(none);
        // Six digits in the tombstone.
        let span = |span: Duration| span.as_millis().min(999_999).to_string();
        let mut call = self.abandon.call(&[lease]);
        call.arg(token.as_bytes()).arg(span(first)).arg(span(most)).arg(code.to_string());
        call.arg(CHANNEL).arg(hash.as_bytes());
        call
    }

    pub(super) fn extend(&self, lease: &str, held: Lease, span: Duration) -> Call {
        let mut call = self.extend.call(&[lease]);
        call.arg(owner(held)).arg(millis(span));
        call
    }

    pub(super) fn invalidate(&self, lease: &str, entries: &[String], hash: KeyHash) -> Call {
        let mut keys = vec![lease];
        keys.extend(entries.iter().map(String::as_str));
        let mut call = self.invalidate.call(&keys);
        call.arg(CHANNEL).arg(hash.as_bytes());
        call
    }
}

/// Loads all scripts and asks for the time, in one round trip.
pub(super) fn introduction() -> redis::Pipeline {
    let mut pipeline = load(&[LEAD, FILL, ABANDON, EXTEND, INVALIDATE]);
    pipeline.cmd("TIME");
    pipeline
}

/// What `lead` answered. A hit is yet to be read, a grant has a stamp to learn from.
pub(super) enum Led {
    Hit(Bytes),
    Granted { stamp: u64, seen_alive: bool },
    Other(Lead),
}

/// `about_seen`: whether the script was asked about the entry that the caller has seen.
pub(super) fn led(answer: Value, about_seen: bool) -> Result<Led, StoreError> {
    let stands = |alive: &Value| Ok::<_, StoreError>(number(alive)? != 0 && about_seen);
    let mut parts = match answer {
        Value::Array(parts) => parts,
        Value::BulkString(granted) => {
            let granted = granted.split_at_checked(16).and_then(|(stamp, alive)| Some((digits(stamp)?, alive == b"1")));
            let (stamp, alive) = granted.ok_or_else(|| unexpected(&Value::BulkString(Vec::new())))?;
            return Ok(Led::Granted { stamp, seen_alive: alive && about_seen });
        }
        answer => return Err(unexpected(&answer)),
    };
    let led = match (parts.first(), parts.get(1..).unwrap_or_default()) {
        (Some(Value::Int(1)), [_]) => match parts.pop() {
            Some(Value::BulkString(entry)) => Led::Hit(entry.into()),
            _ => return Err(unexpected(&Value::Array(parts))),
        },
        (Some(Value::Int(3)), [remaining, Value::BulkString(holder), waiting, registered, alive]) => {
            Led::Other(Lead::Wait {
                remaining: Duration::from_millis(number(remaining)?),
                holder: Token::from_bytes(holder.as_slice().try_into().map_err(StoreError::new)?),
                waiting: usize::try_from(number(waiting)?).unwrap_or(usize::MAX),
                registered: number(registered)? != 0,
                seen_alive: stands(alive)?,
            })
        }
        (Some(Value::Int(4)), [retry_in, code, alive]) => Led::Other(Lead::Failed {
            retry_in: Duration::from_millis(number(retry_in)?),
            code: u16::try_from(number(code)?).unwrap_or(0),
            seen_alive: stands(alive)?,
        }),
        _ => return Err(unexpected(&Value::Array(parts))),
    };
    Ok(led)
}

/// As the scripts compare it.
fn owner(lease: Lease) -> [u8; 32] {
    let (mut owner, mut stamp) = ([0; 32], lease.stamp);
    owner[..16].copy_from_slice(lease.token.as_bytes());
    for digit in owner[16..].iter_mut().rev() {
        *digit = b'0' + (stamp % 10) as u8;
        stamp /= 10;
    }
    owner
}

/// More processes than that poll: each one costs the script a message.
const MAX_INBOXES: &str = "64";
const LEAD: &str = include_str!("script/lead.lua");
const FILL: &str = include_str!("script/fill.lua");
const ABANDON: &str = include_str!("script/abandon.lua");
const EXTEND: &str = include_str!("script/extend.lua");
const INVALIDATE: &str = include_str!("script/invalidate.lua");
