//! Invariants that hold for every origin and every client, checked with random sites and random herds.

use crate::{
    kit::{Answer, ask, at_rest, get_with, in_time, request, site},
    support::Origin,
    vary::field,
};
use axum::{
    Router,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use fastrand::Rng;
use futures_util::future::join_all;
use stampede_guard::{StampedeGuard, testing::FakeRedis};

/// Fields by which responses vary; the last one is a credential.
const FIELDS: [&str; 4] = ["x-a", "x-b", "x-c", "cookie"];
const CONTROLS: [&str; 8] =
    ["", "max-age=60", "public", "s-maxage=60", "no-cache", "public, no-cache", "private", "no-store"];

/// Returns a site with random responses. The text of each is the number of its call and the selecting fields of its
/// request.
fn random_site(origin: &Origin, seed: u64) -> Router {
    let respond = move |request: &Request, n: usize| -> Response {
        let mut rng = Rng::with_seed(seed << 32 | n as u64);
        let vary: Vec<_> = FIELDS.into_iter().filter(|_| rng.u8(..3) == 0).collect();
        let (vary, control) = (vary.join(","), CONTROLS[rng.usize(..CONTROLS.len())]);
        let etag = format!("\"{n}\"");
        let fields = [("vary", vary.as_str()), ("cache-control", control), ("etag", &etag)];
        match field(request, "if-none-match") {
            asked if !asked.is_empty() && rng.bool() => {
                let same = asked.to_owned();
                (StatusCode::NOT_MODIFIED, [("etag", same.as_str()), ("cache-control", control)]).into_response()
            }
            _ => (fields, format!("{n} {}", FIELDS.map(|name| field(request, name)).join(" "))).into_response(),
        }
    };
    let gets = site(origin, respond);
    Router::new().route("/{*path}", axum::routing::post(async || ()).get_service(gets))
}

/// Returns one of three values, or none, for each field.
fn random_values(rng: &mut Rng) -> [&'static str; 4] {
    FIELDS.map(|_| ["", "p", "q", "r"][rng.usize(..4)])
}

fn asked_with(values: [&str; 4]) -> Request {
    let fields: Vec<_> = FIELDS.into_iter().zip(values).filter(|(_, value)| !value.is_empty()).collect();
    get_with("/page", &fields)
}

/// Returns the number of the call that made the response, and the field values of its request.
fn made_of(answer: &Answer) -> (usize, Vec<&str>) {
    let mut words = answer.text().split(' ');
    (words.next().and_then(|n| n.parse().ok()).expect("a number"), words.collect())
}

/// Returns the invariant that the response breaks, if any.
fn broken(values: [&str; 4], answer: &Answer, settled: usize) -> Option<&'static str> {
    let (n, made) = made_of(answer);
    let vary = answer.header("vary");
    let differs = |(i, name): (usize, &&str)| made[i] != values[i] && vary.split(',').any(|field| field == *name);
    let control = answer.header("cache-control");
    // A response that the origin has confirmed to this client is its own.
    let others = made != values && !answer.header("cache-status").contains("fwd-status=304");
    if answer.status != 200 {
        Some("no answer at all")
    } else if n <= settled {
        Some("from before a change")
    } else if FIELDS.iter().enumerate().any(differs) {
        Some("another variant (RFC 9111 §4.1)")
    } else if others && (control == "no-store" || control == "private") {
        Some("for another client (§5.2.2)")
    } else if others && !values[3].is_empty() && !control.contains("public") && !control.contains("s-maxage") {
        Some("sent to a user, but not declared shareable")
    } else {
        None
    }
}

/// Two processes, herds of one to seven requests, and unsafe requests in between. Seen to fail with `admits` always
/// true, with variants made without the field values, and without the unsafe requests.
#[tokio::test]
async fn no_client_gets_a_response_for_other_clients() {
    for seed in 0..20 {
        let (server, origin, mut rng) = (FakeRedis::new(), Origin::new(), Rng::with_seed(seed));
        let guards: [StampedeGuard; 2] = [(); 2].map(|()| server.node().guard());
        let apps = guards.clone().map(|guard| random_site(&origin, seed).layer(guard));
        let mut settled = 0;
        for step in 0..40 {
            if rng.u8(..8) == 0 {
                settled = origin.calls();
                ask(&apps[rng.usize(..2)], request(Method::POST, "/page", &[])).await;
            }
            let herd: Vec<_> = (0..rng.usize(1..8)).map(|_| (rng.usize(..2), random_values(&mut rng))).collect();
            let asked = herd.iter().map(|&(app, values)| ask(&apps[app], asked_with(values)));
            for ((_, values), answer) in herd.iter().zip(in_time("a herd", join_all(asked)).await) {
                if let Some(law) = broken(*values, &answer, settled) {
                    panic!("seed {seed}, step {step}: {values:?} got {answer:?}: {law}");
                }
            }
        }
        for guard in &guards {
            at_rest(guard).await;
        }
    }
}
