//! Fills, and the way of large entries past the script.
//!
//! From 7.0 on, Redis hashes every string that it passes to a script, byte by byte, while all its other clients wait:
//! 64 KiB take Redis 7.0 85 µs, and `SET` 3 µs. So a large entry is staged: it is set under a staging name, and the
//! script renames it, in one write (`docs/decisions/0120-staged-fills.md`).
//!
//! A server may refuse `RENAME`, or a part of the names while their slot moves. Then the staged entries are deleted, and the
//! fill is sent once more, with its entries as arguments of the script.

use super::{
    connection::{
        reconnecting::CommandLink,
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
use std::time::Duration;

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
        let (used, renewal) = match condition {
            FillCondition::Lease(lease) => {
                (lease.name, writes.first().and_then(|write| write.renews).filter(|_| !whole))
            }
            FillCondition::ReplaceMarker(_) => (names.number(key.layout()), None),
        };
        // PERF: once for the message and the entry, because a hash takes 700 instructions.
        let hash = key.hash();
        let write = |(number, write): (usize, &'a Write)| {
            let Write { key: at, entry, .. } = write;
            let (name, hash) = if at == key { (entry_name(at, used), hash) } else { (names.entry(at), at.hash()) };
            let length = renewal.map_or(entry.encoded_len(), |renewal| Entry::encoded_up_to(renewal.changed));
            let is_large = length >= STAGED_FROM && renewal.is_none();
            let staging = is_large.then(|| staging_name(key, entry.meta().id, number));
            let retention = entry.meta().lifetimes.retention();
            NamedWrite { name, entry, staging, length, retention, layout: at.layout(), hash, offset }
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

    /// Sends the fill. Returns the reply of its script.
    pub(super) async fn send(mut self, link: &dyn CommandLink) -> RedisResult<Value> {
        let mut pipeline = redis::pipe();
        self.writes.iter().filter_map(NamedWrite::stage).for_each(|set| _ = pipeline.add_command(set));
        if !pipeline.is_empty() {
            let reply = match link.send_all(pipeline.add_command(self.call().into_cmd())).await {
                Err(error) if error.kind() == NO_SCRIPT => link.send(&self.call().in_full()).await, // they are staged
                reply => reply,
            };
            if !reply.as_ref().is_err_and(leaves_the_lease) {
                return reply;
            }
            // The inline script must not name the staged entries: in a slot that moves, a script whose keys include an
            // absent one is refused. An error is ignored, because they expire.
            let staged: Vec<_> = self.writes.iter_mut().filter_map(|write| write.staging.take()).collect();
            _ = link.send(redis::cmd("DEL").arg(staged)).await;
        }
        self.call().run(link).await
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
        self.entry.encode_into(self.layout, self.hash, self.offset, self.length, &mut buffer);
    }
}

/// Reports whether the server has refused a staged fill before its script dropped the lease. The script drops it if an entry
/// is missing under its staging name: the server has evicted it, or has had no memory for it.
fn leaves_the_lease(error: &RedisError) -> bool {
    let is_reply = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    is_reply && !matches!(error.code(), Some("STAGING" | "OOM"))
}

const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);
/// Minimum length of the envelope of an entry that is staged, in bytes. With shorter ones, the three commands more cost
/// as much as is saved.
const STAGED_FROM: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Timestamp,
        store::{entry::Kind, entry::Meta, token::Inbox},
    };
    use bytes::Bytes;

    /// Seen to fail if each refusal ends a staged fill, and if none does: the second script finds no lease.
    #[test]
    fn refusal_of_a_staged_fill_leaves_or_drops_its_lease() {
        for (reply, leaves) in [
            ("-OOM no room\r\n", false),
            ("-STAGING the entry is missing\r\n", false),
            ("-RENAME The user executing the script can't run this command\r\n", true),
            ("-RENAME ERR Unknown Redis command called from script\r\n", true),
            ("-RENAME MISCONF Errors writing to the AOF file\r\n", true),
            ("-ERR The user executing the script can't run this command\r\n", true),
            ("-MISCONF Errors writing to the AOF file\r\n", true),
            ("-MOVED 3999 127.0.0.1:6381\r\n", true),
            ("-ASK 3999 127.0.0.1:6381\r\n", true),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", true),
            ("-CROSSSLOT Keys in request don't hash to the same slot\r\n", true),
        ] {
            let error =
                redis::parse_redis_value(reply.as_bytes()).and_then(Value::extract_error).expect_err("an error");
            assert_eq!(leaves_the_lease(&error), leaves, "{reply}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(!leaves_the_lease(&broken), "the outcome is unknown");
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
