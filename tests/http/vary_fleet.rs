//! The same where several processes ask, and where the store fails them.

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
    CacheVerdict, StampedeGuard,
    testing::{
        Fault,
        Operation::{Fill, Get, Lead},
        Server,
    },
};
use std::time::Duration;

/// Sixty requests in three languages over all apps; the first call is let through when it has come.
async fn mixed_herd(apps: &[Router], origin: &Origin) -> Vec<Answer> {
    let asked = apps.to_vec();
    let before = origin.calls();
    let herd =
        tokio::spawn(async move { herd(60, |i| ask(&asked[i / 3 % asked.len()], speaking(LANGUAGES[i % 3]))).await });
    origin.arrived(before + 1).await;
    origin.open();
    let answers = in_time("the herd", herd).await.expect("nobody panics");
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

/// It waits for an answer that turns out to be for others. Seen to fail with `Beneath` left out of what a flight lands
/// with: it leads at the address of the resource, and the index of the first one is lost with its variants.
#[tokio::test]
async fn whoever_waits_in_another_process_for_another_value_asks_for_its_own() {
    let (guards, origin) = ([over_redis("vary-waits"), over_redis("vary-waits")], Origin::gated());
    let [one, two] = guards.clone().map(|guard| languages(&origin).layer(guard));
    let de = tokio::spawn(ask(&one, speaking("de")));
    origin.arrived(1).await;
    let others = ["en", "de", "en"].map(|language| tokio::spawn(ask(&two, speaking(language))));
    eventually("they wait", async || guards[1].in_flight() == 1).await;
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
        assert_eq!(ask(app, speaking(&expected[..2])).await.verdict(), CacheVerdict::Hit, "{expected}");
    }
}

/// The entry of the resource itself, which is its index.
async fn index(server: &RedisServer) -> String {
    let names: Vec<String> =
        redis::cmd("KEYS").arg("*:v2.0").query_async(&mut server.connection().await).await.expect("up");
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

#[tokio::test]
async fn an_index_that_is_lost_or_garbage_is_made_anew() {
    for garbage in [None, Some(&b""[..]), Some(b"garbage"), Some(&[0xff; 200])] {
        let (server, origin) = (RedisServer::start(), Origin::new());
        let guards = [(); 2].map(|()| StampedeGuard::new(server.client()).op_timeout(Duration::from_secs(5)));
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
        for verdict in [CacheVerdict::Filled, CacheVerdict::Hit] {
            for (app, expected) in [(&apps[0], "en 3"), (&apps[1], "de 4")] {
                let answer = ask(app, speaking(&expected[..2])).await;
                assert_eq!((answer.text(), answer.verdict()), (expected, verdict), "{garbage:?}");
                for guard in &guards {
                    at_rest(guard).await;
                }
            }
        }
        assert_eq!(guards.map(|guard| guard.report().store_errors), [0, 0]);
    }
}

/// With the places that are remembered not gone to when the store fails, all wait for the flight of the resource, and
/// two thirds in vain.
#[tokio::test]
async fn without_the_store_no_value_waits_for_another_one() {
    let (server, warm, origin) = (Server::new(), Origin::new(), Origin::gated());
    let processes = [server.process(), server.process()];
    let guards = processes.clone().map(|process| process.guard());
    for guard in &guards {
        for language in ["de", "en"] {
            ask(&languages(&warm).layer(guard.clone()), speaking(language)).await;
            at_rest(guard).await;
        }
    }
    for process in &processes {
        for operation in [Get, Lead, Fill] {
            process.always(operation, Fault::Fails);
        }
    }
    let apps = guards.clone().map(|guard| languages(&origin).layer(guard));
    let asked = apps.clone();
    let herd = tokio::spawn(async move { herd(60, |i| ask(&asked[i / 3 % 2], speaking(LANGUAGES[i % 3]))).await });
    origin.arrived(6).await;
    assert_eq!(origin.running(), 6);
    origin.open();
    for (i, answer) in in_time("the herd", herd).await.expect("nobody panics").iter().enumerate() {
        assert!(answer.text().starts_with(LANGUAGES[i % 3]), "{i}: {}", answer.text());
    }
    assert_eq!(origin.calls(), 6);
}

/// Nobody has seen the index yet: the first answer of each process says who differs.
#[tokio::test]
async fn without_the_store_a_cold_herd_costs_one_call_for_each_value() {
    let (process, origin) = (Server::new().process(), Origin::gated());
    for operation in [Get, Lead, Fill] {
        process.always(operation, Fault::Fails);
    }
    mixed_herd(&[languages(&origin).layer(process.guard())], &origin).await;
    assert_eq!(origin.calls(), 3);
}

/// What this process has made without the store tells it who differs. Seen to fail with the index of a local flight not
/// remembered.
#[tokio::test]
async fn without_the_store_no_value_waits_for_another_one_after_the_first_answer() {
    let (process, origin) = (Server::new().process(), Origin::gated());
    for operation in [Get, Lead, Fill] {
        process.always(operation, Fault::Fails);
    }
    let guard = process.guard();
    let app = languages(&origin).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, speaking("it")).await.text(), "it 1");
    at_rest(&guard).await;
    let herd = tokio::spawn(async move { herd(30, |i| ask(&app, speaking(LANGUAGES[i % 3]))).await });
    origin.arrived(4).await;
    assert_eq!(origin.running(), 3);
    origin.open();
    in_time("the herd", herd).await.expect("nobody panics");
    assert_eq!(origin.calls(), 4);
}

/// Validated before each use, and a different page for each language.
fn validated(origin: &Origin) -> Router {
    site(origin, |request, n| -> Response {
        let language = field(request, "accept-language").to_owned();
        let etag = format!("\"{language}\"");
        let fields = [("vary", "accept-language"), ("cache-control", "no-cache"), ("etag", etag.as_str())];
        match field(request, "if-none-match") == etag {
            true => (StatusCode::NOT_MODIFIED, fields).into_response(),
            false => (fields, format!("{language} {n}")).into_response(),
        }
    })
}

/// What they have waited for is good enough for them, although it is for nobody who asks later. Seen to fail with
/// `waited` left out of what a caller looks at when it has gone to its variant.
#[tokio::test]
async fn those_who_wait_for_what_is_validated_each_time_do_not_lead_in_turn() {
    let (server, origin) = (Server::new(), Origin::gated());
    let processes = [server.process(), server.process()];
    let guards = processes.clone().map(|process| process.guard());
    let [one, two] = guards.clone().map(|guard| validated(&origin).layer(guard));
    for round in 1..=3 {
        let leading = waiting(&one, 20, |_| speaking("de")).await;
        origin.arrived(round).await;
        let before = processes[1].asked(Lead);
        let others = waiting(&two, 20, |_| speaking("de")).await;
        eventually("the other process waits", async || processes[1].asked(Lead) > before).await;
        origin.release(1);
        let (leading, others) = tokio::join!(leading.answers(), others.answers());
        assert!(leading.iter().chain(&others).all(|answer| answer.text() == "de 1"));
        assert_eq!(origin.calls(), round);
        for guard in &guards {
            at_rest(guard).await;
        }
    }
}
