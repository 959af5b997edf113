//! Herds of concurrent callers: one fetch per herd, and nothing left if they are cancelled.

use crate::{
    SECOND, guards,
    support::{Down, MS, Monitor, Origin, RedisServer, eventually, herd, never},
};
use lock_table::LockedStore;
use stampede_guard::{Cache, ErrorKind, Policy, StampedeGuard, lock::SetPx};
use std::time::Duration;

recipes!(cases {
    herd_makes_one_call
    failed_herd_makes_one_call_and_tells_all_callers
    refresh_makes_one_call
    dropping_any_future_at_any_point_leaves_no_lock
});

async fn ask(guard: StampedeGuard, key: &str, origin: Origin, what: &'static str) -> Result<String, ErrorKind> {
    let fetch = async move || {
        origin.work(50 * MS).await;
        Ok::<_, Down>(what.to_owned())
    };
    guard.fetch(key, fetch).await.map_err(|error| error.kind())
}

async fn herd_makes_one_call(recipe: &str) {
    let (origin, guards) = (Origin::new(), guards::<4>(recipe, "herd", 30 * SECOND).await);
    for key in ["a", "b", "c"] {
        let callers = herd(200, |i| ask(guards[i % 4].clone(), key, origin.clone(), "v"));
        assert_eq!(callers.await, vec![Ok("v".to_owned()); 200]);
    }
    assert_eq!(origin.calls(), 3);
    for guard in &guards {
        guard.drain().await;
        guard.fetch("a", never::<String>).await.expect("a hit");
    }
}

async fn failed_herd_makes_one_call_and_tells_all_callers(recipe: &str) {
    let (origin, guards) = (Origin::new(), guards::<4>(recipe, "failure", 30 * SECOND).await);
    let kinds = herd(100, |i| {
        let (guard, origin) = (guards[i % 4].clone().failure_ttl(30 * SECOND), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(50 * MS).await;
                Err::<String, _>(Down)
            };
            guard.fetch("k", fetch).await.expect_err("down").kind()
        }
    })
    .await;
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Origin), "{kinds:?}");
    assert_eq!(origin.calls(), 1);
}

/// Every guard has seen the expired entry and asks for a newer one.
async fn refresh_makes_one_call(recipe: &str) {
    let (origin, guards) = (Origin::new(), guards::<4>(recipe, "refresh", 30 * SECOND).await);
    let brief = Policy::fresh_for(100 * MS);
    let guards = guards.map(|guard| guard.policy(brief));
    ask(guards[0].clone(), "k", Origin::new(), "old").await.expect("an answer");
    guards[0].drain().await;
    tokio::time::sleep(120 * MS).await;
    let callers = herd(100, |i| {
        let guard = guards[i % 4].clone().policy(Policy::fresh_for(30 * SECOND));
        ask(guard, "k", origin.clone(), "new")
    });
    assert_eq!(callers.await, vec![Ok("new".to_owned()); 100]);
    assert_eq!(origin.calls(), 1);
}

/// Drops futures of all kinds at random moments. No lock expires during this test.
///
/// Seen to fail if a grant is kept although its caller was dropped, whether the lock (`release_if_acquired`) or the
/// lease (`Admission::on_cancel`).
///
/// `Watch` and `SetnxExpire` connect for a release and give up after a second on a busy machine, so their locks do
/// expire.
async fn dropping_any_future_at_any_point_leaves_no_lock(recipe: &str) {
    let span = if ["watch", "setnx_expire"].contains(&recipe) { 5 * SECOND } else { 1000 * SECOND };
    let guards = guards::<2>(recipe, "dropped", span).await.map(|guard| {
        guard
            .policy(Policy::fresh_for(2 * MS).stale_while_revalidate(5 * MS))
            .failure_ttl(2 * MS)
            .uncacheable_ttl(5 * MS)
    });
    herd(40, |i| {
        let (numbers, mut dice) = (guards[i % 2].cache("number"), fastrand::Rng::with_seed(i as u64));
        async move {
            for _ in 0..20 {
                let limit = Duration::from_micros(dice.u64(0..8000));
                let _ = tokio::time::timeout(limit, one_of_everything(&numbers, &mut dice)).await;
            }
        }
    })
    .await;
    let servers = [RedisServer::shared(), &super::others()[0], &super::others()[1]];
    let left = async || {
        for guard in &guards {
            guard.drain().await;
        }
        let mut left = Vec::new();
        for server in servers {
            let mut redis = server.connection().await;
            let mut names = redis::cmd("KEYS");
            names.arg(format!("{{dropped-{recipe}*"));
            let names: Vec<String> = names.query_async(&mut redis).await.expect("an answer");
            for name in names.into_iter().filter(|name| !name.contains(":v3.")) {
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
        let numbers = guards[1].clone().wait_timeout(1000 * SECOND).cache("number");
        let answer = tokio::time::timeout(30 * SECOND, numbers.fetch(key, fetch)).await;
        assert!(answer.is_ok(), "key {key} is still locked");
    }
}

async fn one_of_everything(numbers: &Cache<u64>, dice: &mut fastrand::Rng) {
    let (key, pause) = (dice.u64(0..4), Duration::from_micros(dice.u64(0..2000)));
    let fetch = async move || {
        tokio::time::sleep(pause).await;
        Ok::<_, Down>(7_u64)
    };
    match dice.u8(0..5) {
        0 => drop(numbers.invalidate(key).await),
        1 | 2 => drop(numbers.entry(key).fetch_scoped(|| fetch()).await),
        3 => drop(numbers.fetch(key, async || Err::<u64, _>(Down)).await),
        _ => drop(numbers.fetch(key, fetch).await),
    }
}

#[tokio::test]
async fn miss_sends_three_commands_before_answer_and_two_after() {
    let server = RedisServer::start();
    let store = LockedStore::new(server.client(), SetPx).expect("the recipe is accepted");
    let guard = StampedeGuard::new(store).store_timeout(30 * SECOND);
    eventually("the store is connected", async || {
        guard.fetch("warm-up", async || Ok::<_, Down>(0)).await.expect("an answer");
        guard.drain().await;
        guard.stats().misses > 0
    })
    .await;
    let monitor = Monitor::start(&server).await;
    let mut marker = server.connection().await;
    let fetch = async move || {
        redis::cmd("ECHO").arg("fetched").exec_async(&mut marker).await.expect("an answer");
        Ok::<_, Down>(1)
    };
    guard.fetch("miss", fetch).await.expect("an answer");
    guard.drain().await;
    guard.fetch("miss", never::<i32>).await.expect("a hit");
    let commands = monitor.stop().await;
    let names: Vec<_> = commands.iter().map(|command| command.name.as_str()).collect();
    assert_eq!(names, ["GET", "SET", "EVALSHA", "ECHO", "EVALSHA", "EVALSHA", "GET"]);
}
