//! Bodies: streamed, shared while they grow, collected to their end whoever goes away.

use crate::{
    kit::{Answer, Tap, ask, at_rest, get, in_time, is_pending, on_each_store, site, taps, waiting},
    support::{Origin, eventually, herd},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, Response},
    response::IntoResponse,
};
use futures_util::future::{BoxFuture, join_all};
use http_body_util::BodyExt;
use stampede_guard::{CacheVerdict, StampedeGuard};
use std::time::Duration;
use tokio::time::Instant;
use tower::ServiceExt;

/// The head of an answer, while its body may not have come yet.
fn head(app: &Router, path: &str) -> BoxFuture<'static, Response<Body>> {
    let response = app.clone().oneshot(get(path));
    Box::pin(in_time("the head", async { response.await.expect("axum does not fail") }))
}

async fn chunk(response: &mut Response<Body>) -> Bytes {
    let frame = in_time("a chunk", response.frame()).await.expect("more to come").expect("a whole body");
    frame.into_data().expect("data")
}

async fn breaks_off(mut response: Response<Body>) -> bool {
    loop {
        match in_time("the end", response.frame()).await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return true,
            None => return false,
        }
    }
}

/// Answers whose bodies the test fills; `size` is what they say of their length.
fn streaming(
    guard: &StampedeGuard,
    calls: usize,
    size: Option<u64>,
    control: &'static str,
) -> (Router, Origin, Vec<Tap>) {
    let ((taps, bodies), origin) = (taps(calls, size), Origin::new());
    let app = site(&origin, move |_, _| ([("cache-control", control)], bodies())).layer(guard.clone());
    (app, origin, taps)
}

/// Not shared, not cacheable yet, or collected: nobody holds back what is there.
#[tokio::test]
async fn the_first_bytes_are_passed_on_before_the_next_ones_exist() {
    for (size, control) in [(None, "no-store"), (Some(8), "no-store"), (None, "max-age=60"), (Some(8), "max-age=60")] {
        for guard in on_each_store(&format!("streams-{size:?}-{control}")) {
            let (app, _, taps) = streaming(&guard, 1, size, control);
            let mut response = head(&app, "/page").await;
            for tap in taps {
                for part in ["some", "more"] {
                    tap.send(part);
                    assert_eq!(chunk(&mut response).await, part, "{size:?} {control}");
                }
            }
            assert!(!breaks_off(response).await);
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn what_is_not_shared_is_not_collected() {
    let guard = StampedeGuard::in_memory();
    let (app, _, mut taps) = streaming(&guard, 1, None, "no-store");
    let response = head(&app, "/page").await;
    drop(response);
    assert!(!taps.remove(0).is_read(), "the origin sees that its client is gone");
    at_rest(&guard).await;
}

/// With `known` always false, the second one gets no head before the end.
#[tokio::test]
async fn those_who_wait_read_a_body_of_known_length_while_it_grows() {
    for guard in on_each_store("grows") {
        let (app, origin, taps) = streaming(&guard, 1, Some(8), "max-age=60");
        let (mut leader, mut waiter) = tokio::join!(head(&app, "/page"), head(&app, "/page"));
        let mut late = None;
        for tap in taps {
            tap.send("some");
            assert_eq!((chunk(&mut leader).await, chunk(&mut waiter).await), ("some".into(), "some".into()));
            let mut third = head(&app, "/page").await;
            assert_eq!(http_body::Body::size_hint(third.body()).exact(), Some(8));
            assert_eq!(chunk(&mut third).await, "some", "who comes later gets it from its beginning");
            tap.send("more");
            assert_eq!((chunk(&mut leader).await, chunk(&mut waiter).await), ("more".into(), "more".into()));
            late = Some(third);
        }
        for mut response in [Some(leader), Some(waiter)].into_iter().flatten() {
            assert!(response.frame().await.is_none());
        }
        assert_eq!(chunk(&mut late.expect("it was there")).await, "more");
        at_rest(&guard).await;
        let hit = ask(&app, get("/page")).await;
        assert_eq!((hit.text(), hit.verdict(), origin.calls()), ("somemore", CacheVerdict::Hit, 1));
    }
}

#[tokio::test]
async fn those_who_wait_get_a_body_of_unknown_length_at_its_end() {
    let guard = StampedeGuard::in_memory();
    let (app, origin, mut taps) = streaming(&guard, 1, None, "max-age=60");
    let (mut leader, mut waiter) = (head(&app, "/page"), head(&app, "/page"));
    assert!(is_pending(&mut leader).await && is_pending(&mut waiter).await);
    let mut leader = leader.await;
    let tap = taps.remove(0);
    tap.send("some");
    assert_eq!(chunk(&mut leader).await, "some");
    assert!(is_pending(&mut waiter).await, "it may still turn out too large");
    tap.send("more");
    drop(tap);
    let waiter = Answer::of(waiter.await).await;
    assert_eq!((waiter.text(), waiter.verdict()), ("somemore", CacheVerdict::Coalesced));
    assert_eq!(chunk(&mut leader).await, "more");
    assert!(leader.frame().await.is_none());
    at_rest(&guard).await;
    assert_eq!((ask(&app, get("/page")).await.text(), origin.calls()), ("somemore", 1));
}

/// With the hand-over of the rest left out, the leader's body breaks off at the cap.
#[tokio::test]
async fn a_body_that_turns_out_over_the_cap_is_whole_and_not_stored() {
    const CHUNKS: usize = 64;
    let part = |i: usize| Bytes::from(vec![b'a' + (i % 26) as u8; 32 << 10]);
    let whole: Vec<u8> = (0..CHUNKS).flat_map(part).collect();
    assert_eq!(whole.len(), 2 << 20);
    for guard in on_each_store("over-the-cap") {
        let (app, origin, taps) = streaming(&guard, 11, None, "max-age=60");
        let asked = app.clone();
        let asked = tokio::spawn(async move { herd(10, |_| ask(&asked, get("/page"))).await });
        let mut taps = taps.into_iter();
        let fill = |tap: Tap| (0..CHUNKS).for_each(|i| tap.send(part(i)));
        fill(taps.next().expect("the leader's"));
        origin.arrived(10).await;
        taps.by_ref().take(9).for_each(fill);
        for answer in in_time("the herd", asked).await.expect("nobody panics") {
            assert!(answer.body == whole, "{} bytes of {}", answer.body.len(), whole.len());
        }
        at_rest(&guard).await;
        taps.for_each(fill);
        assert_eq!(ask(&app, get("/page")).await.verdict(), CacheVerdict::Bypassed);
        assert_eq!(origin.calls(), 11);
        at_rest(&guard).await;
    }
}

/// With `Ended::BrokenOff` taken for an end, the half is stored and replayed.
#[tokio::test]
async fn a_body_that_breaks_off_is_never_stored() {
    for guard in on_each_store("breaks-off") {
        let (app, origin, mut taps) = streaming(&guard, 2, Some(8), "max-age=60");
        let (leader, waiter) = tokio::join!(head(&app, "/page"), head(&app, "/page"));
        let tap = taps.remove(0);
        tap.send("some");
        tap.break_off();
        assert!(breaks_off(leader).await && breaks_off(waiter).await);
        at_rest(&guard).await;

        let tap = taps.remove(0);
        tap.send("complete");
        drop(tap);
        assert_eq!(ask(&app, get("/page")).await.text(), "complete");
        at_rest(&guard).await;
        assert_eq!((ask(&app, get("/page")).await.text(), origin.calls()), ("complete", 2));
    }
}

/// Whoever asks when it is known to have broken off is in time for a whole one, even if its fetch is not quite over. Seen
/// to fail over Redis, which has not answered yet that the lease is gone.
#[tokio::test]
async fn nobody_joins_a_body_that_has_broken_off() {
    for guard in on_each_store("joins-broken") {
        let (app, origin, mut taps) = streaming(&guard, 2, Some(8), "max-age=60");
        let leader = head(&app, "/page").await;
        let tap = taps.remove(0);
        tap.break_off();
        assert!(breaks_off(leader).await);
        taps[0].send("complete");
        taps.clear();
        assert_eq!(ask(&app, get("/page")).await.text(), "complete");
        assert_eq!(origin.calls(), 2);
        at_rest(&guard).await;
    }
}

/// An origin in trouble is no moment for a stampede. Seen to fail with all of them released at once.
#[tokio::test]
async fn those_who_wait_for_a_body_of_unknown_length_that_breaks_off_try_again_together() {
    let guard = StampedeGuard::in_memory();
    let (app, origin, mut taps) = streaming(&guard, 2, None, "max-age=60");
    let mut leader = head(&app, "/page");
    assert!(is_pending(&mut leader).await);
    let asked = waiting(&app, 20, |_| get("/page")).await;
    let tap = taps.remove(0);
    tap.send("some");
    tap.break_off();
    assert!(breaks_off(leader.await).await);
    for tap in taps {
        tap.send("complete");
    }
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "complete"));
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
}

/// RFC 9111 §3.3: what is shorter than it says is incomplete. Seen to fail before the length was compared: every hit
/// was such an answer.
#[tokio::test]
async fn a_body_that_is_shorter_than_its_content_length_is_not_stored() {
    for (sent, stored) in [("some", false), ("complete", true)] {
        let ((taps, bodies), origin) = (taps(2, None), Origin::new());
        let guard = StampedeGuard::in_memory();
        let app = site(&origin, move |_, _| ([("content-length", "8")], bodies())).layer(guard.clone());
        for tap in taps {
            tap.send(sent);
        }
        let _ = head(&app, "/page").await.into_body().collect().await;
        at_rest(&guard).await;
        let _ = head(&app, "/page").await.into_body().collect().await;
        assert_eq!(origin.calls(), if stored { 1 } else { 2 }, "{sent}");
        at_rest(&guard).await;
    }
}

/// With the flight driven by its caller and not by a task, the waiter hangs.
#[tokio::test]
async fn a_client_that_goes_away_strands_neither_readers_nor_the_store() {
    for (size, guard) in [(Some(8), StampedeGuard::in_memory()), (None, StampedeGuard::in_memory())] {
        let (app, origin, mut taps) = streaming(&guard, 1, size, "max-age=60");
        let mut leader = head(&app, "/page");
        assert!(is_pending(&mut leader).await);
        let asked = waiting(&app, 1, |_| get("/page")).await;
        let mut leader = leader.await;
        let tap = taps.remove(0);
        tap.send("some");
        assert_eq!(chunk(&mut leader).await, "some");
        drop(leader);
        tap.send("more");
        drop(tap);
        assert_eq!(asked.answers().await[0].text(), "somemore");
        at_rest(&guard).await;
        assert_eq!((ask(&app, get("/page")).await.text(), origin.calls()), ("somemore", 1));
    }
}

/// Two readers each with a waker of its own; one of them goes away.
#[tokio::test]
async fn a_reader_that_goes_away_does_not_take_the_others_wakers() {
    let guard = StampedeGuard::in_memory();
    let (app, _, mut taps) = streaming(&guard, 1, Some(8), "max-age=60");
    let (leader, waiter) = tokio::join!(head(&app, "/page"), head(&app, "/page"));
    let tap = taps.remove(0);
    let [leader, waiter] = [leader, waiter].map(|response| tokio::spawn(Answer::of(response)));
    tap.send("some");
    tokio::task::yield_now().await;
    leader.abort();
    tap.send("more");
    drop(tap);
    assert_eq!(in_time("the other one", waiter).await.expect("no panic").text(), "somemore");
    at_rest(&guard).await;
}

/// RFC 9111 §3.3 lets a cache drop trailers; what only passes through keeps them.
#[tokio::test]
async fn trailers_are_kept_where_it_only_passes_through() {
    for (control, kept) in [("no-store", true), ("max-age=60", false)] {
        let guard = StampedeGuard::in_memory();
        let (app, _, taps) = streaming(&guard, 1, None, control);
        for tap in taps {
            tap.send("body");
            tap.trailers(HeaderMap::from_iter([("x-sum".parse().expect("a name"), "7".parse().expect("a value"))]));
        }
        let body = head(&app, "/page").await.into_body().collect().await.expect("a whole body");
        assert_eq!(body.trailers().is_some(), kept, "{control}");
        assert_eq!(body.to_bytes(), "body");
        at_rest(&guard).await;
        if !kept {
            let hit = head(&app, "/page").await.into_body().collect().await.expect("a whole body");
            assert!(hit.trailers().is_none());
            assert_eq!(hit.to_bytes(), "body");
        }
    }
}

/// `max_fetch` ends the lease, not the client's answer. Seen to fail with a broken body after `max_fetch`, as every
/// endless answer did that does not say so.
#[tokio::test(start_paused = true)]
async fn a_body_that_takes_longer_than_a_fetch_may_is_not_cut_off() {
    for size in [None, Some(8)] {
        let guard = StampedeGuard::in_memory().max_fetch(Duration::from_secs(2));
        let (app, _, mut taps) = streaming(&guard, 1, size, "max-age=60");
        let mut response = head(&app, "/page").await;
        let tap = taps.remove(0);
        tap.send("some");
        assert_eq!(chunk(&mut response).await, "some");
        at_rest(&guard).await; // nothing is sent meanwhile, and so the lease is given up
        tap.send("more");
        drop(tap);
        assert_eq!(chunk(&mut response).await, "more", "{size:?}");
        assert!(response.frame().await.is_none());
    }
}

/// A log that is followed, an answer to a long poll: it does not say that it is not to be shared. Seen to fail when it
/// had until `max_fetch`: of those who waited one got an answer after 8 s, the others after 68 s, and the next ones no
/// sooner.
#[tokio::test(start_paused = true)]
async fn nobody_waits_long_for_a_body_without_an_end() {
    let guard = StampedeGuard::in_memory().wait(Duration::from_secs(10));
    let (app, origin, taps) = streaming(&guard, 20, None, "max-age=60");
    let herd = || join_all((0..10).map(|_| head(&app, "/page")));
    let began = Instant::now();
    let first = herd().await;
    assert!(began.elapsed() <= Duration::from_secs(6), "{:?}", began.elapsed());
    let second = herd().await;
    assert!(began.elapsed() <= Duration::from_secs(6), "the next ones do not wait at all");
    assert_eq!(origin.calls(), 20);
    taps.iter().for_each(|tap| tap.send("line"));
    for mut response in first.into_iter().chain(second) {
        assert_eq!(chunk(&mut response).await, "line");
    }
    drop(taps);
    at_rest(&guard).await;
}

#[tokio::test]
async fn an_empty_body_is_an_answer_too() {
    for guard in on_each_store("empty") {
        let origin = Origin::new();
        let app = site(&origin, |_: &Request, _| ().into_response()).layer(guard.clone());
        for verdict in [CacheVerdict::Filled, CacheVerdict::Hit] {
            let answer = ask(&app, get("/page")).await;
            assert_eq!((answer.status, answer.text(), answer.verdict()), (200, "", verdict));
            at_rest(&guard).await;
        }
    }
}

/// A panic in the middle of a body is one that breaks off.
#[tokio::test]
async fn a_body_that_panics_breaks_off_for_everybody() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let respond = |_: &Request, n: usize| {
        let poison = futures_util::stream::once(async move {
            assert!(n > 1, "as the test wants it");
            Ok::<_, std::convert::Infallible>("complete")
        });
        Body::from_stream(poison)
    };
    let app = site(&origin, respond).layer(guard.clone());
    assert!(breaks_off(head(&app, "/page").await).await);
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.text(), "complete");
    eventually("nothing is left", async || guard.in_flight() == 0).await;
}

/// It has become stale while its body was coming. Seen to fail (a call each) with those who came too late for it sent
/// to the origin by themselves.
#[tokio::test(start_paused = true)]
async fn a_body_that_takes_longer_than_it_is_fresh_is_no_stampede() {
    let guard = StampedeGuard::in_memory();
    let (app, origin, mut taps) = streaming(&guard, 3, None, "max-age=1");
    let mut asked = vec![tokio::spawn(ask(&app, get("/page")))];
    origin.arrived(1).await;
    for _ in 0..28 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        asked.push(tokio::spawn(ask(&app, get("/page"))));
    }
    tokio::task::yield_now().await;
    for _ in 0..3 {
        taps.remove(0).send("page");
    }
    for answer in asked {
        assert_eq!(answer.await.expect("no panic").text(), "page");
    }
    assert!(origin.calls() <= 2, "{} calls", origin.calls());
}
