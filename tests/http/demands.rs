//! What a request demands of what is stored (RFC 9111 §5.2.1).

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, site, taps, waiting},
    support::{Origin, eventually, herd},
};
use axum::{body::Body, extract::Request};
use stampede_guard::{
    CacheVerdict, Policy, StampedeGuard,
    http::Rules,
    testing::{
        Operation::{Get, Lead},
        Server,
    },
};
use std::time::Duration;
use tokio::time;
use tower::ServiceExt;

fn demanding(control: &str) -> Request {
    get_with("/page", &[("cache-control", control)])
}

/// What is stored, and what is asked for when it is that old: whether that is a hit, or the status of a refusal.
const DEMANDS: &[(&str, u64, &str, Result<CacheVerdict, u16>)] = &[
    ("max-age=60", 30, "max-age=31", Ok(CacheVerdict::Hit)),
    ("max-age=60", 30, "max-age=30", Ok(CacheVerdict::Filled)),
    ("max-age=60", 30, "MAX-AGE=\"29\"", Ok(CacheVerdict::Filled)),
    ("max-age=60", 30, "min-fresh=30", Ok(CacheVerdict::Hit)),
    ("max-age=60", 30, "min-fresh=31", Ok(CacheVerdict::Filled)),
    ("max-age=60", 30, "no-cache", Ok(CacheVerdict::Filled)),
    ("max-age=60", 30, "no-store", Ok(CacheVerdict::Bypassed)),
    ("max-age=60", 30, "no-transform, x-unknown=1", Ok(CacheVerdict::Hit)),
    ("max-age=60", 30, "only-if-cached", Ok(CacheVerdict::Hit)),
    ("max-age=60, immutable", 30, "max-age=0", Ok(CacheVerdict::Hit)),
    ("max-age=60, immutable", 30, "no-cache", Ok(CacheVerdict::Filled)),
    ("max-age=60", 70, "", Ok(CacheVerdict::Filled)),
    ("max-age=60", 70, "max-stale", Ok(CacheVerdict::Stale)),
    ("max-age=60", 70, "max-stale=10", Ok(CacheVerdict::Stale)),
    ("max-age=60", 70, "max-stale=9", Ok(CacheVerdict::Filled)),
    ("max-age=60", 70, "max-stale, max-age=60", Ok(CacheVerdict::Filled)),
    ("max-age=60", 70, "max-stale, min-fresh=1", Ok(CacheVerdict::Filled)),
    ("max-age=60, must-revalidate", 70, "max-stale", Ok(CacheVerdict::Filled)),
    ("max-age=60, proxy-revalidate", 70, "max-stale", Ok(CacheVerdict::Filled)),
    ("s-maxage=60", 70, "max-stale", Ok(CacheVerdict::Filled)),
    ("max-age=60", 70, "only-if-cached", Err(504)),
    ("max-age=60", 70, "only-if-cached, max-stale=60", Ok(CacheVerdict::Stale)),
    ("no-cache", 0, "only-if-cached", Err(504)),
    ("no-cache", 0, "max-stale", Ok(CacheVerdict::Filled)),
];

#[tokio::test(start_paused = true)]
async fn a_request_may_demand_more_and_accept_less() {
    for &(control, age, demand, expected) in DEMANDS {
        let policy = Policy::fresh_for(Duration::from_secs(1)).jitter(0.0);
        let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::new());
        let app = site(&origin, move |_, n| ([("cache-control", control), ("etag", "\"a\"")], n.to_string()));
        let app = app.layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        time::advance(Duration::from_secs(age)).await;
        let answer = ask(&app, demanding(demand)).await;
        let told = match answer.status {
            200 => Ok(answer.verdict()),
            status => Err(status),
        };
        assert_eq!(told, expected, "`{control}`, {age} s old, for `{demand}`");
        at_rest(&guard).await;
    }
}

/// §5.2.1.7: it does not wait either, since nothing is stored yet.
#[tokio::test]
async fn only_if_cached_is_a_504_while_the_first_answer_is_under_way() {
    for guard in on_each_store("only-if-cached") {
        let origin = Origin::gated();
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        let first = tokio::spawn(ask(&app, get("/page")));
        origin.arrived(1).await;
        let refused = ask(&app, demanding("only-if-cached")).await;
        assert_eq!((refused.status, refused.verdict()), (504, CacheVerdict::Refused));
        origin.open();
        assert_eq!(first.await.expect("no panic").text(), "1");
        at_rest(&guard).await;
        assert_eq!(ask(&app, demanding("only-if-cached")).await.text(), "1");
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test]
async fn an_operator_may_ignore_all_of_it() {
    for guard in on_each_store("ignored") {
        let origin = Origin::new();
        let app =
            site(&origin, |_, n| n.to_string()).layer(guard.clone().http(Rules::default().ignore_request_directives()));
        assert_eq!(ask(&app, demanding("only-if-cached")).await.text(), "1", "it is not a 504");
        at_rest(&guard).await;
        for control in ["no-cache", "no-store", "max-age=0", "min-fresh=9999", "only-if-cached"] {
            assert_eq!(ask(&app, demanding(control)).await.verdict(), CacheVerdict::Hit, "{control}");
        }
        assert_eq!(ask(&app, get_with("/page", &[("pragma", "no-cache")])).await.verdict(), CacheVerdict::Hit);
    }
}

/// Half an answer is there already, from before they asked: too old for them, and for as long as its body grows the lease
/// is held. Seen to fail with those who find it too old sent round again instead of to a flight of their own: each asks the
/// store again and again, and then the origin.
#[tokio::test(start_paused = true)]
async fn reloads_while_a_body_grows_cost_one_call_and_no_lookups() {
    let ((taps, bodies), process, origin) = (taps(1, Some(3)), Server::new().process(), Origin::new());
    let guard = process.guard().wait(Duration::from_secs(600));
    let respond = move |_: &Request, n| if n == 1 { bodies() } else { Body::from("new") };
    let app = site(&origin, respond).layer(guard.clone());
    let slow = app.clone().oneshot(get("/page")).await.expect("a head");
    time::advance(Duration::from_secs(1)).await;
    let before = [process.asked(Get), process.asked(Lead)];
    let reloads = herd(50, |_| ask(&app, demanding("max-age=0"))).await;
    assert!(reloads.iter().all(|answer| answer.text() == "new"));
    assert_eq!([process.asked(Get), process.asked(Lead)], before, "the store has nothing to say to that");
    assert_eq!(origin.calls(), 2);
    taps.into_iter().for_each(|tap| tap.send("old"));
    assert_eq!(Answer::of(slow).await.text(), "old");
    at_rest(&guard).await;
}

/// The lease is held until then, and what comes with its end is too old for all of them: one of them asks again.
#[tokio::test(start_paused = true)]
async fn reloads_in_another_process_cost_one_call_when_the_body_is_there() {
    let ((taps, bodies), server, origin) = (taps(1, Some(3)), Server::new(), Origin::new());
    let processes = [server.process(), server.process()];
    let guards = processes.clone().map(|process| process.guard().wait(Duration::from_secs(600)));
    let respond = move |_: &Request, n| if n == 1 { bodies() } else { Body::from("new") };
    let [one, two] = guards.clone().map(|guard| site(&origin, respond.clone()).layer(guard));
    let slow = one.oneshot(get("/page")).await.expect("a head");
    time::advance(Duration::from_secs(1)).await;
    let reloads = waiting(&two, 50, |_| demanding("max-age=0")).await;
    let ended = async {
        eventually("they wait", async || processes[1].asked(Lead) > 0).await;
        taps.into_iter().for_each(|tap| tap.send("old"));
        Answer::of(slow).await
    };
    let (reloads, old) = tokio::join!(reloads.answers(), ended);
    assert!(reloads.iter().all(|answer| answer.text() == "new"));
    assert_eq!((old.text(), origin.calls()), ("old", 2));
    let asked = [Get, Lead].map(|operation| processes[1].asked(operation));
    assert!(asked.iter().all(|&asked| asked <= 4), "{asked:?}: 50 of them share what they ask the store");
    for guard in &guards {
        at_rest(guard).await;
    }
}

/// What is answered after they have asked is new to them.
#[tokio::test]
async fn reloads_before_the_head_is_there_join() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let asked = waiting(&app, 50, |i| if i == 0 { get("/page") } else { demanding("max-age=0") }).await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "1"));
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}
