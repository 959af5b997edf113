//! Seeded storms: two processes over one failing store, with users, languages, writers and clients that disconnect. No
//! client ever gets a response for another client. A request after a change that its own process has made sees that
//! change.

use crate::kit::{Answer, at_rest, request};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{Method, request::Parts},
    response::Response,
    routing::any,
};
use fastrand::Rng;
use futures_util::{future::join_all, stream};
use stampede_guard::{
    StampedeGuard,
    testing::{FakeRedis, Fault, Node, Operation, seed},
};
use std::{
    convert::Infallible,
    env,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

/// The version shown at each path, and the random number generator.
struct World {
    shown: [Mutex<u32>; PATHS],
    dice: Mutex<Rng>,
}

impl World {
    fn draw(&self, below: u64) -> u64 {
        self.dice.lock().expect("no panic").u64(0..below)
    }

    fn is(&self, percent: u64) -> bool {
        self.draw(100) < percent
    }

    async fn pause(&self, most: u64) {
        sleep(Duration::from_millis(self.draw(most))).await;
    }

    fn shows(&self, path: usize) -> u32 {
        *self.shown[path].lock().expect("no panic")
    }

    /// Answers a request. The text of the response names everything that it depends on, and `Vary` names the fields.
    async fn respond(&self, request: &Parts) -> Response {
        let path: usize = request.uri.path()[1..].parse().expect("a number");
        if request.method == Method::POST {
            self.pause(200).await;
            *self.shown[path].lock().expect("no panic") += 1;
            self.pause(200).await;
            return Response::new(Body::empty());
        }
        let version = self.shows(path);
        self.pause(if self.is(5) { 20_000 } else { 400 }).await;
        let said = |name: &str| request.headers.get(name).map_or("-", |value| value.to_str().expect("a text"));
        let (user, format) = (said("cookie"), if self.is(50) { said("accept") } else { "*" });
        let is_private = path.is_multiple_of(2) && user != "-";
        let control = match path {
            _ if is_private => "private",
            0 => "max-age=1, stale-while-revalidate=1",
            1 => "public, max-age=1, stale-if-error=3",
            2 => "max-age=2, stale-if-error=60",
            _ => "s-maxage=2",
        };
        let text = format!("{version} {} {format} {}", said("accept-language"), if is_private { user } else { "*" });
        let vary = if format == "*" { "accept-language" } else { "accept-language, accept" };
        let status = if self.is(10) { 500 } else { 200 };
        let late = Duration::from_millis(self.draw(300));
        let body = match self.draw(3) {
            0 => Body::from_stream(stream::once(async move {
                sleep(late).await;
                Ok::<_, Infallible>(text)
            })),
            _ => Body::from(text),
        };
        let head = Response::builder().status(status).header("cache-control", control).header("vary", vary);
        head.header("etag", format!("\"{version}\"")).body(body).expect("a response")
    }
}

async fn reader(world: &World, app: &Router, seen: &[Mutex<u32>; PATHS]) {
    world.pause(20_000).await;
    let path = world.draw(PATHS as u64) as usize;
    let pick = |of: &[&'static str]| of[world.draw(of.len() as u64) as usize];
    let (user, language, accept) = (pick(&["-", "ann", "bob"]), pick(&["en", "fr"]), pick(&["html", "json"]));
    let mut fields = vec![("accept-language", language), ("accept", accept)];
    if user != "-" {
        fields.push(("cookie", user));
    }
    if world.is(10) {
        fields.push(("cache-control", "no-cache"));
    }
    let method = if world.is(10) { Method::HEAD } else { Method::GET };
    let least = *seen[path].lock().expect("no panic");
    let asked = app.clone().oneshot(request(method.clone(), &format!("/{path}"), &fields));
    let patience = Duration::from_millis(if world.is(10) { world.draw(500) } else { 100_000 });
    let Ok(answer) = timeout(patience, async { Answer::of(asked.await.expect("an answer")).await }).await else {
        assert!(patience < Duration::from_secs(1), "the request hangs");
        return;
    };
    if answer.status != 200 || method == Method::HEAD {
        return;
    }
    let said: Vec<_> = answer.text().split(' ').collect();
    let &[version, spoken, format, whose] = &said[..] else { panic!("half an answer: {said:?}") };
    assert_eq!(spoken, language);
    assert!(format == "*" || format == accept, "{format} for {accept}");
    assert!(whose == user || whose == "*", "{whose}'s for {user}");
    assert!(!path.is_multiple_of(2) || (whose == "*") == (user == "-"), "{whose} for {user}");
    assert!(
        version.parse::<u32>().expect("a number") >= least,
        "{version} after {least} at {path}: {:?}",
        answer.headers
    );
}

async fn writer(world: &World, app: &Router, seen: &[Mutex<u32>; PATHS]) {
    world.pause(20_000).await;
    let path = world.draw(PATHS as u64) as usize;
    let before = world.shows(path);
    app.clone().oneshot(request(Method::POST, &format!("/{path}"), &[])).await.expect("an answer");
    let mut seen = seen[path].lock().expect("no panic");
    *seen = (*seen).max(before + 1);
}

/// Injects faults into every operation except an invalidation, which would not be acknowledged.
async fn trouble(world: &World, node: &Node) {
    use Operation::{Extend, Fill, Get, GetOrLease, Release};
    for _ in 0..20 {
        world.pause(1500).await;
        let operation = [Get, GetOrLease, Fill, Release, Extend][world.draw(5) as usize];
        let late = Duration::from_millis(world.draw(2000));
        let faults = [
            Fault::Fails,
            Fault::RequestLost,
            Fault::ReplyLost,
            Fault::Hangs,
            Fault::RequestDelayed(late),
            Fault::ReplyDelayed(late),
            Fault::Repeated(late),
        ];
        let fault = faults[world.draw(7) as usize].clone();
        match world.draw(8) {
            0 => node.always(operation, fault),
            1 => node.lose_wakes(),
            2 | 3 => node.heal(),
            n => node.times(n as usize - 3, operation, fault),
        }
    }
    node.heal();
}

async fn storm(number: u64) {
    seed(number);
    let world = Arc::new(World { shown: Default::default(), dice: Mutex::new(Rng::with_seed(number)) });
    let server = FakeRedis::new();
    let handler = {
        let world = world.clone();
        move |request: Request| {
            let world = world.clone();
            async move { world.respond(&request.into_parts().0).await }
        }
    };
    let site = Router::new().route("/{path}", any(handler));
    let nodes = [server.node(), server.node()];
    let guards: [StampedeGuard; 2] = [nodes[0].guard(), nodes[1].guard()];
    let apps = guards.clone().map(|guard| site.clone().layer(guard));
    let seen: [[Mutex<u32>; PATHS]; 2] = Default::default();
    let both = || apps.iter().zip(&seen);
    let readers = join_all((0..60).flat_map(|_| both().map(|(app, seen)| reader(&world, app, seen))));
    let writers = join_all((0..6).flat_map(|_| both().map(|(app, seen)| writer(&world, app, seen))));
    let troubles = join_all(nodes.iter().map(|node| trouble(&world, node)));
    tokio::join!(readers, writers, troubles);
    for guard in &guards {
        at_rest_after_all(guard).await;
    }
}

async fn at_rest_after_all(guard: &StampedeGuard) {
    sleep(Duration::from_secs(120)).await;
    at_rest(guard).await;
}

#[test]
fn a_storm_never_serves_foreign_or_outdated_responses() {
    let first = env::var("STORM").ok().map(|text| text.parse::<u64>().expect("STORM is a number"));
    let storms = env::var("STORMS").map_or(40, |text| text.parse().expect("STORMS is a number"));
    for number in first.map_or(0..storms, |first| first..first + 1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        println!("storm {number}");
        runtime.expect("a runtime").block_on(storm(number));
    }
}

const PATHS: usize = 4;
