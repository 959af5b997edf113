//! Variants and classes of callers: what one of them meets is not the others' business.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, in_time, on_each_store, request, site},
    support::{Origin, eventually},
};
use axum::{
    extract::Request,
    http::{Method, StatusCode},
};
use stampede_guard::{
    CacheVerdict,
    testing::{Fault, Operation, Server, advance},
};
use std::time::Duration;
use tokio::task::JoinHandle;

const LOGGED_IN: (&str, &str) = ("cookie", "session=1");

fn is_logged_in(request: &Request) -> bool {
    request.headers().contains_key("cookie")
}

async fn answer(asked: JoinHandle<Answer>) -> Answer {
    in_time("an answer", asked).await.expect("nobody panics")
}

/// Without a look at what the flight has seen, those with credentials wait for the one without.
#[tokio::test]
async fn who_is_told_to_pass_does_not_wait_for_those_who_are_not() {
    for guard in on_each_store("classes-pass") {
        let origin = Origin::gated();
        let respond = |request: &Request, n: usize| {
            let control = if is_logged_in(request) { "private" } else { "max-age=60" };
            ([("cache-control", control)], n.to_string())
        };
        let app = site(&origin, respond).layer(guard.clone());
        origin.release(1);
        assert_eq!(ask(&app, get_with("/page", &[LOGGED_IN])).await.text(), "1");
        guard.shutdown().await;
        let without = tokio::spawn(ask(&app, get("/page")));
        origin.arrived(2).await;
        let with = tokio::spawn(ask(&app, get_with("/page", &[LOGGED_IN])));
        origin.arrived(3).await;
        origin.open();
        assert_eq!((answer(with).await.text(), answer(without).await.text()), ("3", "2"));
        guard.shutdown().await;
        assert_eq!(ask(&app, get("/page")).await.verdict(), CacheVerdict::Hit);
        at_rest(&guard).await;
    }
}

/// As before, for those who had joined when it was heard of the marker.
#[tokio::test(start_paused = true)]
async fn who_is_told_to_pass_while_waiting_does_not_wait_for_those_who_are_not() {
    let (server, origin) = (Server::new(), Origin::gated());
    let guards = [server.process().guard(), server.process().guard()];
    let respond = |request: &Request, n: usize| {
        let control = if is_logged_in(request) { "private" } else { "max-age=60" };
        ([("cache-control", control)], n.to_string())
    };
    let [here, there] = guards.clone().map(|guard| site(&origin, respond).layer(guard));
    let leads = tokio::spawn(ask(&there, get_with("/page", &[LOGGED_IN])));
    origin.arrived(1).await;
    let without = [(); 3].map(|()| tokio::spawn(ask(&here, get("/page"))));
    advance(Duration::from_millis(1)).await;
    let with = [(); 3].map(|()| tokio::spawn(ask(&here, get_with("/page", &[LOGGED_IN]))));
    advance(Duration::from_millis(1)).await;
    origin.release(1);
    assert_eq!(answer(leads).await.text(), "1");
    origin.arrived(5).await;
    assert_eq!(origin.running(), 4, "one without leads, and all with credentials pass");
    origin.open();
    for asked in with.into_iter().chain(without) {
        assert_eq!(answer(asked).await.status, 200);
    }
    assert_eq!(origin.calls(), 5);
    for guard in &guards {
        at_rest(guard).await;
    }
}

/// When it goes on where memory has sent it, it reads the old entry there.
#[tokio::test(start_paused = true)]
async fn where_an_index_was_remembered_to_lead_is_forgotten_when_the_store_answers_again() {
    let (server, origin) = (Server::new(), Origin::gated());
    let [process, elsewhere] = [server.process(), server.process()];
    let guard = process.guard();
    let respond = |request: &Request, n: usize| {
        let control = if is_logged_in(request) { "private" } else { "max-age=60" };
        ([("cache-control", control), ("vary", "accept-language")], n.to_string())
    };
    let app = site(&origin, respond).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    guard.shutdown().await;
    elsewhere.guard().invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("it answers");
    process.always(Operation::Get, Fault::Fails);
    let with = tokio::spawn(ask(&app, get_with("/page", &[LOGGED_IN])));
    origin.arrived(2).await;
    let asked = process.asked(Operation::Get);
    let without = tokio::spawn(ask(&app, get("/page")));
    eventually("it has asked the store", async || process.asked(Operation::Get) > asked).await;
    advance(Duration::from_millis(1)).await;
    process.heal();
    origin.release(1);
    assert_eq!(answer(with).await.text(), "2");
    origin.open();
    assert_eq!(answer(without).await.text(), "3", "what was invalidated is not served");
    at_rest(&guard).await;
}

/// The lease of a variant outlives the index by which it was found: that the lease stands vouches for nothing.
#[tokio::test(start_paused = true)]
async fn a_variant_that_was_invalidated_stands_in_for_no_failure() {
    for vary in ["", "accept-language"] {
        let (origin, process) = (Origin::gated(), Server::new().process());
        let guard = process.guard();
        let respond = move |_: &Request, n: usize| {
            let status = if n == 1 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            (status, [("cache-control", "max-age=1, stale-if-error=60"), ("vary", vary)], n.to_string())
        };
        let app = site(&origin, respond).layer(guard.clone());
        origin.release(1);
        assert_eq!(ask(&app, get("/page")).await.text(), "1");
        for (n, invalidated, status) in [(2, false, 200), (3, true, 500)] {
            advance(Duration::from_secs(5)).await;
            let asked = tokio::spawn(ask(&app, get("/page")));
            origin.arrived(n).await;
            if invalidated {
                guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("it answers");
            }
            origin.release(1);
            assert_eq!(answer(asked).await.status, status, "by `{vary}`, invalidated: {invalidated}");
        }
        at_rest(&guard).await;
    }
}

/// RFC 9111 §4.3.5 is about stored responses that could have been chosen for the request.
#[tokio::test]
async fn a_head_request_says_nothing_of_what_its_client_may_not_have() {
    for guard in on_each_store("classes-head") {
        let origin = Origin::new();
        let respond = |request: &Request, n: usize| match is_logged_in(request) {
            true => ([("cache-control", "private"), ("etag", "\"theirs\"")], n.to_string()),
            false => ([("cache-control", "max-age=60"), ("etag", "\"everybodys\"")], n.to_string()),
        };
        let app = site(&origin, respond).layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.text(), "1");
        guard.shutdown().await;
        assert_eq!(ask(&app, request(Method::HEAD, "/page", &[LOGGED_IN])).await.header("etag"), "\"theirs\"");
        assert_eq!(ask(&app, get("/page")).await.verdict(), CacheVerdict::Hit);
        at_rest(&guard).await;
    }
}
