//! Failed fetches: what the callers of the same process get, what other processes get, and which errors are answers.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, herd},
};
use stampede_guard::{
    BoxError, Error, ErrorKind, FailureClass, Policy, StampedeGuard, StoreFailure,
    testing::{
        FakeRedis, Fault,
        Operation::{Get, Invalidate},
    },
};
use std::{error, fmt, io, sync::Arc, time::Duration};

/// An error whose `Display` does not work.
#[derive(Clone, Copy, Debug)]
enum Unprintable {
    Fails,
    Panics,
}

impl fmt::Display for Unprintable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("half")?;
        match self {
            Self::Fails => Err(fmt::Error),
            Self::Panics => panic!("as intended"),
        }
    }
}

impl error::Error for Unprintable {}

/// An error with a cause, as applications have them.
#[derive(Debug)]
struct NoSuchRow(io::Error);

impl fmt::Display for NoSuchRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("row not found")
    }
}

impl error::Error for NoSuchRow {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0)
    }
}

fn no_such_row() -> NoSuchRow {
    NoSuchRow(io::Error::other("connection 7 of postgres://secret"))
}

async fn fail(guard: &StampedeGuard) -> Error {
    let error = guard.fetch("k", async || Err::<u8, _>(no_such_row())).await.expect_err("no such row");
    guard.drain().await;
    error
}

async fn blocked(guard: &StampedeGuard) -> Error {
    guard.fetch("k", never::<u8>).await.expect_err("blocked")
}

fn classified(guard: StampedeGuard) -> StampedeGuard {
    guard.classify(|error| match Error::find::<NoSuchRow>(error) {
        Some(_) => FailureClass::Answer,
        None => FailureClass::OriginDown,
    })
}

/// Before, the second caller got an error of another kind without a cause, which an application answers with 503
/// instead of 404.
#[tokio::test(start_paused = true)]
async fn the_cause_is_kept_while_the_failure_blocks() {
    for guard in [StampedeGuard::in_memory(), FakeRedis::new().node().guard()] {
        let first = fail(&guard).await;
        assert_eq!((first.kind(), first.retry_in()), (ErrorKind::Origin, None));
        let cause = error::Error::source(&first).map(ToString::to_string);
        assert_eq!((first.to_string().as_str(), cause.as_deref()), ("the fetch failed", Some("row not found")));
        tokio::time::sleep(250 * MS).await;
        let second = blocked(&guard).await;
        assert_eq!(second.kind(), ErrorKind::Origin);
        assert!(second.origin::<NoSuchRow>().is_some() && second.origin::<io::Error>().is_some(), "{second:?}");
        assert!(second.retry_in().is_some_and(|left| left <= 750 * MS), "{second:?}");
        assert_eq!(second.to_string(), "the fetch failed");
        assert!(first.retry_in().is_none(), "the error of the first caller stays as it was");
    }
}

#[tokio::test(start_paused = true)]
async fn another_process_gets_the_kind_and_no_text() {
    let server = FakeRedis::new();
    let [a, b] = [server.node().guard(), server.node().guard()];
    fail(&a).await;
    let error = blocked(&b).await;
    assert_eq!(error.kind(), ErrorKind::Origin);
    assert!(error.to_string() == "the fetch failed" && error.retry_in().is_some(), "{error:?}");
    assert!(error.origin::<NoSuchRow>().is_none());
    let shown = format!("{error:?}");
    assert!(!shown.contains("row") && !shown.contains("secret"), "{shown}");
    assert!(blocked(&a).await.origin::<NoSuchRow>().is_some());
}

#[tokio::test(start_paused = true)]
async fn another_process_is_told_of_timeouts_and_panics() {
    let server = FakeRedis::new();
    let [a, b] = [0, 1].map(|_| server.node().guard().fetch_timeout(SECOND).failure_ttl(9 * SECOND));
    a.fetch("slow", async || std::future::pending::<Result<u8, Down>>().await).await.expect_err("aborted");
    a.fetch("panic", async || -> Result<u8, Down> { panic!("as intended") }).await.expect_err("it panics");
    a.drain().await;
    for (key, kind) in [("slow", ErrorKind::TimedOut), ("panic", ErrorKind::Panicked)] {
        for guard in [&a, &b] {
            let error = guard.fetch(key, never::<u8>).await.expect_err("blocked");
            assert!(error.kind() == kind && error.retry_in().is_some(), "{error:?}");
        }
    }
}

/// Seen to fail (each of the callers fetches, one after another) when the leader formatted the error and did not catch
/// the panic.
#[tokio::test(start_paused = true)]
async fn an_error_that_cannot_be_printed_fails_once() {
    for error in [Unprintable::Fails, Unprintable::Panics] {
        let (server, origin) = (FakeRedis::new(), Origin::new());
        let [a, b] = [server.node().guard(), server.node().guard()];
        let callers = (0..5).map(|_| {
            let origin = origin.clone();
            a.fetch("k", async move || {
                origin.work(SECOND).await;
                Err::<u8, _>(error)
            })
        });
        for answer in futures_util::future::join_all(callers).await {
            assert!(answer.expect_err("it fails").origin::<Unprintable>().is_some());
        }
        assert_eq!(origin.calls(), 1);
        a.drain().await;
        assert_eq!(blocked(&b).await.kind(), ErrorKind::Origin);
    }
}

/// Seen to fail (the error of the first process) when errors were kept by cache key and the id was not compared.
#[tokio::test(start_paused = true)]
async fn a_later_failure_elsewhere_replaces_the_kept_one() {
    let server = FakeRedis::new();
    let [a, b] = [server.node().guard(), server.node().guard()];
    fail(&a).await;
    b.invalidate("k").await.expect("acknowledged");
    b.fetch("k", async || Err::<u8, _>(Down)).await.expect_err("down");
    b.drain().await;
    let error = blocked(&a).await;
    assert!(error.origin::<NoSuchRow>().is_none() && !error.to_string().contains("row"), "{error}");
}

/// An older fetch of the same process fails after the marker of a newer one was left.
#[tokio::test(start_paused = true)]
async fn a_late_failure_does_not_replace_the_kept_one() {
    let (guard, origin) = (FakeRedis::new().node().guard(), Origin::gated());
    let late = tokio::spawn({
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.call().await;
                Err::<u8, _>(Down)
            };
            guard.fetch("k", fetch).await
        }
    });
    origin.arrived(1).await;
    guard.invalidate("k").await.expect("acknowledged");
    let error = guard.fetch("k", async || Err::<u8, _>(no_such_row())).await.expect_err("no such row");
    assert!(error.origin::<NoSuchRow>().is_some());
    origin.open();
    late.await.expect("no panic").expect_err("down");
    guard.drain().await;
    assert!(blocked(&guard).await.origin::<NoSuchRow>().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_ends_the_block_of_a_failure() {
    let server = FakeRedis::new();
    let [a, b] = [server.node().guard(), server.node().guard()];
    for (failing, invalidating) in [(&a, &a), (&a, &b), (&b, &a)] {
        fail(failing).await;
        invalidating.invalidate("k").await.expect("acknowledged");
        assert_eq!(failing.fetch("k", async || Ok::<_, Down>(1_u8)).await.expect("not blocked"), 1);
        failing.drain().await;
        invalidating.invalidate("k").await.expect("acknowledged");
    }
}

/// A missing row was an outage of its key in the whole fleet. Seen to fail without the classifier.
#[tokio::test(start_paused = true)]
async fn an_answer_leaves_no_marker() {
    let server = FakeRedis::new();
    let [a, b] = [0, 1].map(|_| classified(server.node().guard()));
    for guard in [&a, &b, &a] {
        assert_eq!(fail(guard).await.retry_in(), None, "each call reaches the origin");
    }
    a.fetch("k", async || Err::<u8, _>(Down)).await.expect_err("down");
    a.drain().await;
    assert!(blocked(&b).await.retry_in().is_some(), "other errors still block");
}

#[tokio::test]
async fn waiters_share_an_answer() {
    let (guard, origin) = (classified(StampedeGuard::in_memory()), Origin::gated());
    let callers = herd(100, |_| {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.call().await;
                Err::<u8, _>(no_such_row())
            };
            guard.fetch("k", fetch).await.expect_err("no such row")
        }
    });
    let release = async {
        origin.arrived(1).await;
        origin.open();
    };
    let (errors, ()) = tokio::join!(callers, release);
    assert!(errors.iter().all(|error| error.origin::<NoSuchRow>().is_some()));
    assert_eq!(origin.calls(), 1);
    let stats = guard.stats();
    assert_eq!((stats.misses, stats.coalesced, stats.rejected), (1, 99, 0), "{stats:?}");
}

/// Documented in docs/guarantees.md, *Limits*.
#[tokio::test(start_paused = true)]
async fn processes_ask_for_an_answer_in_turn() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    let guards = [0, 1, 2].map(|_| classified(server.node().guard()));
    let callers = (0..30).map(|n: usize| {
        let origin = origin.clone();
        guards[n % 3].fetch("k", async move || {
            origin.work(SECOND).await;
            Err::<u8, _>(no_such_row())
        })
    });
    let began = tokio::time::Instant::now();
    for answer in futures_util::future::join_all(callers).await {
        assert!(answer.expect_err("no such row").origin::<NoSuchRow>().is_some());
    }
    assert_eq!((origin.calls(), began.elapsed().as_secs()), (3, 3));
}

/// Seen to fail (the stale value is served) without the check of the cause in `Leader::on_fetch_failed`.
#[tokio::test(start_paused = true)]
async fn no_stale_value_replaces_an_answer() {
    let policy = Policy::fresh_for(SECOND).jitter(0.0).stale_if_error(60 * SECOND);
    let guard = classified(StampedeGuard::in_memory()).policy(policy);
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1_u8)).await.expect("stored"), 1);
    guard.drain().await;
    tokio::time::sleep(2 * SECOND).await;
    assert!(fail(&guard).await.origin::<NoSuchRow>().is_some());
    let stale = guard.fetch("k", async || Err::<u8, _>(Down)).await;
    assert_eq!(stale.expect("stale, because the origin is down"), 1);
}

/// An application may fail for thousands of keys, with large errors.
#[tokio::test(start_paused = true)]
async fn errors_are_kept_for_a_bounded_number_of_keys() {
    let (guard, held) = (StampedeGuard::in_memory(), Arc::new(Down));
    for key in 0..2000_u64 {
        let held = held.clone();
        guard.fetch(key, async move || Err::<u8, Arc<Down>>(held)).await.expect_err("down");
    }
    guard.drain().await;
    assert_eq!(Arc::strong_count(&held) - 1, 1024);
    let error = guard.fetch(1999_u64, never::<u8>).await.expect_err("blocked");
    assert!(error.origin::<Down>().is_none() && error.retry_in().is_some(), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Origin);
    tokio::time::sleep(2 * SECOND).await;
    fail(&guard).await;
    assert_eq!(Arc::strong_count(&held), 1, "the next failure drops errors whose time is over");
}

#[tokio::test]
async fn the_origins_error_is_found_in_other_error_types() {
    let guard = StampedeGuard::in_memory();
    let found = async |error: BoxError| {
        let answer = guard.clone().failure_ttl(Duration::ZERO).fetch("boxed", async || Err::<u8, _>(error)).await;
        answer.expect_err("it fails").origin::<Down>().is_some()
    };
    assert!(found(Box::new(Down)).await, "itself");
    assert!(found(Box::new(Box::new(Down))).await, "in a box");
    assert!(found(Box::new(Arc::new(Down))).await, "shared");
    let erased: Arc<dyn error::Error + Send + Sync> = Arc::new(Down);
    assert!(found(Box::new(erased)).await, "shared, of any type");
    assert!(found(Box::new(NoSuchRow(io::Error::other(Down)))).await, "as a source of a source");
    assert!(found(Box::new(Arc::new(io::Error::other(Down)))).await, "in a shared error of the system");
    assert!(!found("down".into()).await);

    let plain = guard.fetch("plain", async || Err::<u8, _>(anyhow::Error::from(Down))).await;
    assert_eq!(plain.expect_err("it fails").origin::<Down>(), Some(&Down));
    let context = guard.fetch("context", async || Err::<u8, _>(anyhow::Error::from(Down).context("reading"))).await;
    let error = context.expect_err("it fails");
    assert_eq!((error.origin::<Down>(), error.to_string()), (Some(&Down), "the fetch failed".to_owned()));
    assert_eq!(format!("{:#}", anyhow::Error::from(error)), "the fetch failed: reading: the origin is down");
    let message = guard.fetch("message", async || Err::<u8, _>(anyhow::anyhow!("no luck"))).await;
    assert_eq!(format!("{:#}", anyhow::Error::from(message.expect_err("it fails"))), "the fetch failed: no luck");
}

/// The classifier finds the error that an `anyhow::Error` was made from.
#[tokio::test]
async fn the_classifier_sees_through_anyhow() {
    let guard = classified(StampedeGuard::in_memory());
    let plain = || anyhow::Error::from(no_such_row());
    for error in [plain(), plain(), plain().context("reading"), plain().context("reading").context("user 7"), plain()] {
        let answer = guard.fetch("k", async || Err::<u8, _>(error)).await;
        assert_eq!(answer.expect_err("no such row").retry_in(), None);
        guard.drain().await;
    }
}

/// A classifier that panics is a part of the fetch: the callers learn of it, and the key is free again.
#[tokio::test]
async fn a_panic_of_the_classifier_is_a_panic_of_the_fetch() {
    let guard = StampedeGuard::in_memory().failure_ttl(Duration::ZERO).classify(|_| panic!("as intended"));
    assert_eq!(fail(&guard).await.kind(), ErrorKind::Panicked);
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("the key is free"), 1);
}

#[tokio::test]
async fn origin_cloned_returns_the_error_by_value() {
    let error = StampedeGuard::in_memory().fetch("k", async || Err::<u8, _>(Down)).await.expect_err("down");
    assert_eq!(error.origin_cloned::<Down>(), Some(Down));
    assert!(error.origin_cloned::<std::num::ParseIntError>().is_none());
    assert!(!error.is_timeout() && !error.is_overloaded());
}

/// Seen to fail (the words of the store two and three times) when an error shows its cause.
#[tokio::test]
async fn error_chain_shows_each_text_once() {
    let node = FakeRedis::new().node();
    node.always(Get, Fault::Fails);
    node.always(Invalidate, Fault::Fails);
    let guard = node.guard().on_store_failure(StoreFailure::FailClosed);
    let errors = [
        guard.fetch("k", never::<u8>).await.expect_err("fails closed"),
        guard.invalidate("k").await.expect_err("not acknowledged"),
        StampedeGuard::in_memory().fetch("k", async || Err::<u8, _>(Down)).await.expect_err("down"),
    ];
    for error in errors {
        let chain: Vec<_> = anyhow::Error::from(error.clone()).chain().map(ToString::to_string).collect();
        assert!(chain.len() > 1, "{chain:?}");
        let shown = format!("{:#}", anyhow::Error::from(error));
        assert!(chain.iter().all(|text| shown.matches(text.as_str()).count() == 1), "{shown}");
    }
}

/// Seen to fail (the second error is none of a timeout) with the kind alone.
#[tokio::test(start_paused = true)]
async fn error_says_whether_time_ran_out() {
    let guard = StampedeGuard::in_memory().fetch_timeout(3 * SECOND).failure_ttl(Duration::ZERO);
    let cache = guard.cache::<u8>("n");
    let hangs = || std::future::pending::<Result<u8, Down>>();
    let (aborted, late) = tokio::join!(cache.fetch(1, hangs), cache.entry(1).timeout(SECOND).fetch(hangs));
    let impatient = guard.clone().wait_timeout(SECOND).cache::<u8>("n");
    let crowded = guard.clone().max_waiters(1).cache::<u8>("n");
    let (_, waited, _, refused) =
        tokio::join!(cache.fetch(2, hangs), impatient.fetch(2, hangs), cache.fetch(2, hangs), crowded.fetch(2, hangs));
    for (answer, is_timeout, is_overloaded) in
        [(aborted, true, false), (late, true, true), (waited, true, true), (refused, false, true)]
    {
        let error = answer.expect_err("no answer");
        assert_eq!((error.is_timeout(), error.is_overloaded()), (is_timeout, is_overloaded), "{error}");
        assert!(!error.to_string().contains(|c: char| c.is_ascii_digit()), "{error}");
    }
}
