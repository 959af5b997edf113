//! What a recipe claims (`Guarantees`), held against real servers: every probe finds out for itself, and claim and
//! finding have to agree, both ways.

use crate::{
    replies::Lossy,
    site::{LONG, Longest, Site, Subject},
    suite::{Foreign, foreign_release, is_free},
    support::{MS, RedisServer, SECOND},
    traffic::{self, arguments},
};
use redis::{Value, aio::MultiplexedConnection};
use stampede_guard::lock::{GetSet, LockErrorKind};
use std::{
    collections::HashSet,
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio_util::task::AbortOnDropHandle;

/// The holder is gone, as far as anybody can see.
pub(crate) async fn a_crash_frees_it_as_claimed(recipe: &Subject) {
    let (site, ttl, claim) = (recipe.shared(), 150 * MS, recipe.guarantees().crash_frees);
    let guard = site.lock(recipe).ttl(ttl).wait(LONG).acquire("crash").await.expect("free");
    std::mem::forget(guard);
    let patience = if claim { LONG } else { 3 * ttl };
    let freed = site.lock(recipe).wait(patience).acquire("crash").await;
    assert_eq!(freed.is_ok(), claim);
    if let Err(error) = freed {
        assert_eq!(error.kind(), LockErrorKind::Acquisition, "{error}");
        assert_eq!(site.longest().await, [Longest::Ever], "nor will it ever be");
    }
}

pub(crate) async fn only_its_owner_releases_it_as_claimed(recipe: &Subject) {
    let Foreign { stands, .. } = foreign_release(&recipe.shared(), recipe).await;
    assert_eq!(stands, recipe.guarantees().owner_safe);
}

pub(crate) async fn its_holder_prolongs_it_as_claimed(recipe: &Subject) {
    let site = recipe.shared();
    let guard = site.lock(recipe).acquire("prolonged").await.expect("free");
    let extended = guard.extend(10 * LONG).await.is_ok();
    let prolonged = site.longest().await.iter().all(|left| *left > Longest::For(5 * LONG));
    assert_eq!(extended && prolonged, recipe.guarantees().extendable);
}

/// On every server of the lock, a script could read who holds it now. One that is on several is taken over here while
/// some of them know the former holder only.
pub(crate) async fn its_name_tells_holders_apart_as_claimed(recipe: &Subject) {
    let site = recipe.shared();
    let former = site.lock(recipe).acquire("fenced").await.expect("free");
    site.delete(recipe.servers / 2..).await;
    let present = site.lock(recipe).acquire("fenced").await.expect("a majority of its servers have forgotten it");
    let names = |values: &[Vec<u8>], token: &[u8]| values.iter().any(|value| value.starts_with(token));
    let tells_apart = site
        .values()
        .await
        .iter()
        .all(|values| names(values, present.token().as_bytes()) && !names(values, former.token().as_bytes()));
    assert_eq!(tells_apart, recipe.guarantees().fenceable);
}

/// One reply of each server is lost, for the acquisition and for the release.
pub(crate) async fn what_is_sent_twice_counts_once_as_claimed(recipe: &Subject) {
    let site = recipe.shared();
    let lossy = Lossy::new(&site, recipe).await;
    lossy.lose(1);
    let safe = match lossy.lock.try_acquire("replayed").await {
        Ok(Some(guard)) => {
            lossy.lose(1);
            guard.release().await.is_ok() && is_free(&site.lock(recipe), "replayed").await
        }
        _ => false,
    };
    assert_eq!(safe, recipe.guarantees().replay_safe);
}

/// No other host can compare with its own what is not sent. The server's clock is the server's, also in scripts.
pub(crate) async fn no_clock_of_a_host_is_sent_as_claimed(recipe: &Subject) {
    let servers = recipe.start();
    let commands = traffic::of_a_lock(&servers, &Site::of(&servers), recipe, "timeless").await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let is_time = |number: f64| [1.0, 1e3, 1e6, 1e9].iter().any(|unit| (number / unit - now).abs() < 3600.0);
    let times: Vec<_> =
        commands.iter().filter(|command| arguments(command).any(|arg| arg.parse().is_ok_and(is_time))).collect();
    assert_eq!(times.is_empty(), recipe.guarantees().clock_free, "{times:?}");
}

/// The other half of the claim, that it harms: a contender who is 5 s ahead, and a holder who is 5 s behind.
#[tokio::test]
async fn two_hold_a_lock_of_time_stamps_whose_clocks_differ() {
    let skewed = |skew: f64| {
        GetSet::with_clock(move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            Duration::from_secs_f64(now.as_secs_f64() + skew)
        })
    };
    let recipe = crate::RECIPES.iter().find(|recipe| recipe.name == "getset").expect("it is listed");
    for (holder, contender, two) in [(0.0, 5.0, true), (-5.0, 0.0, true), (0.0, -5.0, false), (5.0, 5.0, false)] {
        let lock = recipe.shared().lock(recipe).ttl(4 * SECOND);
        let first = lock.clone().recipe(skewed(holder)).acquire("skewed").await.expect("free");
        let second = lock.recipe(skewed(contender)).try_acquire("skewed").await.expect("an answer");
        assert_eq!(second.is_some(), two, "{holder} s and {contender} s");
        assert!(first.remaining() > Some(Duration::ZERO), "the first one's time is not over");
    }
}

/// Whoever watches needs a connection of its own: see
/// [`whoever_shares_the_connection_of_a_watch_ends_it`]. And all of them work beside others.
pub(crate) async fn its_connection_may_be_shared_as_claimed(recipe: &Subject) {
    let servers = recipe.start();
    let site = Site::of(&servers);
    let commands = traffic::of_a_lock(&servers, &site, recipe, "watched").await;
    let watches = commands.iter().any(|command| command.name == "WATCH");
    assert_eq!(!watches, recipe.guarantees().multiplex_safe);

    let connections = site.connections().await;
    let _noise: Vec<_> =
        connections.iter().cloned().map(|connection| AbortOnDropHandle::new(tokio::spawn(noise(connection)))).collect();
    let [mine, other] = [0; 2].map(|_| site.over(&connections).lock(recipe));
    for _ in 0..30 {
        let (guard, free) = tokio::join!(mine.acquire("shared"), other.try_acquire("another"));
        assert!(other.try_acquire("shared").await.expect("an answer").is_none());
        free.expect("an answer").expect("free").release().await.expect("held");
        guard.expect("free").release().await.expect("held");
    }
}

/// A neighbour who has transactions, and watches something itself.
async fn noise(mut connection: MultiplexedConnection) {
    loop {
        let mut all = redis::pipe();
        all.cmd("WATCH").arg("noise").cmd("MULTI").cmd("INCR").arg("noise").cmd("EXEC").cmd("UNWATCH");
        let _: Vec<Value> = all.query_async(&mut connection).await.expect("the server is up");
    }
}

/// Why a release by `WATCH` is not multiplex-safe: by hand, as no recipe can be made to do it.
#[tokio::test]
async fn whoever_shares_the_connection_of_a_watch_ends_it() {
    for shared in [false, true] {
        let site = crate::RECIPES[0].shared();
        let name = format!("{}:lock", site.namespace);
        let [mut mine, mut other] = [site.connections().await.remove(0), site.connections().await.remove(0)];
        let set = |token: &'static str| redis::cmd("SET").arg(&name).arg(token).to_owned();
        let () = set("mine").query_async(&mut mine).await.expect("the server is up");

        let () = redis::cmd("WATCH").arg(&name).query_async(&mut mine).await.expect("the server is up");
        let value: String = redis::cmd("GET").arg(&name).query_async(&mut mine).await.expect("the server is up");
        assert_eq!(value, "mine");
        // It expires, and is somebody else's.
        let () = set("another's").query_async(&mut other).await.expect("the server is up");
        let neighbour = if shared { &mut mine } else { &mut other };
        let () = redis::pipe().atomic().ping().ignore().query_async(neighbour).await.expect("the server is up");
        let deleted: Value =
            redis::pipe().atomic().cmd("DEL").arg(&name).query_async(&mut mine).await.expect("the server is up");
        assert_eq!(deleted != Value::Nil, shared, "{deleted:?}");
        assert_eq!(site.values().await.concat().is_empty(), shared);
    }
}

pub(crate) async fn it_has_one_slot_of_its_own_as_claimed(recipe: &Subject) {
    let servers = recipe.start();
    let site = Site::of(&servers);
    let mut slots = Vec::new();
    for name in ["a", "b", "c"] {
        let commands = traffic::of_a_lock(&servers, &site, recipe, name).await;
        let keys = commands.iter().flat_map(arguments).filter(|arg| arg.contains(&site.namespace));
        let mut of_this = HashSet::new();
        for key in keys {
            of_this.insert(slot(key).await);
        }
        slots.push(of_this);
    }
    let (together, apart) =
        (slots.iter().all(|of_one| of_one.len() == 1), slots.iter().any(|of_one| *of_one != slots[0]));
    assert!(together, "{slots:?}");
    assert_eq!(together && apart, recipe.guarantees().one_slot, "{slots:?}");
}

/// As a server of a cluster counts it. `MONITOR` shows some bytes otherwise, but none of those between the braces.
async fn slot(key: &str) -> u16 {
    static CLUSTER: OnceLock<RedisServer> = OnceLock::new();
    let mut connection = CLUSTER.get_or_init(|| RedisServer::with(&["--cluster-enabled", "yes"])).connection().await;
    redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut connection).await.expect("the server is up")
}
