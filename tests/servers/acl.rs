//! A Redis user with the rights that src/guide/rights.md lists, and users that lack one of them.

pub(crate) use crate::rights::{app, documented, documented_for, refused};

use crate::{
    Down, MS, SECOND,
    kit::{
        Events, Language, calls_of_a_herd, calls_of_a_large_herd, calls_of_a_varied_herd, command, hits, page, patient,
    },
    never,
    support::{Origin, RedisServer, eventually},
};
use futures_util::future::join_all;
use redis::AsyncTypedCommands;
use stampede_guard::{
    ErrorKind, FetchContext, FetchOutcome, NearCacheConfig, Policy, RedisStore, StampedeGuard,
    store::{CacheKey, Inbox, LeaseReply, LeaseRequest, Store, Token},
};
use std::{collections::HashMap, time::Duration};
use tokio::time::{Instant, timeout};

/// Returns the documented rules without this right.
fn without(right: &str) -> Vec<&'static str> {
    let rules = documented();
    assert!(rules.contains(&right), "{right} is not in the docs");
    rules.into_iter().filter(|rule| *rule != right).collect()
}

/// Returns how many of these commands the server has executed, by scripts as well.
async fn calls(server: &RedisServer, name: &str) -> u64 {
    let (stats, of) = (command::<String>(server, "INFO commandstats").await, format!("cmdstat_{name}:calls="));
    let calls = stats.lines().find_map(|line| line.strip_prefix(&of)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[tokio::test]
async fn documented_rights_suffice_for_all_operations() {
    let server = RedisServer::start();
    let client = app(&server, &documented()).await;
    let [a, b] = [(); 2].map(|()| patient(client.clone()).lease_ttl(SECOND));
    assert_eq!(calls_of_a_herd(&[a.clone(), b.clone()], "herd").await, 1);
    assert!(hits(&a, "herd").await);
    assert_eq!(calls_of_a_varied_herd(&[a.clone(), b.clone()], "varied").await, 1);
    assert_eq!(calls_of_a_large_herd(&[a.clone(), b.clone()], "large").await, 1);
    let stats: String = command(&server, "INFO commandstats").await;
    assert!(stats.contains("cmdstat_rename"), "large values are staged");

    // A long fetch: its lease is extended, and a waiter registers for a wake-up.
    let origin = Origin::gated();
    let lead = a.fetch("long", {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.call().await)
    });
    let wait = async {
        origin.arrived(1).await;
        let (store, at) = (RedisStore::new(client.clone()), CacheKey::new("sg", 0, "long"));
        let mut listener = store.listen(&at);
        eventually("wake-ups arrive", async || {
            let ask = LeaseRequest::new(Token::unique(Inbox::unique()), SECOND);
            matches!(store.get_or_lease(&at, ask).await, Ok(LeaseReply::Wait { registered: true, .. }))
        })
        .await;
        eventually("the lease is extended", async || {
            command::<String>(&server, "INFO commandstats").await.contains("cmdstat_pexpire")
        })
        .await;
        origin.open();
        listener.notified().await;
    };
    let (led, ()) = tokio::join!(lead, wait);
    assert_eq!(led.expect("an answer"), 1);
    a.drain().await;

    // A failure and its failure marker.
    a.fetch("failure", async || Err::<i32, _>(Down)).await.expect_err("down");
    a.drain().await;
    let mut redis = server.connection().await;
    assert!(
        redis
            .get("{sg:rfailure}:l")
            .await
            .expect("an answer")
            .is_some_and(|failure_marker| failure_marker.starts_with('F'))
    );

    // A hit-for-pass marker and its replacement by a value.
    let values = a.cache("value");
    let private = async |_| Ok::<_, Down>(FetchOutcome::new(1).private());
    values.entry("private").fetch_with(private).await.expect("an answer");
    a.drain().await;
    values.fetch("private", async || Ok::<_, Down>(2)).await.expect("an answer");
    a.drain().await;
    assert_eq!(values.fetch("private", never).await.expect("a hit"), 2);

    a.invalidate("herd").await.expect("acknowledged");
    assert!(!hits(&a, "herd").await);
    for guard in [&a, &b] {
        guard.drain().await;
        assert_eq!(guard.stats().store_errors, 0);
    }
    assert_eq!(refused(&server).await, [""; 0]);
}

/// The calls of the origin for herds of two processes: for a small value, for a page that varies, for a large value.
type Calls = [usize; 3];
const SHARED: Calls = [1, 1, 1];
const ALONE: Calls = [2, 2, 2];
const ALONE_IF_VARIED: Calls = [1, 2, 1];

/// The effect of each missing right on herds, and whether an event reports it. Without channels, `APPEND` or `PUBLISH`
/// waiters poll.
const WITHOUT: &[(&str, Calls, bool)] = &[
    ("~{sg:*", ALONE, true),
    ("&stampede-guard:*", SHARED, true),
    ("+get", ALONE, true),
    ("+mget", ALONE_IF_VARIED, true),
    ("+getrange", ALONE, true),
    ("+setrange", SHARED, false),
    ("+set", ALONE, true),
    ("+del", SHARED, true),
    ("+append", SHARED, false),
    ("+rename", SHARED, true),
    ("+pttl", ALONE, true),
    ("+pexpire", SHARED, false),
    ("+time", ALONE, true),
    ("+publish", SHARED, true),
    ("+eval", SHARED, false),
    ("+evalsha", ALONE, true),
    ("+script|load", SHARED, false),
    ("+subscribe", SHARED, true),
    ("+ping", SHARED, false),
    ("+client|tracking", SHARED, false),
    ("+info", SHARED, false),
];

/// Seen to fail for `GETRANGE` if `get_or_lease` takes its error for "no entry": the waiters lead one after another,
/// and no event is logged.
#[tokio::test]
async fn missing_right_fails_no_caller() {
    let server = RedisServer::start();
    for &(right, calls, says_so) in WITHOUT {
        let (client, events) = (app(&server, &without(right)).await, Events::listen());
        let guards = [(); 2].map(|()| patient(client.clone()));
        let key = format!("without-{}", &right[1..]);
        let small = calls_of_a_herd(&guards, &key).await;
        let varied = calls_of_a_varied_herd(&guards, &key).await;
        let large = calls_of_a_large_herd(&guards, &format!("large-{key}")).await;
        assert_eq!([small, varied, large], calls, "{right}");
        if says_so {
            eventually(&format!("an event reports the missing {right}"), async || events.about("hint") > 0).await;
        }
        // Each guard reports it once, whichever of its connections needs it. A missing `+del` has two hints: a command
        // names it, and a script does not.
        let most = if right == "+del" { 4 } else { 2 * usize::from(says_so) };
        assert!(events.about("hint") <= most, "{right}: {}", events.all());
    }
}

#[test]
fn docs_have_a_row_for_each_right() {
    let docs = include_str!("../../src/guide/rights.md");
    let (_, table) = docs.split_once("| missing right | effect |\n").expect("a table");
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split_once(" | ")).map(|(rights, _)| rights.replace("\\|", "|"));
    let mut explained: Vec<_> =
        cells.flat_map(|rights| rights.split('`').map(str::to_owned).collect::<Vec<_>>()).collect();
    explained.retain(|part| part.starts_with(['~', '&', '+']));
    let mut tested: Vec<_> = WITHOUT.iter().map(|(right, ..)| right.to_string()).collect();
    let mut listed = documented();
    listed.retain(|rule| rule.starts_with(['~', '&', '+']));
    tested.sort_unstable();
    listed.sort_unstable();
    assert_eq!(tested, listed);
    // `cluster::cluster_user_needs_cluster_nodes_right`, `cluster::cluster_user_needs_asking_right_while_a_slot_moves`
    tested.extend(["+cluster|nodes".into(), "+asking".into()]);
    tested.sort_unstable();
    explained.sort_unstable();
    assert_eq!(explained, tested);
}

/// The outage cache keeps a result for a second. Without `PTTL` only a lease, or a failure marker, is not understood.
#[tokio::test]
async fn key_that_is_not_shared_is_fetched_once_a_second() {
    let alone = WITHOUT.iter().filter(|(_, calls, _)| *calls == ALONE);
    join_all(alone.map(async |(right, ..)| {
        let server = RedisServer::start();
        let (guard, origin) = (patient(app(&server, &without(right)).await), Origin::new());
        let fetch = async || {
            let origin = origin.clone();
            guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer");
            guard.drain().await;
        };
        if *right == "+pttl" {
            fetch().await;
            fetch().await;
            return assert_eq!(origin.calls(), 1, "what is stored is shared");
        }
        let began = Instant::now();
        while origin.calls() < 3 {
            fetch().await;
        }
        assert!(began.elapsed() >= 2 * SECOND, "{right}");
        let stats = guard.stats();
        assert_eq!(stats.hits, stats.outage_cache_hits, "{right}");
    }))
    .await;
}

/// Seen to share the failure with the right.
#[tokio::test]
async fn failure_is_not_shared_without_pttl_right() {
    for (rules, is_shared) in [(documented(), true), (without("+pttl"), false)] {
        let server = RedisServer::start();
        let client = app(&server, &rules).await;
        let [a, b] = [(); 2].map(|()| patient(client.clone()));
        a.fetch("k", async || Err::<i32, _>(Down)).await.expect_err("down");
        a.drain().await;
        assert_eq!(b.fetch("k", async || Ok::<_, Down>(1)).await.is_err(), is_shared);
    }
}

/// Without `SCRIPT LOAD` a script reaches the server with its first `EVAL`. Without `EVAL` it works until the server
/// drops it (`SCRIPT FLUSH`).
#[tokio::test]
async fn scripts_are_loaded_by_script_load_or_by_eval() {
    let server = RedisServer::start();
    for (right, shares) in [("+script|load", true), ("+eval", false)] {
        let guard = patient(app(&server, &without(right)).await);
        hits(&guard, &format!("before {right}")).await;
        command::<()>(&server, "SCRIPT FLUSH").await;
        let key = format!("after {right}");
        hits(&guard, &key).await;
        guard.drain().await;
        assert_eq!(hits(&guard, &key).await, shares, "{right}");
    }
}

#[tokio::test]
async fn invalidation_without_del_right_reports_error() {
    let server = RedisServer::start();
    let guard = patient(app(&server, &without("+del")).await);
    let error = guard.invalidate("k").await.expect_err("the user may not delete");
    assert_eq!(error.kind(), ErrorKind::Store);
    let source = format!("{:#}", anyhow::Error::from(error));
    assert!(source.contains("executing the script") || source.contains("ACL failure"), "{source}");
}

/// The entry is stored, and its lease stays.
#[tokio::test]
async fn lease_without_del_right_stays_until_it_ends() {
    for (rules, leases) in [(documented(), 0), (without("+del"), 1)] {
        let server = RedisServer::start();
        let guard = patient(app(&server, &rules).await).lease_ttl(60 * SECOND);
        hits(&guard, "k").await;
        guard.drain().await;
        assert!(hits(&guard, "k").await);
        assert_eq!(command::<usize>(&server, "EXISTS {sg:rk}:l").await, leases);
    }
}

/// The lease of a process that fetches ends, and another process takes it.
#[tokio::test]
async fn lease_without_pexpire_right_is_not_extended() {
    let (server, events) = (RedisServer::start(), Events::listen());
    let (store, at) = (RedisStore::new(app(&server, &without("+pexpire")).await), CacheKey::new("sg", 0, "k"));
    let lead = async || {
        let request = LeaseRequest::new(Token::unique(Inbox::unique()), 2 * SECOND);
        match store.get_or_lease(&at, request).await.expect("an answer") {
            LeaseReply::Granted { lease, .. } => Some(lease),
            _ => None,
        }
    };
    let lease = lead().await.expect("the first one");
    store.extend(&at, lease, 60 * SECOND).await.expect_err("the user may not extend");
    eventually("another process takes the lease", async || lead().await.is_some()).await;
    assert_eq!(events.about("hint"), 1, "{}", events.all());
}

/// Without the rights the value is sent as a whole.
#[tokio::test]
async fn unchanged_value_without_setrange_or_pexpire_right_is_stored() {
    for (rules, renewals) in [(documented(), 1), (without("+setrange"), 0), (without("+pexpire"), 0)] {
        let (server, events) = (RedisServer::start(), Events::listen());
        let guard = patient(app(&server, &rules).await);
        let values =
            guard.cache::<u32>("value").policy(Policy::fresh_for(Duration::ZERO).keep_for_validation(SECOND * 60));
        let first = values.entry("k").fetch_with(async |_| Ok::<_, Down>(FetchOutcome::new(7).validator("v1")));
        first.await.expect("a value");
        guard.drain().await;
        let unchanged =
            async |cx: FetchContext<u32>| Ok::<_, Down>(cx.unchanged().expect("a value").fresh_for(SECOND * 60));
        values.entry("k").fetch_with(unchanged).await.expect("a value");
        guard.drain().await;
        assert_eq!(values.get("k").await.expect("an answer"), Some(7), "{rules:?}");
        assert_eq!((calls(&server, "setrange").await, events.about("hint")), (renewals, 0), "{rules:?}");
    }
}

/// An index of variants is to outlive the variant that is stored last.
#[tokio::test]
async fn index_without_pexpire_or_pttl_right_is_not_prolonged() {
    for (rules, is_prolonged) in [(documented(), true), (without("+pexpire"), false), (without("+pttl"), false)] {
        let server = RedisServer::start();
        let (guard, origin) = (patient(app(&server, &rules).await), Origin::new());
        page(&guard, &origin, "http://site.example/", Language::German).await;
        guard.drain().await;
        tokio::time::sleep(100 * MS).await;
        let mut before = HashMap::new();
        for name in command::<Vec<String>>(&server, "KEYS *").await {
            before.insert(name.clone(), command::<i64>(&server, &format!("PTTL {name}")).await);
        }
        page(&guard, &origin, "http://site.example/", Language::English).await;
        guard.drain().await;
        let mut prolonged = false;
        for (name, before) in before {
            prolonged |= command::<i64>(&server, &format!("PTTL {name}")).await > before;
        }
        assert_eq!(prolonged, is_prolonged);
    }
}

/// Each large entry is sent a second time, as an argument of its script, and nothing is left under its staging name.
#[tokio::test]
async fn entries_are_not_staged_without_the_right_to_rename() {
    let server = RedisServer::start();
    let guards = [patient(app(&server, &without("+rename")).await)];
    calls_of_a_large_herd(&guards, "refused").await;
    assert_eq!(calls(&server, "rename").await, 0);
    assert_eq!(command::<Vec<String>>(&server, "KEYS *:s:*").await, [""; 0]);
    command::<()>(&server, "ACL SETUSER app +rename").await;
    calls_of_a_large_herd(&guards, "the same connection").await;
    assert_eq!(calls(&server, "rename").await, 1);
}

/// Redis executes nothing on a connection after a script that is paused.
#[tokio::test]
async fn pause_of_writes_without_info_right_is_an_outage() {
    for (rules, goes_on) in [(documented(), true), (without("+info"), false)] {
        let server = RedisServer::start();
        let guard = StampedeGuard::new(app(&server, &rules).await);
        eventually("it is stored", async || hits(&guard, "k").await).await;
        command::<()>(&server, "CLIENT PAUSE 60000 WRITE").await;
        guard.fetch("miss", async || Ok::<_, Down>(1)).await.expect("the origin answers");
        let mut hit = false;
        for _ in 0..5 {
            hit |= hits(&guard, "k").await;
        }
        assert_eq!(hit, goes_on);
    }
}

/// Without these rights nothing wakes a waiter, and the lease that it waits for ends in a minute: it polls. The subscriber
/// is down if its user may not subscribe, or scripts may not publish. Whether `APPEND` is refused only a waiter finds out.
///
/// Seen to fail without `+publish` if a subscription without a probe's answer counts as live.
#[tokio::test]
async fn waiters_poll_without_a_right_for_wake_ups() {
    for (right, subscriber_up) in
        [("&stampede-guard:*", false), ("+subscribe", false), ("+publish", false), ("+append", true)]
    {
        let server = RedisServer::start();
        let client = app(&server, &without(right)).await;
        let [leads, waits] = [(); 2].map(|()| patient(client.clone()).lease_ttl(60 * SECOND));
        hits(&waits, "other").await;
        eventually("the first probe has an answer", async || waits.health().subscriber_up == Some(subscriber_up)).await;
        let origin = Origin::gated();
        let lead = leads.fetch("k", {
            let origin = origin.clone();
            async move || Ok::<_, Down>(origin.call().await)
        });
        let wait = async {
            origin.arrived(1).await;
            let before = calls(&server, "evalsha").await;
            let waiter = tokio::spawn(async move { waits.fetch("k", never::<usize>).await });
            eventually("the waiter has asked", async || calls(&server, "evalsha").await > before).await;
            origin.open();
            timeout(20 * SECOND, waiter).await.expect("the waiter polls").expect("no panic")
        };
        let (led, waited) = tokio::join!(lead, wait);
        assert_eq!((led.expect("an answer"), waited.expect("an answer")), (1, 1), "{right}");
    }
}

/// Without the right to publish, the connection for messages is checked by `PING`. A refused `PING` shows that the
/// connection is alive. Reconnecting would not help.
///
/// Seen to fail if the refusal counts as a dead connection.
#[tokio::test]
async fn subscriber_without_rights_keeps_its_connection() {
    let (server, rules) = (RedisServer::start(), documented());
    let rest: Vec<_> = rules.iter().copied().filter(|rule| !["+ping", "+publish"].contains(rule)).collect();
    let guard = patient(app(&server, &rest).await);
    hits(&guard, "k").await;
    let subscribers = async || {
        let list: String = command(&server, "CLIENT LIST TYPE pubsub").await;
        list.split_whitespace().find_map(|field| field.strip_prefix("id=").map(str::to_owned))
    };
    eventually("the subscriber is connected", async || subscribers().await.is_some()).await;
    let before = subscribers().await;
    let is_ping = |entry: &String| entry.contains("ping");
    eventually("a ping was refused", async || refused(&server).await.iter().any(is_ping)).await;
    // The refusal has arrived by now. A subscriber that reconnects because of it has another id within three looks.
    for _ in 0..3 {
        assert_eq!(subscribers().await, before);
    }
}

/// After a reply that does not decode, the connection is checked with `PING`. A refused `PING` is a reply in step, so
/// the connection is kept.
///
/// Seen to fail if the refusal counts as the reply to another request.
#[tokio::test]
async fn connection_without_ping_right_is_kept() {
    let server = RedisServer::start();
    let (store, at) = (RedisStore::new(app(&server, &without("+ping")).await), CacheKey::new("sg", 0, "k"));
    command::<()>(&server, "SET {sg:rk}:v3.0 unreadable").await;
    assert!(store.get(&at).await.expect("an answer").is_none());
    let connection = store.connection(&at);
    for _ in 0..2 {
        tokio::time::sleep(SECOND).await; // younger connections are kept in any case
        assert!(store.get(&at).await.expect("an answer").is_none());
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(store.connection(&at), connection, "no reconnect");
}

/// Without tracking, copies are served up to `max_age`, and no request fails.
#[tokio::test]
async fn near_cache_without_tracking_right_keeps_to_max_age() {
    let server = RedisServer::start();
    for (rules, told) in [(documented(), true), (without("+client|tracking"), false)] {
        let client = app(&server, &rules).await;
        let policy = Policy::fresh_for(Duration::from_secs(3600));
        let guard = patient(client).policy(policy).near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND));
        let kept = async || {
            let before = guard.stats().near_hits;
            hits(&guard, "k").await;
            guard.stats().near_hits > before
        };
        let outlives_its_time = async || {
            kept().await;
            tokio::time::sleep(SECOND).await;
            kept().await
        };
        if told {
            eventually("a copy is served beyond max_age", outlives_its_time).await;
        } else {
            eventually("a copy is kept", kept).await;
            assert!(!outlives_its_time().await, "an unconfirmed copy ends with max_age");
            assert!(kept().await, "it is read again once, and then kept");
        }
    }
}

/// Nothing can compare the connection of the near cache with that of the reads. It is used, and an event says so.
#[tokio::test]
async fn near_cache_without_info_right_is_reported() {
    let (server, events) = (RedisServer::start(), Events::listen());
    let guard = patient(app(&server, &without("+info")).await).near_cache(NearCacheConfig::max_bytes(1 << 20));
    eventually("a copy is served", async || {
        hits(&guard, "k").await;
        guard.stats().near_hits > 0
    })
    .await;
    assert_eq!(events.about("`+info`"), 1, "{}", events.all());
}

/// The right of a URL with a database other than 0 that the docs name beside the rule. Seen to fail (no event) for a right
/// that was taken away when only the first connection reported it.
#[tokio::test]
async fn other_database_needs_the_right_to_select_it() {
    let (server, events) = (RedisServer::start(), Events::listen());
    for right in [None, Some("+select")] {
        app(&server, &documented().into_iter().chain(right).collect::<Vec<_>>()).await;
        let url = format!("redis://app:secret@127.0.0.1:{}/1", server.port());
        let guard = patient(redis::Client::open(url).expect("a client"));
        assert_eq!(guard.invalidate("k").await.is_ok(), right.is_some(), "{right:?}: {}", events.all());
        assert_eq!(events.about("`+select`"), 1, "{}", events.all());
        if right.is_some() {
            command::<()>(&server, "ACL SETUSER app -select").await;
            command::<i64>(&server, "CLIENT KILL USER app").await;
            eventually("an event names the right", async || {
                guard.invalidate("k").await.expect_err("not allowed");
                events.about("`+select`") == 2
            })
            .await;
        }
    }
}
