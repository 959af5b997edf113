//! The scripts, one typed function each.

use super::{Ask, KeyHash, Lead, Lease, Right, StoreError, Token, Tombstone, link::Link};
use crate::lease::Inbox;
use bytes::Bytes;
use redis::{Arg, Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use std::time::Duration;

/// The texts with their SHA-1.
pub(super) struct Scripts {
    lead: redis::Script,
    fill: redis::Script,
    abandon: redis::Script,
    extend: redis::Script,
    invalidate: redis::Script,
}

impl Default for Scripts {
    fn default() -> Self {
        let script = redis::Script::new;
        Self {
            lead: script(LEAD),
            fill: script(FILL),
            abandon: script(ABANDON),
            extend: script(EXTEND),
            invalidate: script(INVALIDATE),
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
        max_inboxes: usize,
    ) -> Call {
        let mut call = Call::new(&self.lead, LEAD, &[entry, lease]);
        call.arg(ask.token.as_bytes()).arg(millis(ask.lease)).arg(seen.unwrap_or_default());
        call.arg(inbox.as_ref().map_or(&[][..], |inbox| inbox.as_bytes())).arg(max_inboxes.to_string());
        call
    }

    /// `writes` begins with the entry of the address itself: its name, its envelope, and for how long it is kept.
    pub(super) fn fill(&self, lease: &str, right: Right, hash: KeyHash, writes: &[(String, Bytes, Duration)]) -> Call {
        let mut keys = vec![lease];
        keys.extend(writes.iter().map(|(name, ..)| name.as_str()));
        let mut call = Call::new(&self.fill, FILL, &keys);
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
        let mut call = Call::new(&self.abandon, ABANDON, &[lease]);
        call.arg(token.as_bytes()).arg(span(first)).arg(span(most)).arg(code.to_string());
        call.arg(CHANNEL).arg(hash.as_bytes());
        call
    }

    pub(super) fn extend(&self, lease: &str, held: Lease, span: Duration) -> Call {
        let mut call = Call::new(&self.extend, EXTEND, &[lease]);
        call.arg(owner(held)).arg(millis(span));
        call
    }

    pub(super) fn invalidate(&self, lease: &str, entries: &[String], hash: KeyHash) -> Call {
        let mut keys = vec![lease];
        keys.extend(entries.iter().map(String::as_str));
        let mut call = Call::new(&self.invalidate, INVALIDATE, &keys);
        call.arg(CHANNEL).arg(hash.as_bytes());
        call
    }
}

/// Loads all scripts and asks for the time, in one round trip: sent on every new connection, so that the first request
/// need not.
pub(super) fn introduction() -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    for text in [LEAD, FILL, ABANDON, EXTEND, INVALIDATE] {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(text);
    }
    pipeline.cmd("TIME");
    pipeline
}

/// A script with its keys and arguments, each copied once: a fill has the whole payload among them.
pub(super) struct Call {
    text: &'static str,
    cmd: Cmd,
}

impl Call {
    fn new(script: &redis::Script, text: &'static str, keys: &[&str]) -> Self {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(script.get_hash()).arg(keys.len()).arg(keys);
        Self { text, cmd }
    }

    fn arg(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        self.cmd.arg(arg.as_ref());
        self
    }

    /// One round trip; two if the server has forgotten its scripts.
    pub(super) async fn run(self, link: &dyn Link) -> RedisResult<Value> {
        match link.send(&self.cmd).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                link.send(&self.in_full()).await
            }
            answer => answer,
        }
    }

    /// The same with the text in place of its hash.
    fn in_full(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.text);
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
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
    let Value::Array(mut parts) = answer else { return Err(unexpected(&answer)) };
    let led = match (parts.first(), parts.get(1..).unwrap_or_default()) {
        (Some(Value::Int(1)), [_]) => match parts.pop() {
            Some(Value::BulkString(entry)) => Led::Hit(entry.into()),
            _ => return Err(unexpected(&Value::Array(parts))),
        },
        (Some(Value::Int(2)), [stamp, alive]) => Led::Granted { stamp: number(stamp)?, seen_alive: stands(alive)? },
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

/// A number, as an integer or in digits.
pub(super) fn number(value: &Value) -> Result<u64, StoreError> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    number.ok_or_else(|| unexpected(value))
}

/// By shape only: it may hold users' data.
fn unexpected(value: &Value) -> StoreError {
    let shape = match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) => "a string",
        Value::Array(_) => "an array",
        _ => "something else",
    };
    StoreError::new(format!("the server answered {shape}, which is not what the script returns"))
}

fn millis(span: Duration) -> String {
    span.as_millis().max(1).min(u128::from(MAX_MILLIS)).to_string()
}

/// As the scripts compare it.
fn owner(lease: Lease) -> Vec<u8> {
    let mut owner = lease.token.as_bytes().to_vec();
    owner.extend_from_slice(format!("{:016}", lease.stamp).as_bytes());
    owner
}

/// Followed by the inbox.
pub(super) const CHANNEL: &str = "stampede-guard:";
/// About 285 years; an expiry that is larger is an error.
const MAX_MILLIS: u64 = 9_000_000_000_000;
const LEAD: &str = include_str!("script/lead.lua");
const FILL: &str = include_str!("script/fill.lua");
const ABANDON: &str = include_str!("script/abandon.lua");
const EXTEND: &str = include_str!("script/extend.lua");
const INVALIDATE: &str = include_str!("script/invalidate.lua");
