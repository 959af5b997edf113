//! Staged fills: how they are sent, what they leave, and what happens if a server refuses a part of them.

use crate::{
    large::FILLER,
    suite::{LONG, ask, entry, fill, fill_by, fresh, lead, payload, token},
    support::{Monitor, RedisServer},
};
use redis::{
    AsyncTypedCommands, Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use stampede_guard::{
    Connection, Key, RedisStore,
    store::{CacheKey, Entry, FillCondition, FillOutcome, Kind, Lease, LeaseReply, Store, Token, Write},
};
use std::collections::HashMap;

fn large(id: Token, kind: Kind) -> Entry {
    entry(id, kind, "x".repeat(FILLER).leak())
}

fn variant_of(key: &CacheKey, variant: &'static str) -> CacheKey {
    let primary = std::str::from_utf8(key.primary()).expect("a plain key");
    CacheKey::new(key.namespace(), key.layout(), Key::new(primary).variant(variant))
}

async fn fill_large(store: &dyn Store, key: &CacheKey, lease: Lease) -> FillOutcome {
    fill_by(store, key, FillCondition::Lease(lease), large(lease.token, Kind::Value)).await
}

async fn names(server: &RedisServer) -> Vec<String> {
    server.connection().await.keys("*").await.expect("names")
}

async fn is_large(store: &dyn Store, key: &CacheKey) -> bool {
    payload(store, key).await.is_some_and(|payload| payload.len() == FILLER)
}

/// Returns how many times the server has executed each of these commands, within scripts too, and how many times it has
/// refused to.
async fn calls<const N: usize>(server: &RedisServer, commands: [&str; N]) -> [(u64, u64); N] {
    let info: redis::InfoDict =
        redis::cmd("INFO").arg("commandstats").query_async(&mut server.connection().await).await.expect("figures");
    commands.map(|command| {
        let figures: String = info.get(&format!("cmdstat_{command}")).unwrap_or_default();
        let figures: HashMap<_, _> = figures.split(',').filter_map(|figure| figure.split_once('=')).collect();
        let number = |name| figures.get(name).map_or(0, |number: &&str| number.parse().expect("a number"));
        (number("calls"), number("rejected_calls"))
    })
}

/// Seen to fail if entries of all sizes are arguments of the script.
#[tokio::test]
async fn only_a_large_entry_is_set_and_renamed() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    for (length, commands) in [(3_900, &["EVALSHA"][..]), (4_096, &["SET", "EVALSHA"][..])] {
        let key = fresh("sent");
        let lease = lead(&store, &key, LONG).await;
        let monitor = Monitor::start(&server).await;
        assert_eq!(fill(&store, &key, lease, "x".repeat(length).leak()).await, FillOutcome::Stored);
        let sent: Vec<_> = monitor.stop().await.into_iter().map(|command| command.name).collect();
        assert_eq!(sent, commands, "{length} bytes");
    }
    assert_eq!(calls(&server, ["rename"]).await, [(1, 0)]);
}

/// Seen to fail if the script deletes the staging names only when it stores, and without the expiry of the staged entry.
#[tokio::test]
async fn staged_fill_leaves_nothing_but_its_entry() {
    let server = RedisServer::start();
    let (store, key) = (RedisStore::new(server.client()), fresh("left"));
    let lease = lead(&store, &key, LONG).await;
    let foreign = Lease { token: token(), ..lease };
    assert_eq!(fill_large(&store, &key, foreign).await, FillOutcome::Fenced);
    assert_eq!(names(&server).await.len(), 1, "the lease");
    for _ in 0..3 {
        assert_eq!(fill_large(&store, &key, lease).await, FillOutcome::Stored, "a fill that is sent again was stored");
        let [name] = &names(&server).await[..] else { panic!("the entry") };
        let (mut ask, mut redis) = (redis::cmd("PTTL"), server.connection().await);
        assert!(ask.arg(name).query_async::<i64>(&mut redis).await.expect("an answer") > 0, "the entry expires");
        assert!(is_large(&store, &key).await);
    }
    for (marker, outcome) in [(token(), FillOutcome::Fenced), (lease.token, FillOutcome::Stored)] {
        let value = large(token(), Kind::Value);
        assert_eq!(fill_by(&store, &key, FillCondition::ReplaceMarker(marker), value).await, outcome);
        assert_eq!(names(&server).await.len(), 1);
    }
}

/// The index of a `Vary` is small, and its variant is large. Both have the id of their fill.
#[tokio::test]
async fn each_entry_of_a_fill_goes_its_own_way() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    for lengths in [[1, FILLER, FILLER], [FILLER, 1, FILLER], [FILLER, FILLER, FILLER]] {
        server.flushall().await;
        let key = fresh("ways");
        let lease = lead(&store, &key, LONG).await;
        let keys = [key.clone(), variant_of(&key, "de"), variant_of(&key, "en")];
        let payloads = [0, 1, 2].map(|i| &*["a", "b", "c"][i].repeat(lengths[i]).leak());
        let write = |(key, payload)| Write::new(key, entry(lease.token, Kind::Value, payload));
        let writes: Vec<_> = keys.clone().into_iter().zip(payloads).map(write).collect();
        let filled = store.fill(&key, FillCondition::Lease(lease), writes).await.expect("an answer");
        assert_eq!(filled, FillOutcome::Stored);
        for (key, expected) in keys.iter().zip(payloads) {
            assert_eq!(payload(&store, key).await.as_deref(), Some(expected), "{lengths:?}");
        }
        assert_eq!(names(&server).await.len(), 3, "{lengths:?}");
    }
}

/// A connection over which the server gets another command in place of the first one of this name in a pipeline.
#[derive(Clone)]
struct Replacing {
    connection: MultiplexedConnection,
    name: &'static [u8],
    by: Cmd,
}

impl ConnectionLike for Replacing {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut commands: Vec<_> = pipeline.cmd_iter().cloned().collect();
            let is_named = |cmd: &Cmd| cmd.args_iter().next() == Some(redis::Arg::Simple(self.name));
            if let Some(cmd) = commands.iter_mut().find(|cmd| is_named(cmd)) {
                *cmd = self.by.clone();
            }
            let mut tampered = redis::pipe();
            for cmd in commands {
                tampered.add_command(cmd);
            }
            self.connection.req_packed_commands(&tampered, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

/// A store over a [`Replacing`] connection.
async fn replacing(server: &RedisServer, name: &'static str, by: Cmd) -> RedisStore {
    RedisStore::new(Connection(Replacing { connection: server.connection().await, name: name.as_bytes(), by }))
}

async fn as_user(server: &RedisServer, missing: &[&str]) -> redis::Client {
    let mut rules = vec!["SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"];
    rules.extend(missing);
    redis::cmd("ACL").arg(&rules).exec_async(&mut server.connection().await).await.expect("a user");
    redis::Client::open(format!("redis://app:secret@127.0.0.1:{}", server.port())).expect("a client")
}

/// Seen to fail if the script ignores the error of `RENAME`: the fill is stored, but its entry is absent.
#[tokio::test]
async fn a_missing_staged_entry_refuses_the_whole_fill() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    // As if the server had refused the `SET`, or evicted what it has set.
    let tampered = replacing(&server, "SET", redis::cmd("PING")).await;
    let key = fresh("missing");
    let variant = variant_of(&key, "de");
    let old = lead(&store, &key, LONG).await;
    fill(&store, &key, old, "old").await;
    for number_of_writes in [1, 2] {
        let LeaseReply::Granted { lease, .. } = ask(&store, &key, LONG, Some(old.token)).await.1 else {
            panic!("a lease")
        };
        let write = |key: &CacheKey| Write::new(key.clone(), large(lease.token, Kind::Value));
        let writes = [&key, &variant].map(write).into_iter().take(number_of_writes).collect();
        let refused = tampered.fill(&key, FillCondition::Lease(lease), writes).await.expect_err("no entry to store");
        assert!(refused.is_refused() && format!("{refused:?}").contains("staging name"), "{refused:?}");
        assert_eq!(names(&server).await.len(), 1, "the old entry; the lease is released");
        assert_eq!(payload(&store, &key).await.as_deref(), Some("old"));
    }
}

/// Seen to fail if `NOSCRIPT` counts as a refusal: the entries become arguments of the script.
#[tokio::test]
async fn forgotten_script_is_sent_in_full_after_its_entries() {
    let server = RedisServer::start();
    let (store, key) = (RedisStore::new(server.client()), fresh("forgotten"));
    let lease = lead(&store, &key, LONG).await;
    redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut server.connection().await).await.expect("flushed");
    let monitor = Monitor::start(&server).await;
    assert_eq!(fill_large(&store, &key, lease).await, FillOutcome::Stored);
    let sent: Vec<_> = monitor.stop().await.into_iter().map(|command| command.name).collect();
    assert_eq!(sent, ["SET", "EVALSHA", "EVAL"]);
    assert!(is_large(&store, &key).await);
    assert_eq!(names(&server).await.len(), 1);
}

/// The user may not send the script in full.
///
/// Seen to fail if the fill that follows does not delete what was staged.
#[tokio::test]
async fn refused_script_leaves_no_staged_entry() {
    let server = RedisServer::start();
    let (store, key) = (RedisStore::new(server.client()), fresh("second"));
    let app = RedisStore::new(as_user(&server, &["-eval", "-script"]).await);
    for number_of_writes in [1, 2] {
        let lease = lead(&store, &key, LONG).await;
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut server.connection().await).await.expect("flushed");
        let write = |key: &CacheKey| Write::new(key.clone(), large(lease.token, Kind::Value));
        let writes = [&key, &variant_of(&key, "de")].map(write).into_iter().take(number_of_writes).collect();
        app.fill(&key, FillCondition::Lease(lease), writes).await.expect_err("no right to `EVAL`");
        assert_eq!(names(&server).await.len(), 1, "the lease");
        server.flushall().await;
    }
    let [set, del] = calls(&server, ["set", "del"]).await;
    assert_eq!((set, del), ((5, 0), (2, 0)), "two leases and three entries are set, and each fill deletes its own");
}

/// A fill that fills no room drops its lease, so that no second script follows.
///
/// Seen to fail, with a fenced fill in place of the error, if the entries then become arguments of the script.
#[tokio::test]
async fn staged_entry_without_room_is_refused_with_its_lease() {
    let server = RedisServer::start();
    let (store, key) = (RedisStore::new(server.client()), fresh("full"));
    let lease = lead(&store, &key, LONG).await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec_async(&mut server.connection().await).await.expect("set");
    let write = Write::new(key.clone(), large(lease.token, Kind::Value));
    let refused = store.fill(&key, FillCondition::Lease(lease), vec![write]).await.expect_err("no room");
    assert!(refused.is_refused() && format!("{refused:?}").contains("OOM"), "{refused:?}");
    assert_eq!(names(&server).await.len(), 0);
}

/// Seen to fail if the fill that follows does not delete the staged entry.
#[tokio::test]
async fn failed_script_leaves_no_staged_entry() {
    for error in ["return redis.error_reply('ERR failed')", "return redis.call('UNKNOWN')"] {
        let server = RedisServer::start();
        let mut script = redis::cmd("EVAL");
        script.arg(error).arg(0);
        let store = replacing(&server, "EVALSHA", script).await;
        for number in 1..=2 {
            let key = fresh("failed");
            let lease = lead(&store, &key, LONG).await;
            assert_eq!(fill_large(&store, &key, lease).await, FillOutcome::Stored);
            assert!(is_large(&store, &key).await);
            assert_eq!(names(&server).await.len(), number, "{error}");
        }
    }
}

/// Seen to fail if a refused `RENAME` is an error, and if it costs a connection.
#[tokio::test]
async fn server_without_rename_is_filled_inline() {
    let server = RedisServer::start();
    let store = RedisStore::new(as_user(&server, &["-rename"]).await);
    let mut connection = None;
    for number in 1..=3 {
        let key = fresh("inline");
        let lease = lead(&store, &key, LONG).await;
        let connection = *connection.get_or_insert_with(|| store.connection(&key));
        assert_eq!(fill_large(&store, &key, lease).await, FillOutcome::Stored);
        assert!(is_large(&store, &key).await);
        assert_eq!(names(&server).await.len(), number);
        assert_eq!(store.connection(&key), connection, "no reconnect");
    }
}
