//! Variants and classes of callers: what one of them meets is not the others' business.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, in_time, on_each_store, request, site},
    support::{Origin, eventually},
};
use axum::{extract::Request, http::Method};
use stampede_guard::{
    CacheVerdict,
    testing::{Fault, Operation, Server},
};
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
    stampede_guard::testing::advance(std::time::Duration::from_millis(1)).await;
    process.heal();
    origin.release(1);
    assert_eq!(answer(with).await.text(), "2");
    origin.open();
    assert_eq!(answer(without).await.text(), "3", "what was invalidated is not served");
    at_rest(&guard).await;
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
