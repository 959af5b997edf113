//! What `health` says of the store, and what it costs: no store operation.

use crate::{Down, MS, SECOND};
use stampede_guard::{
    Health, StampedeGuard,
    testing::{
        FakeRedis, Fault,
        Operation::{Fill, Get, GetOrLease},
    },
};
use tokio::time::sleep;

async fn ask(guard: &StampedeGuard, key: u64) {
    guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
}

#[tokio::test(start_paused = true)]
async fn health_follows_an_outage_without_a_request_to_the_store() {
    let node = FakeRedis::new().node();
    let guard = node.guard().store_timeout(250 * MS);
    let Health { store_reachable, breaker_open, last_error, subscriber_up, .. } = guard.health();
    assert_eq!((store_reachable, breaker_open, last_error, subscriber_up), (None, false, None, None));

    ask(&guard, 1).await;
    guard.drain().await;
    assert_eq!((guard.health().store_reachable, guard.health().last_error), (Some(true), None));

    for operation in [Get, GetOrLease, Fill] {
        node.always(operation, Fault::Hangs);
    }
    ask(&guard, 2).await;
    sleep(100 * MS).await;
    let asked = node.asked(Get);
    let health = guard.clone().health();
    assert_eq!((health.store_reachable, health.breaker_open), (Some(false), true));
    let error = health.last_error.expect("an operation has failed");
    assert_eq!(error.operation, "get");
    // The caller has waited for the probe for half of a store timeout.
    assert!((224 * MS..250 * MS).contains(&error.age), "{:?}", error.age);
    assert!(error.message.contains("no answer within store_timeout (250ms)"), "{}", error.message);
    assert_eq!(node.asked(Get), asked);

    node.heal();
    while guard.health().breaker_open {
        ask(&guard, 3).await;
        sleep(10 * MS).await;
    }
    let health = guard.health();
    assert_eq!(health.store_reachable, Some(true));
    assert!(health.last_error.is_some_and(|error| error.age >= 10 * MS), "the last error stays");
}

/// Below the five errors that open the breaker.
#[tokio::test(start_paused = true)]
async fn store_is_unreachable_from_its_first_error_to_its_next_reply() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    node.times(4, Get, Fault::ReplyLost);
    node.always(GetOrLease, Fault::ReplyLost);
    ask(&guard, 1).await;
    let health = guard.health();
    assert_eq!((health.store_reachable, health.breaker_open), (Some(false), false));
    node.heal();
    ask(&guard, 2).await;
    assert_eq!(guard.health().store_reachable, Some(true));
}

#[tokio::test(start_paused = true)]
async fn refusal_is_an_answer_and_the_last_error() {
    let node = FakeRedis::new().node();
    node.always(GetOrLease, Fault::Fails);
    let guard = node.guard();
    ask(&guard, 1).await;
    let health = guard.health();
    assert_eq!((health.store_reachable, health.breaker_open), (Some(true), false));
    assert_eq!(health.last_error.expect("a refusal").operation, "get_or_lease");
}

#[tokio::test(start_paused = true)]
async fn health_is_serializable() {
    let embedded = serde_json::to_value(StampedeGuard::in_memory().health()).expect("JSON");
    let expected = serde_json::json!({
        "store_reachable": true, "credentials_refused": false, "breaker_open": false, "last_error": null,
        "subscriber_up": null, "pending_invalidations": 0,
    });
    assert_eq!(embedded, expected);

    let node = FakeRedis::new().node();
    node.always(Get, Fault::Fails);
    let guard = node.guard();
    ask(&guard, 1).await;
    sleep(2 * SECOND).await;
    let (error, age) = (&serde_json::to_value(guard.health()).expect("JSON")["last_error"], guard.health().last_error);
    assert_eq!(error["operation"], "get");
    assert_eq!(error["age"], age.expect("a refusal").age.as_secs_f64());
    assert!(error["message"].as_str().is_some_and(|message| message.starts_with("the store failed: ")), "{error}");
}
