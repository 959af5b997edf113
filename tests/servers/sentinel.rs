//! A master that three sentinels watch: all connections follow the master that they name.

mod documented;
mod load;
mod split;
pub(crate) mod watched;

use self::{
    load::Load,
    watched::{Watched, isolate, turn_away},
};
use crate::{
    Down, MS, SECOND,
    kit::{Events, calls_of_a_herd, command, connection, connections_received, hits, patient, recovers},
    support::{CLOSED_PORT, RedisServer, eventually},
    tls::Authority,
};
use redis::sentinel::{SentinelClient, SentinelServerType};
use stampede_guard::{Lock, NearCacheConfig, Policy, RedisEndpoint, StampedeGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Longer than any test takes.
const HOUR: Duration = Duration::from_secs(3600);

/// Waits until the subscriber of each guard is connected.
async fn subscribed(guards: &[StampedeGuard]) {
    for guard in guards {
        eventually("the guard is subscribed", async || {
            guard.fetch("first", async || Ok::<_, Down>(1)).await.expect("an answer");
            guard.health().subscriber_up == Some(true)
        })
        .await;
    }
}

/// Asserts that the guards share one call, and that the waiters of other guards are woken by message. A waiter that is
/// registered for messages does not poll: without the message it would wait for an hour.
async fn is_shared_by_message(guards: &[StampedeGuard], key: &str) {
    subscribed(guards).await;
    let guards: Vec<_> = guards.iter().map(|guard| guard.clone().lease_ttl(HOUR)).collect();
    let calls = tokio::time::timeout(30 * SECOND, calls_of_a_herd(&guards, key));
    assert_eq!(calls.await.expect("woken by message"), 1);
}

/// Waits until all connections for messages lead to this server.
async fn subscribed_at(server: &RedisServer, guards: usize) {
    eventually("all guards are subscribed at the new master", async || {
        let clients: String = command(server, "CLIENT LIST TYPE pubsub").await;
        // The sentinels subscribe as well, with a user of their own.
        clients.lines().filter(|client| client.contains("user=default")).count() == guards
    })
    .await;
}

#[tokio::test]
async fn herd_over_sentinels_makes_one_call_and_is_woken() {
    let watched = Watched::start().await;
    is_shared_by_message(&watched.guards::<2>(), "herd").await;
}

/// A client of redis-rs for all sentinels, as an application may have one already.
#[tokio::test]
async fn sentinel_client_makes_a_guard_that_follows() {
    let watched = Watched::start().await;
    let client = || SentinelClient::build(watched.urls(), "main", None, SentinelServerType::Master).expect("a client");
    let guards = [(); 2].map(|()| patient(client()));
    is_shared_by_message(&guards, "before").await;
    watched.master().await.kill();
    watched.next_master(&watched.servers[0]).await;
    for guard in &guards {
        recovers(guard).await;
    }
    is_shared_by_message(&guards, "after").await;
}

/// redis-rs asks the other sentinels, and goes on to name the first one as that to listen to.
///
/// Seen to fail (not connected for 30 s) if a subscription that is not made counts as a failed attempt to reach them.
#[tokio::test]
async fn sentinel_client_follows_without_its_first_sentinel() {
    let watched = Watched::start().await;
    let urls = [format!("redis://127.0.0.1:{CLOSED_PORT}")].into_iter().chain(watched.urls());
    let client = SentinelClient::build(urls.collect(), "main", None, SentinelServerType::Master).expect("a client");
    let guard = patient(client);
    subscribed(std::slice::from_ref(&guard)).await;
    sleep(3 * SECOND).await; // until a pause would have grown
    command::<i64>(&watched.servers[0], "CLIENT KILL USER default SKIPME yes").await;
    recovers(&guard).await;
    subscribed(std::slice::from_ref(&guard)).await;
}

/// Connections for data and for messages ask all sentinels, and each sentinel is listened to.
///
/// Seen to fail (67 connections) if the pause does not grow.
#[tokio::test]
async fn sentinels_that_refuse_the_password_are_left_in_peace() {
    let watched = Watched::start().await;
    let urls = watched.sentinels.iter().map(|sentinel| format!("redis://nobody:wrong@127.0.0.1:{}", sentinel.port()));
    let guard = patient(RedisEndpoint::sentinel(urls, "main").expect("URLs"));
    let mut admin = connection(&watched.sentinels[0].client()).await;
    let before = connections_received(&mut admin).await;
    let began = Instant::now();
    while began.elapsed() < 6 * SECOND {
        guard.fetch(fastrand::u64(..), async || Ok::<_, Down>(1)).await.expect("an answer");
        sleep(10 * MS).await;
    }
    let (made, allowed) = (connections_received(&mut admin).await - before, 9 + began.elapsed().as_secs() / 4);
    assert!(made <= allowed, "{made} connections in {:?}", began.elapsed());
    assert!(guard.health().credentials_refused);
}

/// Seen to fail (a line without a hint) if an unknown command is no misconfiguration.
#[tokio::test]
async fn plain_client_of_a_sentinel_is_told_so() {
    let (watched, events) = (Watched::start().await, Events::listen());
    let guard = patient(watched.sentinels[0].client());
    assert!(!hits(&guard, "k").await && !hits(&guard, "k").await);
    assert_eq!(events.about("it is probably a sentinel"), 1, "{}", events.all());
}

/// Asserts that one line names the sentinels, where to correct them, and what is wrong.
async fn is_named_once(urls: [String; 2], words: &[&str]) {
    let events = Events::listen();
    let shown = urls.each_ref().map(|url| url.replace("nobody:wrong@", "")).join(", ");
    let guard = patient(RedisEndpoint::sentinel(urls, "main").expect("URLs"));
    let lines = || {
        let has_all = |line: &&str| words.iter().chain([&shown.as_str()]).all(|word| line.contains(word));
        events.all().lines().filter(has_all).count()
    };
    eventually("it is logged", async || {
        guard.fetch(fastrand::u64(..), async || Ok::<_, Down>(1)).await.expect("an answer");
        lines() > 0
    })
    .await;
    sleep(SECOND).await;
    assert_eq!((lines(), events.about("hint=")), (1, 1), "{}", events.all());
    assert!(!events.all().contains("nobody"));
}

#[tokio::test]
async fn hint_names_the_sentinels_that_are_gone() {
    let urls = [CLOSED_PORT, CLOSED_PORT + 1].map(|port| format!("redis://127.0.0.1:{port}"));
    is_named_once(urls, &["WARN", "cannot connect to redis", "URLs of the sentinels", "the master's name"]).await;
}

#[tokio::test]
async fn hint_names_the_sentinels_that_refuse_the_password() {
    let servers = [(); 2].map(|()| RedisServer::start());
    let urls = servers.each_ref().map(|server| format!("redis://nobody:wrong@127.0.0.1:{}", server.port()));
    let words = [
        "ERROR",
        "redis refuses to serve",
        "refused by a sentinel",
        "in the URLs of the sentinels, correct user and password",
    ];
    is_named_once(urls, &words).await;
}

/// Seen to fail (two lines) if the loss of all of them is reported beside the certificate.
#[tokio::test]
async fn certificate_of_sentinels_is_refused_and_logged_once() {
    let authority = Authority::new();
    let Some(server) = authority.server("no", &[]) else { return };
    let url = format!("rediss://127.0.0.1:{}", server.port());
    is_named_once([url.clone(), url], &["WARN", "cannot connect to redis", "certificate"]).await;
}

/// The hint tells which side has refused the user, because the address is that of the sentinels in both cases.
///
/// Seen to fail if the error of a sentinel is that of a server.
#[tokio::test]
async fn refusal_by_a_sentinel_differs_from_one_by_a_server() {
    let user = |rights| format!("ACL SETUSER app on >secret ~* &* +@all {rights}");
    for (of_sentinels, of_servers, hint) in [
        (Some("-role"), None, "grant the user of the sentinels the command `+role`"),
        (Some("-sentinel"), None, "grant the user of the sentinels the command `+sentinel"),
        (Some("-subscribe"), None, "grant the user of the sentinels the command `+subscribe`"),
        (Some("resetchannels"), None, "grant the user of the sentinels `&+switch-master`"),
        (None, Some("-subscribe"), "grant the user the command `+subscribe`"),
        (
            None,
            Some("resetpass"),
            "correct user and password in `RedisEndpoint::sentinel_with` for the servers, or `requirepass`",
        ),
    ] {
        let (watched, events) = (Watched::start().await, Events::listen());
        for (servers, rights) in [(&watched.sentinels, of_sentinels), (&watched.servers, of_servers)] {
            for server in servers {
                command::<()>(server, &user(rights.unwrap_or_default())).await;
            }
        }
        let address = watched.urls().join(", ");
        let urls = watched.urls().into_iter().map(|url| url.replace("//", "//app:secret@"));
        let endpoint = RedisEndpoint::sentinel_with(urls, "main", |client| {
            client.set_client_to_redis_username("app").set_client_to_redis_password("secret")
        });
        let guard = patient(endpoint.expect("URLs"));
        eventually("it is logged", async || {
            guard.fetch(fastrand::u64(..), async || Ok::<_, Down>(1)).await.expect("an answer");
            events.about(hint) > 0
        })
        .await;
        let refusals: Vec<_> =
            events.all().lines().filter(|line| line.contains("refuses to serve")).map(String::from).collect();
        assert!(matches!(&refusals[..], [line] if line.contains(hint) && line.contains(&address)), "{refusals:#?}");
    }
}

/// Connections to the other two, and to the master, are accepted meanwhile.
///
/// Seen to fail (four lines) if a server that accepts a user has accepted it for the sentinels.
#[tokio::test]
async fn one_sentinel_that_refuses_the_password_is_logged_once() {
    let (watched, events) = (Watched::start().await, Events::listen());
    let mut urls = watched.urls();
    urls[0] = urls[0].replace("//", "//nobody:wrong@");
    let guard = patient(RedisEndpoint::sentinel(urls, "main").expect("URLs"));
    let lines = || events.about("in the URLs of the sentinels, correct user and password");
    eventually("it is logged", async || {
        recovers(&guard).await;
        lines() > 0
    })
    .await;
    for _ in 0..3 {
        command::<i64>(watched.master().await, "CLIENT KILL USER default SKIPME yes").await;
        sleep(SECOND).await;
        recovers(&guard).await;
    }
    assert_eq!(lines(), 1, "{}", events.all());
}

/// Seen to fail (no line) if a sentinel that refuses its user counts as one that answers.
#[tokio::test]
async fn sentinels_that_all_refuse_are_logged_beside_the_first_one() {
    let (watched, events) = (Watched::start().await, Events::listen());
    for sentinel in &watched.sentinels {
        command::<()>(sentinel, "ACL SETUSER app on >secret ~* &* +@all").await;
    }
    let mut urls: Vec<_> = watched.urls().into_iter().map(|url| url.replace("//", "//app:secret@")).collect();
    urls[0] = urls[0].replace("secret", "wrong");
    let guard = patient(RedisEndpoint::sentinel(urls, "main").expect("URLs"));
    eventually("the first one is logged", async || {
        recovers(&guard).await;
        events.about("in the URLs of the sentinels, correct user and password") > 0
    })
    .await;
    assert_eq!(events.about(ALL), 0, "two sentinels name the master");
    hits(&guard, "k").await;
    guard.drain().await;
    for sentinel in &watched.sentinels[1..] {
        command::<()>(sentinel, "ACL SETUSER app resetpass >another").await;
        command::<i64>(sentinel, "CLIENT KILL USER app").await;
    }
    eventually("the loss of all is logged", async || events.about(ALL) > 0).await;
    assert!(hits(&guard, "k").await, "the connection to the master goes on");
    assert_eq!(events.about(ALL), 1, "{}", events.all());
}

const ALL: &str = "none of the named addresses answers";

/// Seen to fail if only the first attempt to reach a server is logged.
#[tokio::test]
async fn loss_of_all_sentinels_is_logged_once() {
    let (mut watched, events) = (Watched::start().await, Events::listen());
    let [guard] = watched.guards::<1>();
    subscribed(std::slice::from_ref(&guard)).await;
    let lines = || events.about(ALL);
    watched.sentinels.pop();
    sleep(SECOND).await;
    assert_eq!(lines(), 0, "{}", events.all());
    watched.sentinels.clear();
    eventually("it is logged", async || lines() > 0).await;
    sleep(SECOND).await;
    assert_eq!(lines(), 1, "{}", events.all());
    recovers(&guard).await;
}

/// The outage cache is set to the time of a failover. Seen to fail (96 calls) if it keeps nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_killed_under_load_costs_one_call_per_guard_and_key() {
    let watched = Watched::start().await;
    let guards = watched.guards::<4>();
    let load = Load::start(&guards, &watched.servers).await;
    watched.master().await.kill();
    let master = watched.next_master(&watched.servers[0]).await;
    let served = std::time::Instant::now();
    load.is_shared_again().await;
    let shared_after = served.elapsed();
    let (failed, most_calls) = load.stop().await;
    println!("shared again {shared_after:?} after the new master was named");
    assert!(shared_after < 10 * SECOND, "{shared_after:?}");
    assert_eq!(failed, 0);
    assert!(most_calls <= 1, "{most_calls} further calls of one key in one process");
    subscribed_at(master, guards.len()).await;
    is_shared_by_message(&guards, "after").await;
}

/// The old master closes no connection, and answers nothing. Seen to fail (69 calls) if the outage cache keeps nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_that_hangs_under_load_is_left() {
    let watched = Watched::start().await;
    let guards = watched.guards::<4>();
    let load = Load::start(&guards, &watched.servers).await;
    watched.master().await.pause();
    let master = watched.next_master(&watched.servers[0]).await;
    let served = std::time::Instant::now();
    load.is_shared_again().await;
    let shared_after = served.elapsed();
    println!("shared again {shared_after:?} after the new master was named");
    assert!(shared_after < 10 * SECOND, "{shared_after:?}");
    let (failed, most_calls) = load.stop().await;
    assert_eq!(failed, 0);
    assert!(most_calls <= 1, "{most_calls} further calls of one key in one process");
    subscribed_at(master, guards.len()).await;
    is_shared_by_message(&guards, "after").await;
    watched.servers[0].resume();
}

/// The sentinels and the replicas do not reach the old master any more, but its clients do. No connection breaks, and
/// the sentinels cannot make it a replica.
///
/// Seen to fail if connections are made again only when they break.
#[tokio::test]
async fn connections_leave_a_master_that_sentinels_cannot_reach() {
    let watched = Watched::start().await;
    let guards = watched.guards::<2>();
    is_shared_by_message(&guards, "before").await;
    isolate(watched.master().await).await;
    let master = watched.next_master(&watched.servers[0]).await;
    subscribed_at(master, guards.len()).await;
    is_shared_by_message(&guards, "after").await;
    assert_eq!(command::<i64>(&watched.servers[0], "EXISTS {sg:rafter}:v3.2").await, 0);
    assert_eq!(command::<i64>(master, "EXISTS {sg:rafter}:v3.2").await, 1);
}

/// The old master answers this guard as before, and no lookup of it has started the subscriber. Seen to take ten seconds
/// more if the task that listens to the sentinels is not started.
#[tokio::test]
async fn guard_that_only_invalidates_leaves_an_isolated_master() {
    let watched = Watched::start().await;
    let [writer] = watched.guards();
    writer.invalidate("k").await.expect("acknowledged");
    isolate(watched.master().await).await;
    let master = watched.next_master(&watched.servers[0]).await;
    command::<()>(master, "SET {sg:rk}:v3.2 old").await;
    eventually("the invalidation reaches the new master", async || {
        let _ = writer.invalidate("k").await;
        command::<i64>(master, "EXISTS {sg:rk}:v3.2").await == 0
    })
    .await;
}

/// An operator makes another server the master.
#[tokio::test]
async fn connections_follow_a_failover_by_command() {
    let watched = Watched::start().await;
    let guards = watched.guards::<2>();
    is_shared_by_message(&guards, "before").await;
    watched.master().await;
    command::<()>(&watched.sentinels[1], "SENTINEL FAILOVER main").await;
    let master = watched.next_master(&watched.servers[0]).await;
    subscribed_at(master, guards.len()).await;
    is_shared_by_message(&guards, "after").await;
    assert_eq!(command::<i64>(master, "EXISTS {sg:rafter}:v3.2").await, 1);
}

/// The replicas have not got the invalidation, so the new master has the old value. The process that has requested the
/// invalidation sends it again with its first command there.
///
/// Seen to fail without the repetition of recent invalidations.
#[tokio::test]
async fn invalidation_that_a_failover_lost_is_sent_again() {
    let watched = Watched::start().await;
    let [writer, reader] = watched.guards().map(|guard| guard.policy(Policy::fresh_for(HOUR)));
    writer.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    writer.drain().await;
    for replica in &watched.servers[1..] {
        eventually("the replica has it", async || command::<i64>(replica, "EXISTS {sg:rk}:v3.2").await == 1).await;
    }
    turn_away(watched.master().await, "replica").await;
    writer.invalidate("k").await.expect("acknowledged by the master");
    watched.servers[0].kill();
    let master = watched.next_master(&watched.servers[0]).await;
    assert_eq!(command::<i64>(master, "EXISTS {sg:rk}:v3.2").await, 1, "the failover lost the invalidation");
    recovers(&writer).await;
    eventually("the invalidation is sent again", async || {
        reader.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer") == 2
    })
    .await;
}

/// Two sentinels of three are a majority: with one that is dead or hangs, guards connect and follow as before.
#[tokio::test]
async fn one_sentinel_that_is_dead_or_hangs_is_not_needed() {
    for stop in [RedisServer::kill, RedisServer::pause] {
        let watched = Watched::start().await;
        stop(&watched.sentinels[0]);
        let guards = watched.guards::<2>();
        let began = std::time::Instant::now();
        recovers(&guards[0]).await;
        println!("connected after {:?}", began.elapsed());
        is_shared_by_message(&guards, "before").await;
        watched.servers[0].kill();
        let master = watched.next_master(&watched.servers[0]).await;
        for guard in &guards {
            recovers(guard).await;
        }
        subscribed_at(master, guards.len()).await;
        is_shared_by_message(&guards, "after").await;
    }
}

/// The last sentinel cannot begin a failover, but it knows the master.
#[tokio::test]
async fn last_sentinel_is_enough_to_connect() {
    let watched = Watched::start().await;
    watched.sentinels[0].pause();
    watched.sentinels[2].kill();
    let guards = watched.guards::<2>();
    for guard in &guards {
        recovers(guard).await;
    }
    is_shared_by_message(&guards, "herd").await;
}

/// Copies are kept again, and dropped by the messages of the new master: their age alone would keep them for an hour.
#[tokio::test]
async fn near_cache_is_tracked_by_the_new_master() {
    let watched = Watched::start().await;
    let policy = Policy::fresh_for(HOUR);
    let near = NearCacheConfig::max_bytes(1 << 20).max_age(HOUR);
    let [reader, writer] = watched.guards().map(|guard| guard.policy(policy));
    let reader = reader.near_cache(near);
    recovers(&reader).await;
    watched.master().await.kill();
    watched.next_master(&watched.servers[0]).await;
    recovers(&writer).await;
    eventually("copies are kept again", async || {
        let before = reader.stats().near_hits;
        reader.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
        reader.stats().near_hits > before
    })
    .await;
    writer.invalidate("k").await.expect("acknowledged");
    eventually("the copy is dropped by message", async || {
        reader.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer") == 2
    })
    .await;
}

#[tokio::test]
async fn lock_over_sentinels_works_after_a_failover() {
    let watched = Watched::start().await;
    let lock = Lock::new(watched.endpoint()).store_timeout(5 * SECOND).ttl(60 * SECOND).wait(60 * SECOND);
    lock.acquire("before").await.expect("free").release().await.expect("held");
    watched.master().await.kill();
    watched.next_master(&watched.servers[0]).await;
    eventually("the lock is granted", async || match lock.acquire("after").await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(_) => false,
    })
    .await;
    let guard = lock.acquire("after").await.expect("free");
    let waiting = tokio::spawn(async move { lock.acquire("after").await.expect("in time").release().await });
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("held");
}

#[test]
fn sentinel_endpoint_names_its_mistakes() {
    let none: [&str; 0] = [];
    let error = RedisEndpoint::sentinel(none, "main").expect_err("no sentinel");
    assert!(error.to_string().contains("at least one sentinel"), "{error}");
    RedisEndpoint::sentinel(["http://127.0.0.1"], "main").expect_err("no URL of Redis");
    let error = RedisEndpoint::sentinel(["redis://127.0.0.1/3"], "main").expect_err("a database");
    assert!(error.to_string().contains("a sentinel has no databases"), "{error}");
}
