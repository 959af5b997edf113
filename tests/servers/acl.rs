//! A user with the rights that docs/operations.md lists, and with one of them missing.

use crate::{
    Down, SECOND,
    kit::{Events, calls_of_a_herd, calls_of_a_varied_herd, command, hits, patient},
    never,
    support::{Origin, RedisServer, eventually},
};
use redis::AsyncTypedCommands;
use stampede_guard::{
    ErrorKind, Fetched, NearCache, Policy, RedisStore,
    store::{Address, Ask, Inbox, Lead, Store, Token},
};
use std::time::Duration;

/// The rule of the docs, word by word.
pub(crate) fn documented() -> Vec<&'static str> {
    documented_for("app")
}

pub(crate) fn documented_for(user: &str) -> Vec<&'static str> {
    let (docs, rule) = (include_str!("../../docs/operations.md"), format!("ACL SETUSER {user} "));
    let line = docs.lines().find_map(|line| line.trim().strip_prefix(rule.as_str())).expect("a rule in the docs");
    line.split(' ').collect()
}

/// That user, and no older one.
pub(crate) async fn app(server: &RedisServer, rules: &[&str]) -> redis::Client {
    command::<()>(server, &["ACL SETUSER app reset", &rules.join(" ")].join(" ")).await;
    redis::Client::open(format!("redis://app:secret@127.0.0.1:{}", server.port())).expect("a client")
}

/// What the server refused to anybody, but for the introduction of redis-rs, which later servers know and log.
pub(crate) async fn refused(server: &RedisServer) -> Vec<String> {
    let log: Vec<std::collections::HashMap<String, redis::Value>> = command(server, "ACL LOG").await;
    let what = log.iter().map(|entry| format!("{:?}", entry["object"])).filter(|what| !what.contains("setinfo"));
    what.collect()
}

#[tokio::test]
async fn the_documented_rights_are_enough_for_everything() {
    let server = RedisServer::start();
    let client = app(&server, &documented()).await;
    let [a, b] = [(); 2].map(|()| patient(client.clone()).lease(SECOND));
    assert_eq!(calls_of_a_herd(&[a.clone(), b.clone()], "herd").await, 1);
    assert!(hits(&a, "herd").await);
    assert_eq!(calls_of_a_varied_herd(&[a.clone(), b.clone()], "varied").await, 1);

    // A long fetch: its lease is extended, and a waiter is on the list of those to wake.
    let origin = Origin::gated();
    let lead = a.fetch("long", {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.call().await)
    });
    let wait = async {
        origin.arrived(1).await;
        let (store, at) = (RedisStore::new(client.clone()), Address::new("sg", 0, "long"));
        let mut listener = store.listen(&at);
        eventually("wake-ups are heard", async || {
            let ask = Ask { token: Token::unique(Inbox::unique()), lease: SECOND, seen: None };
            matches!(store.lead(&at, ask).await, Ok(Lead::Wait { registered: true, .. }))
        })
        .await;
        eventually("the lease is extended", async || {
            command::<String>(&server, "INFO commandstats").await.contains("cmdstat_pexpire")
        })
        .await;
        origin.open();
        listener.woken().await;
    };
    let (led, ()) = tokio::join!(lead, wait);
    assert_eq!(led.expect("an answer"), 1);
    a.shutdown().await;

    // A failure, and its tombstone.
    a.fetch("failure", async || Err::<i32, _>(Down)).await.expect_err("down");
    a.shutdown().await;
    let mut redis = server.connection().await;
    assert!(redis.get("{sg:rfailure}:l").await.expect("an answer").is_some_and(|tombstone| tombstone.starts_with('F')));

    // A marker, and the end of it.
    a.fetch_with("private", async |_| Ok::<_, Down>(Fetched::new(1).private())).await.expect("an answer");
    a.shutdown().await;
    a.fetch("private", async || Ok::<_, Down>(2)).await.expect("an answer");
    a.shutdown().await;
    assert_eq!(a.fetch("private", never::<i32>).await.expect("a hit"), 2);

    a.invalidate("herd").await.expect("acknowledged");
    assert!(!hits(&a, "herd").await);
    for guard in [&a, &b] {
        guard.shutdown().await;
        assert_eq!(guard.report().store_errors, 0);
    }
    assert_eq!(refused(&server).await, [""; 0]);
}

/// What is lost with each right: whether one call still serves the fleet (without `+mget` not if a page varies), and
/// whether somebody is told that the user lacks it. Without a right to channels, to `APPEND` or `PUBLISH` those who wait
/// poll.
const WITHOUT: &[(&str, bool, bool)] = &[
    ("~{sg:*", false, true),
    ("&stampede-guard:*", true, true),
    ("+get", false, true),
    ("+mget", false, true),
    ("+getrange", false, true),
    ("+set", false, true),
    ("+del", true, true),
    ("+append", true, false),
    ("+pttl", false, true),
    ("+pexpire", true, false),
    ("+time", false, true),
    ("+publish", true, false),
    ("+eval", true, false),
    ("+evalsha", false, true),
    ("+script|load", true, false),
    ("+subscribe", true, true),
    ("+ping", true, false),
    ("+client|tracking", true, false),
];

/// Seen to fail for `GETRANGE` with its error taken for "no entry" in `lead`: those who wait lead one after another, and
/// nobody is told.
#[tokio::test]
async fn without_one_of_them_all_are_answered_all_the_same() {
    let (server, rules) = (RedisServer::start(), documented());
    for &(right, shares, says_so) in WITHOUT {
        assert!(rules.contains(&right), "{right} is not in the docs");
        let rest: Vec<_> = rules.iter().copied().filter(|rule| *rule != right).collect();
        let (client, events) = (app(&server, &rest).await, Events::listen());
        let guards = [(); 2].map(|()| patient(client.clone()));
        let key = format!("without-{}", &right[1..]);
        let calls = calls_of_a_herd(&guards, &key).await.max(calls_of_a_varied_herd(&guards, &key).await);
        if shares {
            assert_eq!(calls, 1, "{right}");
        } else {
            assert!(calls > 1, "{right} is not needed");
        }
        if says_so {
            eventually("somebody is told", async || events.about("way_out") > 0).await;
        }
        // By each guard at most once on each of its connections.
        let most = if says_so { 4 } else { 0 };
        assert!(events.about("way_out") <= most, "{right}: {}", events.all());
    }
    let needed = |rule: &&str| rule.starts_with(['~', '&', '+']);
    assert_eq!(rules.iter().filter(|rule| needed(rule)).count(), WITHOUT.len(), "{rules:?}");
}

/// Scripts reach a user who may not load them with their first call, and one who may only load them until they are
/// forgotten.
#[tokio::test]
async fn scripts_are_loaded_one_way_or_the_other() {
    let (server, rules) = (RedisServer::start(), documented());
    for (right, shares) in [("+script|load", true), ("+eval", false)] {
        let rest: Vec<_> = rules.iter().copied().filter(|rule| *rule != right).collect();
        let guard = patient(app(&server, &rest).await);
        hits(&guard, &format!("before {right}")).await;
        command::<()>(&server, "SCRIPT FLUSH").await;
        let key = format!("after {right}");
        hits(&guard, &key).await;
        guard.shutdown().await;
        assert_eq!(hits(&guard, &key).await, shares, "{right}");
    }
}

#[tokio::test]
async fn an_invalidation_that_is_not_allowed_says_so() {
    let (server, rules) = (RedisServer::start(), documented());
    let rest: Vec<_> = rules.iter().copied().filter(|rule| *rule != "+del").collect();
    let guard = patient(app(&server, &rest).await);
    let error = guard.invalidate("k").await.expect_err("it may not delete");
    assert_eq!(error.kind(), ErrorKind::Store);
    let source = std::error::Error::source(&error).expect("a source").to_string();
    assert!(source.contains("executing the script") || source.contains("ACL failure"), "{source}");
}

/// Its connection is alive: to make it anew would lose wake-ups, and not help. Seen to fail with that taken for the end.
#[tokio::test]
async fn a_subscriber_that_may_not_ping_stays() {
    let (server, rules) = (RedisServer::start(), documented());
    let rest: Vec<_> = rules.iter().copied().filter(|rule| *rule != "+ping").collect();
    let guard = patient(app(&server, &rest).await);
    hits(&guard, "k").await;
    let subscribers = async || {
        let list: String = command(&server, "CLIENT LIST TYPE pubsub").await;
        list.split_whitespace().find_map(|field| field.strip_prefix("id=").map(str::to_owned))
    };
    eventually("it listens", async || subscribers().await.is_some()).await;
    let before = subscribers().await;
    eventually("it asks", async || !refused(&server).await.is_empty()).await;
    // By now its answer is there; whoever is gone by the third look has left because of it.
    for _ in 0..3 {
        assert_eq!(subscribers().await, before);
    }
}

/// What it cannot read costs it a question, and not its connection. Seen to fail with the refusal taken for the answer to
/// another question.
#[tokio::test]
async fn a_connection_that_may_not_ping_stays() {
    let (server, rules) = (RedisServer::start(), documented());
    let rest: Vec<_> = rules.iter().copied().filter(|rule| *rule != "+ping").collect();
    let (store, at) = (RedisStore::new(app(&server, &rest).await), Address::new("sg", 0, "k"));
    command::<()>(&server, "SET {sg:rk}:v2.0 unreadable").await;
    for _ in 0..3 {
        assert!(store.get(&at).await.expect("an answer").is_none());
        tokio::time::sleep(SECOND).await; // younger ones stay in any case
    }
    assert_eq!(store.epoch(), 1, "its connections");
}

/// Copies live for their time all the same, and nobody's request fails.
#[tokio::test]
async fn without_the_right_to_track_copies_are_bounded_by_time() {
    let server = RedisServer::start();
    for (missing, told) in [("", true), ("-client|tracking", false)] {
        let mut rules = documented();
        rules.push(missing);
        let client = app(&server, &rules).await;
        let policy = Policy::fresh_for(Duration::from_secs(3600));
        let guard = patient(client).policy(policy).near_cache(NearCache::bytes(1 << 20).max_age(SECOND));
        let kept = async || {
            let before = guard.report().near_hits;
            hits(&guard, "k").await;
            guard.report().near_hits > before
        };
        let outlives_its_time = async || {
            kept().await;
            tokio::time::sleep(SECOND).await;
            kept().await
        };
        if told {
            eventually("a copy outlives its time", outlives_its_time).await;
        } else {
            eventually("a copy is kept", kept).await;
            assert!(!outlives_its_time().await, "nobody has said that it is still good");
            assert!(kept().await, "once more it is read, and no oftener");
        }
    }
}
