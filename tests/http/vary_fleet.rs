//! Variants with several processes, and with a failing store.

use crate::{
    kit::{Answer, ask, at_rest, in_time, over_redis, site, waiting},
    support::{Origin, RedisServer, eventually, herd},
    vary::{LANGUAGES, field, languages, speaking},
};
use axum::{
    Router,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use stampede_guard::{
    CacheStatus, StampedeGuard,
    testing::{
        FakeRedis, Fault,
        Operation::{Fill, Get, GetOrLease},
    },
};
use std::time::Duration;

/// Sends sixty requests in three languages over all apps, and opens the origin once the first call has arrived.
async fn mixed_herd(apps: &[Router], origin: &Origin) -> Vec<Answer> {
    let asked = apps.to_vec();
    let before = origin.calls();
    let herd =
        tokio::spawn(async move { herd(60, |i| ask(&asked[i / 3 % asked.len()], speaking(LANGUAGES[i % 3]))).await });
    origin.arrived(before + 1).await;
    origin.open();
    let answers = in_time("the herd", herd).await.expect("no panic");
    for (i, answer) in answers.iter().enumerate() {
        assert!(answer.text().starts_with(LANGUAGES[i % 3]), "{i}: {} {}", answer.status, answer.text());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_costs_one_call_for_each_value_in_the_fleet() {
    let (guards, origin) = ([over_redis("vary-fleet"), over_redis("vary-fleet")], Origin::gated());
    let apps = guards.clone().map(|guard| languages(&origin).layer(guard));
    mixed_herd(&apps, &origin).await;
    assert_eq!(origin.calls(), 3);
    for guard in &guards {
        at_rest(guard).await;
    }
}

/// The waiter waits for a response that turns out to be another variant. Seen to fail without `Redirect` among the
/// outcomes of a flight. The waiter led at the primary key, and the first index was lost with its variants.
#[tokio::test]
async fn a_waiter_of_another_variant_fetches_its_own() {
    let (guards, origin) = ([over_redis("vary-waits"), over_redis("vary-waits")], Origin::gated());
    let [one, two] = guards.clone().map(|guard| languages(&origin).layer(guard));
    let de = tokio::spawn(ask(&one, speaking("de")));
    origin.arrived(1).await;
    let others = ["en", "de", "en"].map(|language| tokio::spawn(ask(&two, speaking(language))));
    eventually("the other node waits", async || guards[1].in_flight() == 1).await;
    origin.release(1);
    assert_eq!(de.await.expect("no panic").text(), "de 1");
    origin.arrived(2).await;
    origin.open();
    for (other, expected) in others.into_iter().zip(["en 2", "de 1", "en 2"]) {
        assert_eq!(other.await.expect("no panic").text(), expected);
    }
    for guard in &guards {
        at_rest(guard).await;
    }
    for (app, expected) in [(&one, "en 2"), (&two, "de 1")] {
        assert_eq!(ask(app, speaking(&expected[..2])).await.cache_status(), CacheStatus::Hit, "{expected}");
    }
}

/// Returns the Redis key of the Vary index, which is the entry at the primary key.
async fn index(server: &RedisServer) -> String {
    let names: Vec<String> =
        redis::cmd("KEYS").arg("*:v3.?.get-http").query_async(&mut server.connection().await).await.expect("up");
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

#[tokio::test]
async fn a_lost_or_corrupt_vary_index_is_rebuilt() {
    for garbage in [None, Some(&b""[..]), Some(b"garbage"), Some(&[0xff; 200])] {
        let (server, origin) = (RedisServer::start(), Origin::new());
        let guards = [(); 2].map(|()| StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(5)));
        let apps = guards.clone().map(|guard| languages(&origin).layer(guard));
        for language in ["de", "en"] {
            for (app, guard) in apps.iter().zip(&guards) {
                ask(app, speaking(language)).await;
                at_rest(guard).await;
            }
        }
        let (index, mut redis) = (index(&server).await, server.connection().await);
        let damage = match garbage {
            None => redis::cmd("DEL").arg(index).to_owned(),
            Some(garbage) => redis::cmd("SET").arg(index).arg(garbage).to_owned(),
        };
        damage.exec_async(&mut redis).await.expect("the server is up");
        for cache_status in [CacheStatus::Miss, CacheStatus::Hit] {
            for (app, expected) in [(&apps[0], "en 3"), (&apps[1], "de 4")] {
                let answer = ask(app, speaking(&expected[..2])).await;
                assert_eq!((answer.text(), answer.cache_status()), (expected, cache_status), "{garbage:?}");
                for guard in &guards {
                    at_rest(guard).await;
                }
            }
        }
        assert_eq!(guards.map(|guard| guard.stats().store_errors), [0, 0]);
    }
}

/// Fails if cached redirects are not followed while the store fails. All requests then wait for the flight of the
/// primary key, two thirds of them in vain.
#[tokio::test]
async fn without_the_store_no_variant_waits_for_another() {
    let (server, warm, origin) = (FakeRedis::new(), Origin::new(), Origin::gated());
    let nodes = [server.node(), server.node()];
    let guards = nodes.clone().map(|node| node.guard());
    for guard in &guards {
        for language in ["de", "en"] {
            ask(&languages(&warm).layer(guard.clone()), speaking(language)).await;
            at_rest(guard).await;
        }
    }
    for node in &nodes {
        for operation in [Get, GetOrLease, Fill] {
            node.always(operation, Fault::Fails);
        }
    }
    let apps = guards.clone().map(|guard| languages(&origin).layer(guard));
    let asked = apps.clone();
    let herd = tokio::spawn(async move { herd(60, |i| ask(&asked[i / 3 % 2], speaking(LANGUAGES[i % 3]))).await });
    origin.arrived(6).await;
    assert_eq!(origin.running(), 6);
    origin.open();
    for (i, answer) in in_time("the herd", herd).await.expect("no panic").iter().enumerate() {
        assert!(answer.text().starts_with(LANGUAGES[i % 3]), "{i}: {}", answer.text());
    }
    assert_eq!(origin.calls(), 6);
}

/// The process has not seen the index yet: its first response shows which requests differ.
#[tokio::test]
async fn without_the_store_a_cold_herd_costs_one_call_for_each_value() {
    let (node, origin) = (FakeRedis::new().node(), Origin::gated());
    for operation in [Get, GetOrLease, Fill] {
        node.always(operation, Fault::Fails);
    }
    mixed_herd(&[languages(&origin).layer(node.guard())], &origin).await;
    assert_eq!(origin.calls(), 3);
}

/// The index that this process has made without the store shows which requests differ. Seen to fail when the index of a
/// local flight was not remembered.
#[tokio::test]
async fn without_the_store_the_first_response_separates_variants() {
    let (node, origin) = (FakeRedis::new().node(), Origin::gated());
    for operation in [Get, GetOrLease, Fill] {
        node.always(operation, Fault::Fails);
    }
    let guard = node.guard();
    let app = languages(&origin).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, speaking("it")).await.text(), "it 1");
    at_rest(&guard).await;
    let herd = tokio::spawn(async move { herd(30, |i| ask(&app, speaking(LANGUAGES[i % 3]))).await });
    origin.arrived(4).await;
    assert_eq!(origin.running(), 3);
    origin.open();
    in_time("the herd", herd).await.expect("no panic");
    assert_eq!(origin.calls(), 4);
}

/// Returns a site whose page is validated before each use and differs by language.
fn validated(origin: &Origin) -> Router {
    site(origin, |request, n| -> Response {
        let language = field(request, "accept-language").to_owned();
        let etag = format!("\"{language}\"");
        let fields = [("vary", "accept-language"), ("cache-control", "public, no-cache"), ("etag", etag.as_str())];
        match field(request, "if-none-match") == etag {
            true => (StatusCode::NOT_MODIFIED, fields).into_response(),
            false => (fields, format!("{language} {n}")).into_response(),
        }
    })
}

/// Waiters may use the response that they have waited for, although later requests have to validate it. Seen to fail
/// with `has_waited` ignored after a caller was redirected to its variant.
#[tokio::test]
async fn waiters_for_a_no_cache_variant_do_not_lead_in_turn() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let nodes = [server.node(), server.node()];
    let guards = nodes.clone().map(|node| node.guard());
    let [one, two] = guards.clone().map(|guard| validated(&origin).layer(guard));
    for round in 1..=3 {
        let leading = waiting(&one, 20, |_| speaking("de")).await;
        origin.arrived(round).await;
        let before = nodes[1].asked(GetOrLease);
        let others = waiting(&two, 20, |_| speaking("de")).await;
        eventually("the other node waits", async || nodes[1].asked(GetOrLease) > before).await;
        origin.release(1);
        let (leading, others) = tokio::join!(leading.answers(), others.answers());
        assert!(leading.iter().chain(&others).all(|answer| answer.text() == "de 1"));
        assert_eq!(origin.calls(), round);
        for guard in &guards {
            at_rest(guard).await;
        }
    }
}
