//! The `Guarantees` of each recipe, checked against real servers. Each case probes one guarantee, and its finding must
//! equal the claim in both directions.

use crate::{
    replies::Lossy,
    site::{LONG, Longest, Site, Subject},
    suite::{Foreign, foreign_release, is_free},
    support::{MS, RedisServer},
    traffic::{self, arguments},
};
use redis::{Value, aio::MultiplexedConnection};
use stampede_guard::lock::LockErrorKind;
use std::{
    collections::HashSet,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio_util::task::AbortOnDropHandle;

/// The guard is forgotten, which looks like a crash to the server and to other holders.
pub(crate) async fn crash_frees_lock_as_claimed(recipe: &Subject) {
    let (site, ttl, promised) = (recipe.shared(), 150 * MS, recipe.guarantees().crash_frees);
    let guard = site.lock(recipe).ttl(ttl).wait(LONG).acquire("crash").await.expect("free");
    std::mem::forget(guard);
    let limit = if promised { LONG } else { 3 * ttl };
    let freed = site.lock(recipe).wait(limit).acquire("crash").await;
    assert_eq!(freed.is_ok(), promised);
    if let Err(error) = freed {
        assert_eq!(error.kind(), LockErrorKind::Acquisition, "{error}");
        assert_eq!(site.longest().await, [Longest::Ever], "the lock has no expiry");
    }
}

pub(crate) async fn release_is_owner_safe_as_claimed(recipe: &Subject) {
    let Foreign { stands, .. } = foreign_release(&recipe.shared(), recipe).await;
    assert_eq!(stands, recipe.guarantees().owner_safe);
}

pub(crate) async fn lock_is_extendable_as_claimed(recipe: &Subject) {
    let site = recipe.shared();
    let guard = site.lock(recipe).acquire("prolonged").await.expect("free");
    let extended = guard.extend(10 * LONG).await.is_ok();
    let prolonged = site.longest().await.iter().all(|left| *left > Longest::For(5 * LONG));
    assert_eq!(extended && prolonged, recipe.guarantees().extendable);
}

/// On every server of the lock, a script can distinguish the present holder from the former one. A lock on several
/// servers is taken over while some of them still store the former holder.
pub(crate) async fn stored_value_is_fenceable_as_claimed(recipe: &Subject) {
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

/// Each server loses one reply to the acquisition and one to the release.
pub(crate) async fn commands_are_replay_safe_as_claimed(recipe: &Subject) {
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

/// A time that is never sent cannot be compared with the clock of another host. Scripts use the clock of the server.
pub(crate) async fn recipe_is_clock_free_as_claimed(recipe: &Subject) {
    let servers = recipe.start();
    let commands = traffic::of_a_lock(&servers, &Site::of(&servers), recipe, "timeless").await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let is_time = |number: f64| [1.0, 1e3, 1e6, 1e9].iter().any(|unit| (number / unit - now).abs() < 3600.0);
    let times: Vec<_> =
        commands.iter().filter(|command| arguments(command).any(|arg| arg.parse().is_ok_and(is_time))).collect();
    assert_eq!(times.is_empty(), recipe.guarantees().clock_free, "{times:?}");
}

/// A recipe that sends `WATCH` needs a dedicated connection. Every recipe works while other clients share the connections that it was given.
pub(crate) async fn recipe_is_multiplex_safe_as_claimed(recipe: &Subject) {
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

/// Runs transactions with a `WATCH` of its own on the shared connection.
async fn noise(mut connection: MultiplexedConnection) {
    loop {
        let mut all = redis::pipe();
        all.cmd("WATCH").arg("noise").cmd("MULTI").cmd("INCR").arg("noise").cmd("EXEC").cmd("UNWATCH");
        let _: Vec<Value> = all.query_async(&mut connection).await.expect("the server is up");
    }
}

pub(crate) async fn lock_uses_one_slot_as_claimed(recipe: &Subject) {
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

/// Returns the slot, as a cluster server computes it. `MONITOR` escapes some bytes, but none between the braces.
async fn slot(key: &str) -> u16 {
    static CLUSTER: OnceLock<RedisServer> = OnceLock::new();
    let mut connection = CLUSTER.get_or_init(|| RedisServer::cluster_node(&[])).connection().await;
    redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut connection).await.expect("the server is up")
}
