//! Many who ask at one moment.

use super::{SECOND, guards};
use crate::support::{Down, MS, Monitor, Origin, RedisServer, eventually, herd, never};
use stampede_guard::{ErrorKind, Policy, StampedeGuard, lock::SetPx, store::LockedStore};
use std::time::Duration;

recipes!(cases {
    a_herd_is_one_call
    a_failure_is_one_call_and_everybody_is_told
    a_refresh_is_one_call
    dropping_any_future_at_any_point_leaves_no_lock
});

async fn ask(guard: StampedeGuard, key: &str, origin: Origin, what: &'static str) -> Result<String, ErrorKind> {
    let fetch = async move || {
        origin.work(50 * MS).await;
        Ok::<_, Down>(what.to_owned())
    };
    guard.fetch(key, fetch).await.map_err(|error| error.kind())
}

async fn a_herd_is_one_call(recipe: &str) {
    let (origin, guards) = (Origin::new(), guards::<4>(recipe, "herd", 30 * SECOND).await);
    for key in ["a", "b", "c"] {
        let callers = herd(200, |i| ask(guards[i % 4].clone(), key, origin.clone(), "v"));
        assert_eq!(callers.await, vec![Ok("v".to_owned()); 200]);
    }
    assert_eq!(origin.calls(), 3);
    for guard in &guards {
        guard.shutdown().await;
        guard.fetch("a", never::<String>).await.expect("a hit");
    }
}

async fn a_failure_is_one_call_and_everybody_is_told(recipe: &str) {
    let (origin, guards) = (Origin::new(), guards::<4>(recipe, "failure", 30 * SECOND).await);
    let told = herd(100, |i| {
        let (guard, origin) = (guards[i % 4].clone().tombstone(30 * SECOND), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(50 * MS).await;
                Err::<String, _>(Down)
            };
            guard.fetch("k", fetch).await.expect_err("down").kind()
        }
    })
    .await;
    assert!(told.iter().all(|kind| matches!(kind, ErrorKind::Origin | ErrorKind::FailedElsewhere)), "{told:?}");
    assert_eq!(origin.calls(), 1);
}

/// Every guard has seen the old entry, and asks for a newer one.
async fn a_refresh_is_one_call(recipe: &str) {
    let (origin, guards) = (Origin::new(), guards::<4>(recipe, "refresh", 30 * SECOND).await);
    let brief = Policy::fresh_for(100 * MS);
    let guards = guards.map(|guard| guard.policy(brief));
    ask(guards[0].clone(), "k", Origin::new(), "old").await.expect("an answer");
    guards[0].shutdown().await;
    tokio::time::sleep(120 * MS).await;
    let callers = herd(100, |i| {
        let guard = guards[i % 4].clone().policy(Policy::fresh_for(30 * SECOND));
        ask(guard, "k", origin.clone(), "new")
    });
    assert_eq!(callers.await, vec![Ok("new".to_owned()); 100]);
    assert_eq!(origin.calls(), 1);
}

/// Every future, dropped at a random moment, of many at once. No lock ends by itself here. Seen to fail with what is granted
/// to nobody kept, be it the lock (`given_to_nobody`) or the lease as well (`given_up`).
///
/// Those that dial a connection for a release give up after a second, on a machine that is too busy: their locks do end.
async fn dropping_any_future_at_any_point_leaves_no_lock(recipe: &str) {
    let span = if ["watch", "setnx_expire"].contains(&recipe) { 5 * SECOND } else { 1000 * SECOND };
    let guards = guards::<2>(recipe, "dropped", span).await.map(|guard| {
        guard.policy(Policy::fresh_for(2 * MS).stale_while_revalidate(5 * MS)).tombstone(2 * MS).pass_for(5 * MS)
    });
    herd(40, |i| {
        let (guard, mut dice) = (guards[i % 2].clone(), fastrand::Rng::with_seed(i as u64));
        async move {
            for _ in 0..20 {
                let patience = Duration::from_micros(dice.u64(0..8000));
                let _ = tokio::time::timeout(patience, one_of_everything(&guard, &mut dice)).await;
            }
        }
    })
    .await;
    let servers = [RedisServer::shared(), &super::others()[0], &super::others()[1]];
    let left = async || {
        for guard in &guards {
            guard.shutdown().await;
        }
        let mut left = Vec::new();
        for server in servers {
            let mut redis = server.connection().await;
            let mut names = redis::cmd("KEYS");
            names.arg(format!("{{dropped-{recipe}*"));
            let names: Vec<String> = names.query_async(&mut redis).await.expect("an answer");
            for name in names.into_iter().filter(|name| !name.contains(":v2.")) {
                let fence: redis::RedisResult<String> = redis::cmd("GET").arg(&name).query_async(&mut redis).await;
                if !fence.is_ok_and(|fence| fence.starts_with('F')) {
                    left.push(name);
                }
            }
        }
        left
    };
    eventually("every lock is released", async || left().await.is_empty()).await;
    for key in 0..4_u64 {
        let fetch = async || Ok::<_, Down>(7_u64);
        let answer = tokio::time::timeout(30 * SECOND, guards[1].clone().wait(1000 * SECOND).fetch(key, fetch)).await;
        assert!(answer.is_ok(), "somebody holds {key}");
    }
}

async fn one_of_everything(guard: &StampedeGuard, dice: &mut fastrand::Rng) {
    let (key, pause) = (dice.u64(0..4), Duration::from_micros(dice.u64(0..2000)));
    let fetch = async move || {
        tokio::time::sleep(pause).await;
        Ok::<_, Down>(7_u64)
    };
    match dice.u8(0..5) {
        0 => drop(guard.invalidate(key).await),
        1 | 2 => drop(guard.fetch_scoped(key, || fetch()).await),
        3 => drop(guard.fetch(key, async || Err::<u64, _>(Down)).await),
        _ => drop(guard.fetch(key, fetch).await),
    }
}

#[tokio::test]
async fn a_miss_is_five_commands_and_three_of_them_before_the_answer() {
    let server = RedisServer::start();
    let store = LockedStore::new(server.client(), SetPx).expect("a crash frees it");
    let guard = StampedeGuard::new(store).op_timeout(30 * SECOND);
    eventually("it is connected", async || {
        guard.fetch("warm-up", async || Ok::<_, Down>(0)).await.expect("an answer");
        guard.shutdown().await;
        guard.report().filled > 0
    })
    .await;
    let monitor = Monitor::start(&server).await;
    let mut marker = server.connection().await;
    let fetch = async move || {
        redis::cmd("ECHO").arg("fetched").exec_async(&mut marker).await.expect("an answer");
        Ok::<_, Down>(1)
    };
    guard.fetch("miss", fetch).await.expect("an answer");
    guard.shutdown().await;
    guard.fetch("miss", never::<i32>).await.expect("a hit");
    let commands = monitor.stop().await;
    let names: Vec<_> = commands.iter().map(|command| command.name.as_str()).collect();
    assert_eq!(names, ["GET", "SET", "EVALSHA", "ECHO", "EVALSHA", "EVALSHA", "GET"]);
}
