//! Fills, and the way of large entries past the script.
//!
//! From 7.0 on, Redis hashes every string that it passes to a script, byte by byte, while all its other clients wait:
//! 64 KiB take Redis 7.0 85 µs, and `SET` 3 µs. So a large entry is staged: it is set under a staging name, and the
//! script renames it, in one transaction (`docs/decisions/0120-staged-fills.md`).
//!
//! A server or proxy may refuse transactions, or `RENAME`. Then the staged entries are deleted, and the fill is sent once
//! more, with its entries as arguments of the script.

use super::{
    connection::{
        error_class::is_unsupported,
        reconnecting::{CommandLink, transaction},
        script::{ScriptCall, millis},
        subscriber::CHANNEL,
    },
    names::{NamesInUse, entry_name, lease_name, staging_name},
    scripts::{FILL, owner},
};
use crate::{
    key::{CacheKey, KeyHash},
    store::{
        entry::Entry,
        port::{FillCondition, RedirectExtension, Write},
        token::Token,
    },
};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, RedisWrite, ServerErrorKind, ToRedisArgs, Value};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A fill, as its script takes it.
pub(super) struct Fill<'a> {
    pub(super) lease: String,
    pub(super) condition: FillCondition,
    pub(super) hash: KeyHash,
    /// Begins with the write of the cache key itself.
    pub(super) writes: Vec<NamedWrite<'a>>,
    /// The id of the entry that the first write renews, if it is to be sent as a renewal.
    pub(super) renews: Option<Token>,
    /// The names of redirect entries, their ids, and their retentions.
    pub(super) extensions: Vec<(String, Token, Duration)>,
}

/// An entry with its name, and with what its envelope needs.
pub(super) struct NamedWrite<'a> {
    pub(super) name: String,
    pub(super) entry: &'a Entry,
    /// The staging name, if the entry is large.
    pub(super) staging: Option<String>,
    /// Number of bytes of the envelope that are sent: all, unless the server has the rest.
    length: usize,
    retention: Duration,
    layout: u64,
    hash: KeyHash,
    offset: i64,
    stamp: u64,
}

impl<'a> Fill<'a> {
    /// `offset` leads from the clock of this process to that of the server. `whole`: renews no entry.
    pub(super) fn new(
        key: &CacheKey,
        condition: FillCondition,
        writes: &'a [Write],
        names: &NamesInUse,
        offset: i64,
        whole: bool,
    ) -> Self {
        let (is_second, stamp, renewal) = match condition {
            FillCondition::Lease(lease) => {
                (lease.second_name, lease.stamp, writes.first().and_then(|write| write.renews).filter(|_| !whole))
            }
            FillCondition::ReplaceMarker(_) => (names.is_second(key.layout()), 0, None),
        };
        // PERF: once for the message and the entry, because a hash takes 700 instructions.
        let hash = key.hash();
        let write = |(number, write): (usize, &'a Write)| {
            let Write { key: at, entry, .. } = write;
            let (name, hash) = if at == key { (entry_name(at, is_second), hash) } else { (names.entry(at), at.hash()) };
            let length = renewal.map_or(entry.encoded_len(), |renewal| Entry::encoded_up_to(renewal.changed));
            let is_large = length >= STAGED_FROM && renewal.is_none();
            let staging = is_large.then(|| staging_name(key, entry.meta().id, number));
            let retention = entry.meta().lifetimes.retention();
            NamedWrite { name, entry, staging, length, retention, layout: at.layout(), hash, offset, stamp }
        };
        let extension =
            |RedirectExtension { key, id, retention }: &RedirectExtension| (names.entry(key), *id, *retention);
        Self {
            extensions: writes.iter().flat_map(|write| &write.extensions).map(extension).collect(),
            writes: writes.iter().enumerate().map(write).collect(),
            lease: lease_name(key),
            renews: renewal.map(|renewal| renewal.id),
            condition,
            hash,
        }
    }

    /// Returns the call of the script. It renames the staged entries, and gets all other entries as arguments.
    fn call(&self) -> ScriptCall {
        let Self { writes, extensions, .. } = self;
        let mut keys = Vec::with_capacity(1 + 2 * writes.len() + extensions.len());
        keys.push(&*self.lease);
        keys.extend(writes.iter().map(|write| &*write.name));
        keys.extend(extensions.iter().map(|(name, ..)| &**name));
        keys.extend(writes.iter().filter_map(|write| write.staging.as_deref()));
        let mut call = FILL.call(&keys);
        let renewed = self.renews.as_ref().map(|id| &id.as_bytes()[..]).unwrap_or_default();
        match self.condition {
            FillCondition::Lease(lease) => call.arg(&owner(lease)).arg(renewed),
            FillCondition::ReplaceMarker(marker) => call.arg(b"").arg(marker.as_bytes()),
        };
        call.arg(CHANNEL).arg(self.hash.as_bytes());
        for write in writes {
            match write.staging {
                Some(_) => call.arg(&write.entry.encoded_id()),
                None => call.arg(write),
            };
            call.arg(millis(write.retention));
        }
        for (_, id, retention) in extensions {
            call.arg(id.as_bytes()).arg(millis(*retention));
        }
        if !extensions.is_empty() {
            call.arg(extensions.len());
        }
        call
    }

    /// Stages the large entries, and calls the script, in one transaction.
    async fn transact(&self, link: &dyn CommandLink, script: Cmd) -> Transacted {
        let mut commands: Vec<_> = self.writes.iter().filter_map(NamedWrite::stage).collect();
        commands.push(script);
        let length = commands.len();
        Transacted::of(link.transact(&transaction(commands)).await, length)
    }

    /// Makes all entries arguments of the script. Returns the staging names that may exist.
    fn unstage(&mut self) -> Vec<String> {
        self.writes.iter_mut().filter_map(|write| write.staging.take()).collect()
    }
}

impl NamedWrite<'_> {
    /// Returns the command that stages the entry, if it is large.
    fn stage(&self) -> Option<Cmd> {
        let name = self.staging.as_deref()?;
        let mut set = Cmd::with_capacity(5, name.len() + self.entry.encoded_len() + 32);
        set.arg("SET").arg(name).arg(self).arg("PX").arg(millis(self.retention));
        Some(set)
    }
}

/// The envelope. PERF: written into the buffer of the command, which is the only copy of the payload before that of the
/// whole request.
impl ToRedisArgs for NamedWrite<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut buffer = out.bufmut_for_next_arg(self.length);
        self.entry.encode_into(self.layout, self.hash, self.offset, self.stamp, self.length, &mut buffer);
    }
}

/// Whether the server permits staging, as far as is known.
#[derive(Default)]
pub(super) struct Staging {
    /// One more than the number of the connection over which a server has last refused it, or 0. A later connection may
    /// lead to another server, or be made after the user has got the rights.
    refused_at: AtomicU64,
}

impl Staging {
    /// Sends the fill. Returns the reply of its script.
    pub(super) async fn send(&self, mut fill: Fill<'_>, link: &dyn CommandLink) -> RedisResult<Value> {
        let connection = link.connection(fill.lease.as_bytes()) + 1;
        if self.refused_at.load(Relaxed) == connection {
            fill.unstage();
        }
        if fill.writes.iter().any(|write| write.staging.is_some()) {
            let mut outcome = fill.transact(link, fill.call().into_cmd()).await;
            if matches!(outcome, Transacted::ScriptForgotten) {
                outcome = fill.transact(link, fill.call().in_full()).await;
            }
            match outcome {
                Transacted::Answered(reply) => return reply,
                Transacted::ScriptForgotten | Transacted::NotFilled => {}
                Transacted::NotPermitted => {
                    self.refused_at.store(connection, Relaxed);
                    // A server that knows `MULTI` but not `EXEC` would queue all further commands.
                    link.verify().await;
                }
            }
            // The inline script must not name the staged entries: in a slot that moves, a script whose keys include an
            // absent one is refused. An error is ignored, because they expire.
            _ = link.send(redis::cmd("DEL").arg(fill.unstage())).await;
        }
        fill.call().run(link).await
    }
}

/// The outcome of a transaction that stages.
enum Transacted {
    /// The reply of the script, or an error without a reply, or a reply that no transaction of this length has.
    Answered(RedisResult<Value>),
    /// The entries are staged.
    ScriptForgotten,
    /// Nothing is stored, and the lease is left. The entries may be staged.
    NotFilled,
    /// As `NotFilled`, and the server would refuse the next transaction too. It may have executed the commands one by
    /// one.
    NotPermitted,
}

impl Transacted {
    /// `reply` is the reply to `EXEC`, and `length` the number of commands before it.
    fn of(reply: RedisResult<Value>, length: usize) -> Self {
        let replies = match reply {
            Ok(Value::Array(replies)) if replies.len() == length => replies,
            Err(error) if is_unsupported(&error) => return Self::NotPermitted,
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                return Self::NotFilled;
            }
            // No reply of the script is an array, so the store takes one of another length for unexpected.
            reply => return Self::Answered(reply),
        };
        let error = match replies.last() {
            Some(Value::ServerError(error)) => RedisError::from(error.clone()),
            reply => return Self::Answered(Ok(reply.cloned().unwrap_or(Value::Nil))),
        };
        match error.code() {
            // The script has dropped the lease. If the server has refused to stage the entry, that error comes first.
            Some("STAGING") => Self::Answered(Value::Array(replies).extract_error()),
            Some("RENAME") if is_unsupported(&error) => Self::NotPermitted,
            _ if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => Self::ScriptForgotten,
            _ => Self::NotFilled,
        }
    }
}

/// Minimum length of the envelope of an entry that is staged, in bytes. With shorter ones, the three commands more cost
/// as much as is saved.
const STAGED_FROM: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Timestamp,
        redis::connection::script::number,
        store::{entry::Kind, entry::Meta, token::Inbox},
    };
    use bytes::Bytes;

    fn outcome_of(reply: &str) -> &'static str {
        let reply = redis::parse_redis_value(reply.as_bytes()).expect("a reply");
        let reply = match reply {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        };
        match Transacted::of(reply, 2) {
            Transacted::Answered(Ok(reply)) => number(&reply).map_or("unexpected", |_| "answered"),
            Transacted::Answered(Err(error)) if error.code() == Some("OOM") => "full",
            Transacted::Answered(Err(_)) => "failed",
            Transacted::ScriptForgotten => "forgotten",
            Transacted::NotFilled => "not filled",
            Transacted::NotPermitted => "not permitted",
        }
    }

    /// Seen to fail if the last reply of an array of any length counts as that of the script.
    #[test]
    fn reply_to_exec_maps_to_its_outcome() {
        for (reply, outcome) in [
            ("*2\r\n+OK\r\n:1\r\n", "answered"),
            ("*2\r\n+OK\r\n-STAGING the entry is missing\r\n", "failed"),
            ("*2\r\n-OOM no room\r\n-STAGING the entry is missing\r\n", "full"),
            ("*2\r\n+OK\r\n-NOSCRIPT No matching script.\r\n", "forgotten"),
            ("*2\r\n+OK\r\n-RENAME The user executing the script can't run this command\r\n", "not permitted"),
            ("*2\r\n+OK\r\n-RENAME ERR Unknown Redis command called from script\r\n", "not permitted"),
            ("*2\r\n+OK\r\n-RENAME MISCONF Errors writing to the AOF file\r\n", "not filled"),
            ("*2\r\n+OK\r\n-ERR The user executing the script can't run this command\r\n", "not filled"),
            ("*2\r\n+OK\r\n-MISCONF Errors writing to the AOF file\r\n", "not filled"),
            ("*1\r\n:1\r\n", "unexpected"),
            ("*3\r\n+OK\r\n+OK\r\n:1\r\n", "unexpected"),
            ("*-1\r\n", "unexpected"),
            ("+QUEUED\r\n", "unexpected"),
            ("-EXECABORT Transaction discarded because of previous errors.\r\n", "not filled"),
            ("-EXECABORT Transaction discarded because of: OOM command not allowed\r\n", "not filled"),
            ("-EXECABORT Transaction discarded because of: NOPERM no permissions to run 'exec'\r\n", "not permitted"),
            ("-ERR EXEC without MULTI\r\n", "not permitted"),
            ("-ERR unknown command 'EXEC', with args beginning with: \r\n", "not permitted"),
            ("-NOPERM this user has no permissions to run the 'exec' command\r\n", "not permitted"),
            ("-MOVED 3999 127.0.0.1:6381\r\n", "not filled"),
            ("-ASK 3999 127.0.0.1:6381\r\n", "not filled"),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "not filled"),
            ("-CROSSSLOT Keys in request don't hash to the same slot\r\n", "not filled"),
        ] {
            assert_eq!(outcome_of(reply), outcome, "{reply}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(matches!(Transacted::of(Err(broken), 2), Transacted::Answered(Err(_))), "the outcome is unknown");
    }

    #[test]
    fn staged_command_holds_the_envelope() {
        let key = CacheKey::new("sg", 7, "k");
        let id = Token::unique(Inbox::unique());
        let entry = |length| {
            let meta = Meta::new(Kind::Value, id, Timestamp::from_micros(0));
            Write::new(key.clone(), Entry::new(meta, Bytes::from(vec![b'x'; length])))
        };
        let writes = [entry(STAGED_FROM), entry(1), entry(1 << 20)];
        let fill = Fill::new(&key, FillCondition::ReplaceMarker(id), &writes, &NamesInUse::default(), 42, true);
        let id = String::from_utf8_lossy(id.as_bytes()).into_owned();
        let names = [Some(format!("{{sg:rk}}:s:{id}.0")), None, Some(format!("{{sg:rk}}:s:{id}.2"))];
        assert_eq!(fill.writes.iter().map(|write| write.staging.clone()).collect::<Vec<_>>(), names);
        for write in fill.writes.iter().filter(|write| write.staging.is_some()) {
            let command = write.stage().expect("a large entry");
            let args: Vec<_> = command.args_iter().collect();
            let envelope = write.entry.to_envelope(&key, 42);
            assert_eq!(args[2], redis::Arg::Simple(&envelope[..]));
            assert_eq!(envelope[..17], write.entry.encoded_id());
            assert_eq!(envelope.len(), write.entry.encoded_len());
        }
    }
}
