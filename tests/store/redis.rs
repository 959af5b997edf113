//! What only Redis can do to a store.

use crate::{
    suite::{LONG, SHORT, ask, fill, fresh, lead, payload, token},
    support::{RedisServer, Relay, eventually, herd},
};
use redis::AsyncTypedCommands;
use stampede_guard::{
    RedisStore,
    store::{Address, Ask, Connection, Filled, IntoStore, Lead, Store},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::timeout;

fn store() -> RedisStore {
    RedisStore::new(RedisServer::shared().client())
}

/// The names that the docs of `RedisStore` give.
fn names(at: &Address) -> (String, String) {
    let key = std::str::from_utf8(at.primary()).expect("a plain key");
    let slot = format!("{{{}:r{key}}}", at.namespace());
    (format!("{slot}:v2.{}", at.schema()), format!("{slot}:l"))
}

#[tokio::test]
async fn names_are_as_documented() {
    let (store, at) = (store(), fresh("names"));
    let (entry, lease) = names(&at);
    let mut redis = RedisServer::shared().connection().await;
    let held = lead(&store, &at, LONG).await;
    assert!(redis.exists(&lease).await.expect("an answer"));
    fill(&store, &at, held, "v").await;
    assert!(redis.exists(&entry).await.expect("an answer"));
    assert!(!redis.exists(&lease).await.expect("an answer"));
    let expiry: i64 = redis::cmd("PTTL").arg(&entry).query_async(&mut redis).await.expect("an answer");
    assert!(expiry > 0 && expiry.cast_unsigned() <= LONG.as_millis() as u64, "{expiry}");
}

#[tokio::test]
async fn garbage_and_wrong_types_are_a_miss() {
    let store = store();
    let mut redis = RedisServer::shared().connection().await;
    for garbage in ["", "x", "v", &"v".repeat(16), &"v".repeat(17), &"p".repeat(200)] {
        let at = fresh("garbage");
        let (entry, lease) = names(&at);
        for name in [&entry, &lease] {
            redis.set(name, garbage).await.expect("an answer");
        }
        assert!(store.get(&at).await.expect("a miss, no error").is_none(), "{garbage:?}");
        let held = lead(&store, &at, LONG).await;
        assert_eq!(fill(&store, &at, held, "v").await, Filled::Stored, "{garbage:?}");
        assert_eq!(payload(&store, &at).await.as_deref(), Some("v"));
    }
    let at = fresh("lists");
    let (entry, lease) = names(&at);
    for name in [&entry, &lease] {
        redis.rpush(name, "x").await.expect("an answer");
    }
    assert!(store.get(&at).await.expect("a miss, no error").is_none());
    store.abandon(&at, token(), None).await.expect("lost, no error");
    let held = lead(&store, &at, LONG).await;
    assert_eq!(fill(&store, &at, held, "v").await, Filled::Stored);
}

/// As after a reply that belongs to another request, or two keys of one hash.
#[tokio::test]
async fn the_entry_of_another_key_is_a_miss() {
    let (store, mine, other) = (store(), fresh("mine"), fresh("other"));
    let held = lead(&store, &other, LONG).await;
    fill(&store, &other, held, "theirs").await;
    let mut redis = RedisServer::shared().connection().await;
    redis::cmd("COPY").arg(names(&other).0).arg(names(&mine).0).exec_async(&mut redis).await.expect("copied");
    assert!(store.get(&mine).await.expect("a miss, no error").is_none());
    let held = lead(&store, &mine, LONG).await;
    assert_eq!(fill(&store, &mine, held, "mine").await, Filled::Stored);
    assert_eq!(payload(&store, &mine).await.as_deref(), Some("mine"));
}

#[tokio::test]
async fn a_lease_without_expiry_is_free() {
    let (store, at) = (store(), fresh("persisted"));
    lead(&store, &at, SHORT).await;
    let mut redis = RedisServer::shared().connection().await;
    assert!(redis.persist(names(&at).1).await.expect("an answer"));
    lead(&store, &at, LONG).await;
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let mut redis = server.connection().await;
    for _ in 0..2 {
        let at = fresh("flushed scripts");
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.expect("flushed");
        let held = lead(&store, &at, LONG).await;
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.expect("flushed");
        assert_eq!(fill(&store, &at, held, "v").await, Filled::Stored);
    }
}

#[tokio::test]
async fn a_full_server_refuses_a_fill_and_frees_the_lease() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let (at, before) = (fresh("full"), fresh("before"));
    let held = lead(&store, &before, LONG).await;
    fill(&store, &before, held, "v").await;
    let held = lead(&store, &at, LONG).await;
    let mut redis = server.connection().await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec_async(&mut redis).await.expect("set");
    let entry = crate::suite::entry(held.token, stampede_guard::store::Kind::Value, "v");
    let write = stampede_guard::store::Write { at: at.clone(), entry };
    let refused = store.fill(&at, stampede_guard::store::Right::Lease(held), vec![write]).await;
    assert!(refused.expect_err("it is full").is_refused());
    assert_eq!(payload(&store, &before).await.as_deref(), Some("v"), "hits go on");
    assert!(!redis.exists(names(&at).1).await.expect("an answer"), "nobody waits for a lease that nobody uses");
}

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let at = fresh("reconnected");
    let held = lead(&store, &at, LONG).await;
    fill(&store, &at, held, "v").await;
    let mut redis = server.connection().await;
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .exec_async(&mut redis)
        .await
        .expect("killed");
    eventually("it answers again", async || store.get(&at).await.is_ok()).await;
    assert_eq!(payload(&store, &at).await.as_deref(), Some("v"));
}

/// Seen to fail with the `wake_all` of the subscriber taken out.
#[tokio::test]
async fn a_lost_subscriber_comes_back_and_wakes_everybody() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let at = fresh("subscriber");
    let mut listener = store.listen(&at);
    let token = listener.token();
    store.lead(&at, Ask { token, lease: LONG, seen: None }).await.expect("an answer");
    let mut redis = server.connection().await;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis).await.expect("killed");
    timeout(LONG, listener.woken()).await.expect("woken, since wake-ups may have been lost");
    let (_, wait) = ask(&store, &at, LONG, None).await;
    assert!(matches!(wait, Lead::Wait { .. }), "{wait:?}");
    eventually("it hears again", async || {
        matches!(ask(&store, &at, LONG, None).await.1, Lead::Wait { registered: true, .. })
    })
    .await;
}

#[tokio::test]
async fn a_connection_polls_unless_it_is_told_where_wake_ups_come_from() {
    let (server, at) = (RedisServer::shared(), fresh("connections"));
    lead(&store(), &at, LONG).await;
    let manager = server.client().get_connection_manager().await.expect("connected");
    let multiplexed = server.connection().await;
    let polling: [Arc<dyn Store>; 3] =
        [manager.clone().into_store(), multiplexed.clone().into_store(), Connection(multiplexed).into_store()];
    for store in polling {
        let (_, wait) = ask(&*store, &at, LONG, None).await;
        assert!(matches!(wait, Lead::Wait { registered: false, .. }), "{wait:?}");
    }
    let woken = RedisStore::from_connection(manager).wakes_from(server.client());
    let _listener = woken.listen(&at);
    eventually("wake-ups are heard", async || {
        matches!(ask(&woken, &at, LONG, None).await.1, Lead::Wait { registered: true, .. })
    })
    .await;
}

/// Sixty-four inboxes and no more; the others poll.
#[tokio::test]
async fn inboxes_are_bounded_and_not_repeated() {
    let (server, at) = (RedisServer::shared(), fresh("inboxes"));
    lead(&store(), &at, LONG).await;
    let stores: Vec<_> = (0..66).map(|_| RedisStore::new(server.client())).collect();
    for (i, store) in stores.iter().enumerate() {
        let _listener = store.listen(&at);
        for _ in 0..2 {
            eventually("there is room for 64", async || {
                let (_, wait) = ask(store, &at, LONG, None).await;
                matches!(wait, Lead::Wait { registered, waiting, .. } if registered == (i < 64) && waiting <= 64)
            })
            .await;
        }
    }
}

/// Seen to fail with `redis.call` in place of `redis.pcall` around PUBLISH: the fill is an error, though stored.
#[tokio::test]
async fn a_user_without_rights_to_channels_can_fill() {
    let server = RedisServer::start();
    let mut redis = server.connection().await;
    let rules = ["SETUSER", "app", "on", ">secret", "~{suite:*", "resetchannels", "+@all"];
    redis::cmd("ACL").arg(&rules).exec_async(&mut redis).await.expect("a user");
    let app = redis::Client::open(format!("redis://app:secret@127.0.0.1:{}", server.port())).expect("a client");
    let (store, at) = (RedisStore::new(app), fresh("acl"));
    let held = lead(&store, &at, LONG).await;
    let other = RedisStore::new(server.client());
    let _listener = other.listen(&at);
    eventually("wake-ups are heard", async || {
        matches!(ask(&other, &at, LONG, None).await.1, Lead::Wait { registered: true, .. })
    })
    .await;
    assert_eq!(fill(&store, &at, held, "v").await, Filled::Stored);
}

/// Its name may lead to the new master by then. Seen to fail with a connection to a replica kept.
#[tokio::test]
async fn a_master_that_was_demoted_is_connected_to_anew() {
    let (server, master) = (RedisServer::start(), RedisServer::start());
    let (store, at) = (RedisStore::new(server.client()), fresh("demoted"));
    lead(&store, &at, SHORT).await;
    let mut redis = server.connection().await;
    let clients = async || {
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query_async(&mut server.connection().await).await.expect("a list");
        let id = |line: &str| line.split_whitespace().next().map(str::to_owned);
        list.lines().filter(|line| line.contains("cmd=eval")).filter_map(id).collect::<Vec<_>>()
    };
    let before = clients().await;
    let port = master.port().to_string();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).exec_async(&mut redis).await.expect("demoted");
    eventually("it has connected anew", async || {
        let ask = Ask { token: token(), lease: LONG, seen: None };
        let refused = store.lead(&fresh("refused"), ask).await;
        assert!(refused.expect_err("a replica").is_refused());
        let now = clients().await;
        !now.is_empty() && now != before
    })
    .await;
}

/// A connection that has lost count answers as long as it is asked, with what others have asked for: it is never silent.
/// Seen to fail (there are no hits any more) with `Dialled::question` doing nothing.
#[tokio::test]
async fn a_connection_that_has_lost_count_is_replaced_while_it_answers() {
    const IN_A_ROW: usize = 100;
    let server = RedisServer::shared();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let store = Arc::new(RedisStore::new(relay.client()).wakes_from(server.client()));
    let pages: Vec<_> = (0..64).map(|n| (fresh("counted"), &*format!("page {n}").leak())).collect();
    for (at, page) in &pages {
        let held = lead(&*store, at, LONG).await;
        fill(&*store, at, held, page).await;
    }
    let (pages, wrong, right) = (Arc::new(pages), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    relay.swallow_reply();
    let reads = herd(8, |i| {
        let (store, pages, wrong, right) = (store.clone(), pages.clone(), wrong.clone(), right.clone());
        let mut dice = fastrand::Rng::with_seed(i as u64);
        async move {
            while wrong.load(SeqCst) == 0 || right.load(SeqCst) < IN_A_ROW {
                let (at, page) = dice.choice(&*pages).expect("there are pages");
                match timeout(Duration::from_secs(1), store.get(at)).await {
                    Ok(Ok(Some(entry))) => {
                        assert_eq!(entry.payload().bytes(), page.as_bytes());
                        right.fetch_add(1, SeqCst);
                    }
                    _ => {
                        wrong.fetch_add(1, SeqCst);
                        right.store(0, SeqCst);
                    }
                }
            }
        }
    });
    timeout(LONG, reads).await.expect("each read finds its own again");
}
