//! Cases that only the Redis store has: server errors, lost connections, ACLs and failover.

use crate::{
    large::FILLER,
    suite::{LONG, SHORT, ask, fill, fresh, lead, payload, renew, stored_and_led, token},
    support::{RedisServer, Relay, eventually, herd},
};
use bytes::Bytes;
use futures_util::StreamExt;
use redis::AsyncTypedCommands;
use stampede_guard::{
    Connection, IntoEndpoint, RedisStore,
    store::{
        CacheKey, Entry, FailureMarker, FillOutcome, IntoStore, LeaseReply, LeaseRequest, LeaseStatus, Leaves, Store,
    },
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

/// Returns the documented Redis keys of the entry and of the lease.
fn names(key: &CacheKey) -> (String, String) {
    let primary = std::str::from_utf8(key.primary()).expect("a plain key");
    let slot = format!("{{{}:r{primary}}}", key.namespace());
    (format!("{slot}:v3.{:x}", key.layout() % 16), format!("{slot}:l"))
}

#[tokio::test]
async fn names_are_as_documented() {
    let (store, key) = (store(), fresh("names"));
    let (entry, lease) = names(&key);
    let mut redis = RedisServer::shared().connection().await;
    let held = lead(&store, &key, LONG).await;
    assert!(redis.exists(&lease).await.expect("an answer"));
    fill(&store, &key, held, "v").await;
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
        let key = fresh("garbage");
        let (entry, lease) = names(&key);
        for name in [&entry, &lease] {
            redis.set(name, garbage).await.expect("an answer");
        }
        assert!(store.get(&key).await.expect("a miss, not an error").is_none(), "{garbage:?}");
        let held = lead(&store, &key, LONG).await;
        assert_eq!(fill(&store, &key, held, "v").await, FillOutcome::Stored, "{garbage:?}");
        assert_eq!(payload(&store, &key).await.as_deref(), Some("v"));
    }
    let key = fresh("lists");
    let (entry, lease) = names(&key);
    for name in [&entry, &lease] {
        redis.rpush(name, "x").await.expect("an answer");
    }
    assert!(store.get(&key).await.expect("a miss, not an error").is_none());
    store.release(&key, token(), None).await.expect("lost, not an error");
    let held = lead(&store, &key, LONG).await;
    assert_eq!(fill(&store, &key, held, "v").await, FillOutcome::Stored);
}

/// The last digit of a layout is in its first name. A store changes the name of a layout while a fetch of it runs,
/// because it has met another entry.
///
/// Seen to fail (the entry of the other layout is overwritten) when a fill took the name that was in use last.
#[tokio::test]
async fn fill_takes_the_name_of_its_lease() {
    let (server, at) = (RedisServer::start(), |layout, key: &str| CacheKey::new("sg", layout, key));
    let [other, store] = [(); 2].map(|()| RedisStore::new(server.client()));
    let held = lead(&other, &at(0x05, "met"), LONG).await;
    fill(&other, &at(0x05, "met"), held, "theirs").await;
    let held = lead(&store, &at(0x15, "first"), LONG).await;
    fill(&store, &at(0x15, "first"), held, "first").await;
    let held = lead(&store, &at(0x15, "met"), LONG).await;
    assert_eq!(held.name, 1);
    let (_, reply) = ask(&store, &at(0x15, "first"), LONG, None).await;
    assert!(matches!(reply, LeaseReply::Hit(_)), "{reply:?}");
    assert_eq!(fill(&store, &at(0x15, "met"), held, "mine").await, FillOutcome::Stored);
    assert_eq!(payload(&other, &at(0x05, "met")).await.as_deref(), Some("theirs"));
    let (_, reply) = ask(&store, &at(0x15, "met"), LONG, None).await;
    assert!(matches!(&reply, LeaseReply::Hit(entry) if entry.payload().bytes() == "mine"), "{reply:?}");
    assert_eq!(payload(&store, &at(0x15, "met")).await.as_deref(), Some("mine"), "under the name of the hit");
}

/// The layouts of the versions of a type, whose first name is the same, and so is their second one.
const VERSIONS: [u64; 9] = [0x05, 0x75, 0xe5, 0x155, 0x1c5, 0x235, 0x2a5, 0x315, 0x385];

/// Reads each key once in each process, in any order, and fills what is not stored. Returns the number of fills.
async fn fills(processes: &[(u64, RedisStore)], keys: usize) -> usize {
    let mut reads: Vec<_> = (0..keys).flat_map(|n| processes.iter().map(move |process| (n, process))).collect();
    fastrand::shuffle(&mut reads);
    let mut fills = 0;
    for (n, (layout, store)) in reads {
        let key = CacheKey::new("sg", *layout, format!("k{n}"));
        if store.get(&key).await.expect("an answer").is_none()
            && let LeaseReply::Granted { lease, .. } = ask(store, &key, LONG, None).await.1
        {
            assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
            fills += 1;
        }
    }
    fills
}

/// A deploy begins while the one before is not over. Then two versions go on, and processes of them start, beside what the
/// others have left. A put is seen by processes that look at the first two names alone.
///
/// Seen to fail with two names for a layout, and if a process keeps to a later name than the second one.
#[tokio::test]
async fn three_versions_with_the_same_names_overwrite_no_entry() {
    const KEYS: usize = 20;
    let server = RedisServer::start();
    let process = |version| (version, RedisStore::new(server.client()));
    let two = |version| [version; 2].map(process);
    let mut processes: Vec<_> = [VERSIONS[0], VERSIONS[1]].into_iter().flat_map(two).collect();
    assert_eq!(fills(&processes, KEYS).await, 2 * KEYS);
    processes.extend(two(VERSIONS[2]));
    assert_eq!(fills(&processes, KEYS).await, KEYS);
    assert_eq!(fills(&processes, KEYS).await, 0, "each version has its entries");
    processes.drain(..2);
    processes.extend([VERSIONS[1], VERSIONS[2]].map(process));
    assert_eq!(fills(&processes, KEYS).await, 0, "also in processes that start");
    let key = CacheKey::new("sg", VERSIONS[2], "k0");
    let request = LeaseRequest::new(token(), LONG);
    let put =
        processes[2].1.invalidate(std::slice::from_ref(&key), Leaves::Lease(request)).await.expect("acknowledged");
    fill(&processes[2].1, &key, put.expect("granted"), "put").await;
    assert_eq!(fills(&processes, 1).await, 1, "the put drops the entries of each version, and is seen");
}

/// There are eight names.
///
/// Seen to fail (no lease) if none of them is overwritten.
#[tokio::test]
async fn ninth_version_overwrites_an_entry() {
    let server = RedisServer::start();
    let processes = VERSIONS.map(|version| (version, RedisStore::new(server.client())));
    for process in processes.chunks(1) {
        assert_eq!(fills(process, 1).await, 1);
    }
    assert_eq!(fills(&processes[1..], 1).await, 0);
    assert_eq!(fills(&processes[..1], 1).await, 1);
}

/// The server is full when the fetch has ended. It then refuses commands that may take memory, unless the script has
/// written before.
#[tokio::test]
async fn renewal_needs_no_memory() {
    let (server, key) = (RedisServer::start(), fresh("full"));
    let store = RedisStore::new(server.client());
    let (old, lease) = stored_and_led(&store, &key, LONG).await;
    let mut redis = server.connection().await;
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").exec_async(&mut redis).await.expect("set");
    assert_eq!(renew(&store, &key, lease, old).await, FillOutcome::Stored);
    assert_eq!(payload(&store, &key).await.as_deref(), Some("new payload"));
}

/// Such an entry is read if a reply belongs to another request, or if two keys have the same hash.
#[tokio::test]
async fn the_entry_of_another_key_is_a_miss() {
    let (store, mine, other) = (store(), fresh("mine"), fresh("other"));
    let held = lead(&store, &other, LONG).await;
    fill(&store, &other, held, "theirs").await;
    let mut redis = RedisServer::shared().connection().await;
    redis::cmd("COPY").arg(names(&other).0).arg(names(&mine).0).exec_async(&mut redis).await.expect("copied");
    assert!(store.get(&mine).await.expect("a miss, not an error").is_none());
    let held = lead(&store, &mine, LONG).await;
    assert_eq!(fill(&store, &mine, held, "mine").await, FillOutcome::Stored);
    assert_eq!(payload(&store, &mine).await.as_deref(), Some("mine"));
}

/// After a failover to a server whose clock is five seconds late, an entry of one second was a hit for six seconds.
/// Seen to fail without the bound.
#[tokio::test]
async fn entry_from_the_future_is_a_miss_and_is_replaced() {
    let (store, key) = (store(), fresh("future"));
    let held = lead(&store, &key, LONG).await;
    fill(&store, &key, held, "old").await;
    let (mut redis, name) = (RedisServer::shared().connection().await, names(&key).0);
    let bytes: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut redis).await.expect("an answer");
    let entry = Entry::from_envelope(&key, &bytes.into(), 0).expect("an entry");
    let mut meta = *entry.meta();
    meta.response_time = meta.response_time.after(Duration::from_secs(5));
    let ahead = Entry::new(meta, entry.payload().clone()).to_envelope(&key, 0);
    redis.set(&name, &ahead[..]).await.expect("an answer");
    assert!(store.get(&key).await.expect("a miss, not an error").is_none());
    let held = lead(&store, &key, LONG).await;
    assert_eq!(fill(&store, &key, held, "new").await, FillOutcome::Stored);
    assert_eq!(payload(&store, &key).await.as_deref(), Some("new"));
}

#[tokio::test]
async fn a_lease_without_expiry_is_free() {
    let (store, key) = (store(), fresh("persisted"));
    lead(&store, &key, LONG).await;
    let mut redis = RedisServer::shared().connection().await;
    assert!(redis.persist(names(&key).1).await.expect("an answer"));
    lead(&store, &key, LONG).await;
}

/// An earlier version of this crate wrote neither mark nor time, and its leases expire at their end.
#[tokio::test]
async fn lease_of_an_earlier_version_lasts_until_it_expires() {
    let (store, key) = (store(), fresh("earlier"));
    let mut redis = RedisServer::shared().connection().await;
    let value = format!("H{}{}0", "t".repeat(16), "1".repeat(16));
    for inboxes in ["", "inbox-01", "inbox-01inbox-02"] {
        redis.pset_ex(names(&key).1, format!("{value}{inboxes}"), 300).await.expect("an answer");
        let (_, wait) = ask(&store, &key, LONG, None).await;
        assert!(
            matches!(wait, LeaseReply::Wait { remaining, .. } if remaining <= Duration::from_millis(300)),
            "{wait:?}"
        );
        tokio::time::sleep(Duration::from_millis(320)).await;
        let held = lead(&store, &key, LONG).await;
        store.release(&key, held.token, None).await.expect("an answer");
    }
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let mut redis = server.connection().await;
    for _ in 0..2 {
        let key = fresh("flushed scripts");
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.expect("flushed");
        let held = lead(&store, &key, LONG).await;
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.expect("flushed");
        assert_eq!(fill(&store, &key, held, "v").await, FillOutcome::Stored);
    }
}

#[tokio::test]
async fn a_full_server_refuses_a_fill_and_frees_the_lease() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let before = fresh("before");
    let held = lead(&store, &before, LONG).await;
    fill(&store, &before, held, "v").await;
    let mut redis = server.connection().await;
    for length in [1, FILLER] {
        let key = fresh("full");
        let held = lead(&store, &key, LONG).await;
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec_async(&mut redis).await.expect("set");
        let entry = crate::suite::entry(held.token, stampede_guard::store::Kind::Value, "v".repeat(length).leak());
        let write = stampede_guard::store::Write::new(key.clone(), entry);
        let refused = store.fill(&key, stampede_guard::store::FillCondition::Lease(held), vec![write]).await;
        let refused = refused.expect_err("the server is full");
        assert!(refused.is_refused() && format!("{refused:?}").contains("OOM"), "{refused:?}");
        assert_eq!(payload(&store, &before).await.as_deref(), Some("v"), "hits continue");
        assert_eq!(redis.keys("*").await.expect("names"), [names(&before).0], "the lease is released");
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).exec_async(&mut redis).await.expect("set");
    }
}

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let key = fresh("reconnected");
    let held = lead(&store, &key, LONG).await;
    fill(&store, &key, held, "v").await;
    let mut redis = server.connection().await;
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .exec_async(&mut redis)
        .await
        .expect("killed");
    eventually("the store answers again", async || store.get(&key).await.is_ok()).await;
    assert_eq!(payload(&store, &key).await.as_deref(), Some("v"));
}

/// Seen to fail without the `wake_all` after a reconnect.
#[tokio::test]
async fn lost_subscriber_reconnects_and_wakes_all_waiters() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.client());
    let key = fresh("subscriber");
    let mut listener = store.listen(&key);
    let token = listener.token();
    store.get_or_lease(&key, LeaseRequest::new(token, LONG)).await.expect("an answer");
    let mut redis = server.connection().await;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis).await.expect("killed");
    timeout(LONG, listener.notified()).await.expect("notified because wake-ups may have been lost");
    let (_, wait) = ask(&store, &key, LONG, None).await;
    assert!(matches!(wait, LeaseReply::Wait { .. }), "{wait:?}");
    eventually("the store is subscribed again", async || {
        matches!(ask(&store, &key, LONG, None).await.1, LeaseReply::Wait { registered: true, .. })
    })
    .await;
}

#[tokio::test]
async fn store_over_connection_polls_without_subscriber_client() {
    let (server, key) = (RedisServer::shared(), fresh("connections"));
    lead(&store(), &key, LONG).await;
    let manager = server.client().get_connection_manager().await.expect("connected");
    let multiplexed = server.connection().await;
    let polling: [Arc<dyn Store>; 3] =
        [manager.clone().into_store(), multiplexed.clone().into_store(), Connection(multiplexed).into_store()];
    for store in polling {
        let (_, wait) = ask(&*store, &key, LONG, None).await;
        assert!(matches!(wait, LeaseReply::Wait { registered: false, .. }), "{wait:?}");
    }
    let woken = RedisStore::new(manager.into_endpoint().subscribe_via(server.client()));
    let _listener = woken.listen(&key);
    eventually("wake-ups arrive", async || {
        matches!(ask(&woken, &key, LONG, None).await.1, LeaseReply::Wait { registered: true, .. })
    })
    .await;
}

/// A lease lists at most 128 inboxes. Further processes poll.
#[tokio::test]
async fn inboxes_are_bounded_and_not_repeated() {
    let (server, key) = (RedisServer::shared(), fresh("inboxes"));
    lead(&store(), &key, LONG).await;
    server.connection().await.append(names(&key).1, unused_inboxes(126)).await.expect("an answer");
    let stores: Vec<_> = (0..4).map(|_| RedisStore::new(server.client())).collect();
    for (i, store) in stores.iter().enumerate() {
        let _listener = store.listen(&key);
        for _ in 0..2 {
            eventually("there is room for 128", async || {
                let (_, wait) = ask(store, &key, LONG, None).await;
                let LeaseReply::Wait { registered, waiting, .. } = wait else { panic!("{wait:?}") };
                registered == (i < 2) && waiting <= 128
            })
            .await;
        }
    }
}

/// Returns the inboxes of processes that no longer exist.
fn unused_inboxes(n: usize) -> String {
    (0..n).map(|inbox| format!("{inbox:08}")).collect()
}

/// Seen to fail, by the limit of time, if a script wakes the first 64 waiters alone.
#[tokio::test]
async fn each_inbox_gets_one_message_when_a_lease_ends() {
    let server = RedisServer::start();
    let (store, mut redis) = (RedisStore::new(server.client()), server.connection().await);
    for waiters in [1, 2, 128] {
        for operation in ["fill", "release", "fail", "invalidate"] {
            let key = fresh(operation);
            let held = lead(&store, &key, LONG).await;
            redis.append(names(&key).1, unused_inboxes(waiters)).await.expect("an answer");
            let mut channels = server.client().get_async_pubsub().await.expect("the server is up");
            channels.psubscribe("stampede-guard:0000*").await.expect("the server is up");
            let outcome = match operation {
                "fill" => {
                    assert_eq!(fill(&store, &key, held, "v").await, FillOutcome::Stored);
                    b'v'
                }
                "invalidate" => {
                    store.invalidate(&[fresh("other"), key.clone()], Leaves::Nothing).await.expect("acknowledged");
                    b'g'
                }
                _ => {
                    let marker = (operation == "fail").then(|| FailureMarker {
                        blocks_for: LONG,
                        remembered_for: LONG,
                        report: Bytes::new(),
                    });
                    let status = store.release(&key, held.token, marker).await.expect("an answer");
                    assert_eq!(status, LeaseStatus::Held);
                    if operation == "fail" { b'f' } else { b'r' }
                }
            };
            let mut messages = channels.into_on_message();
            let message = [&[outcome], &key.hash().as_bytes()[..]].concat();
            for inbox in 0..waiters {
                let next = timeout(LONG, messages.next()).await.expect("in time").expect("a message");
                assert_eq!(next.get_channel_name(), format!("stampede-guard:{inbox:08}"), "{operation}");
                assert_eq!(next.get_payload_bytes(), message, "{operation}");
            }
            redis.publish("stampede-guard:0000", "end").await.expect("an answer");
            assert_eq!(messages.next().await.expect("a message").get_payload_bytes(), b"end", "{operation}");
        }
    }
}

/// Seen to fail with `redis.call` instead of `redis.pcall` around `PUBLISH`: the fill is an error although it is
/// stored.
#[tokio::test]
async fn a_user_without_rights_to_channels_can_fill() {
    let server = RedisServer::start();
    let mut redis = server.connection().await;
    let rules = ["SETUSER", "app", "on", ">secret", "~{suite:*", "resetchannels", "+@all"];
    redis::cmd("ACL").arg(&rules).exec_async(&mut redis).await.expect("a user");
    let app = redis::Client::open(format!("redis://app:secret@127.0.0.1:{}", server.port())).expect("a client");
    let (store, key) = (RedisStore::new(app), fresh("acl"));
    let held = lead(&store, &key, LONG).await;
    let other = RedisStore::new(server.client());
    let _listener = other.listen(&key);
    eventually("wake-ups arrive", async || {
        matches!(ask(&other, &key, LONG, None).await.1, LeaseReply::Wait { registered: true, .. })
    })
    .await;
    assert_eq!(fill(&store, &key, held, "v").await, FillOutcome::Stored);
}

/// After a failover the host name may lead to the new master.
///
/// Seen to fail if the connection to a demoted master is kept.
#[tokio::test]
async fn connection_to_demoted_master_is_replaced() {
    let (server, master) = (RedisServer::start(), RedisServer::start());
    let (store, key) = (RedisStore::new(server.client()), fresh("demoted"));
    lead(&store, &key, SHORT).await;
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
    eventually("the store has a new connection", async || {
        let ask = LeaseRequest::new(token(), LONG);
        let refused = store.get_or_lease(&fresh("refused"), ask).await;
        assert!(refused.expect_err("a replica").is_refused());
        let now = clients().await;
        !now.is_empty() && now != before
    })
    .await;
}

/// A connection whose replies are out of step with its requests is never silent: it answers each request with the reply
/// to another request.
///
/// Seen to fail (no more hits) if `Reconnecting::ping_check` does nothing.
#[tokio::test]
async fn out_of_step_connection_is_replaced_while_it_answers() {
    const IN_A_ROW: usize = 100;
    let server = RedisServer::shared();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let store = Arc::new(RedisStore::new(relay.client().into_endpoint().subscribe_via(server.client())));
    let pages: Vec<_> = (0..64).map(|n| (fresh("counted"), &*format!("page {n}").leak())).collect();
    for (key, page) in &pages {
        let held = lead(&*store, key, LONG).await;
        fill(&*store, key, held, page).await;
    }
    let (pages, wrong, right) = (Arc::new(pages), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    relay.swallow_reply();
    let reads = herd(8, |i| {
        let (store, pages, wrong, right) = (store.clone(), pages.clone(), wrong.clone(), right.clone());
        let mut dice = fastrand::Rng::with_seed(i as u64);
        async move {
            while wrong.load(SeqCst) == 0 || right.load(SeqCst) < IN_A_ROW {
                let (key, page) = dice.choice(&*pages).expect("there are pages");
                match timeout(Duration::from_secs(1), store.get(key)).await {
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
    timeout(LONG, reads).await.expect("each read gets its own entry again");
}
