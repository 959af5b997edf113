//! Each way in which a fetch ends, with each kind of body, under a herd.

use crate::{
    bodies::breaks_off,
    kit::{at_rest, get, get_with},
};
use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{Response, StatusCode},
};
use futures_util::future::join_all;
use http_body::{Body as HttpBody, Frame, SizeHint};
use stampede_guard::{BoxError, StampedeGuard};
use std::{
    collections::BTreeMap,
    future::pending,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer, ServiceExt, service_fn};

/// What the origin does before its response head.
#[derive(Clone, Copy, Debug)]
enum Head {
    /// Answers with this status.
    Answers(u16),
    Fails,
    Panics,
    Hangs,
}

/// How a body ends, [`SLOW`] after its first bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Whole,
    BreaksOff,
    Panics,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Empty,
    KnownLength,
    UnknownLength,
    TooLarge,
}
use Kind::{Empty, KnownLength, TooLarge, UnknownLength};

/// A body of two parts, the second one after [`SLOW`].
struct SlowBody {
    kind: Kind,
    end: End,
    sent: usize,
    pause: Pin<Box<Sleep>>,
}

impl SlowBody {
    fn new(kind: Kind, end: End) -> Self {
        Self { kind, end, sent: 0, pause: Box::pin(sleep(SLOW)) }
    }
}

impl HttpBody for SlowBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let size = if self.kind == TooLarge { 2 << 20 } else { 4 };
        let part = Bytes::from(vec![b'x'; size]);
        if self.kind == Empty {
            return Poll::Ready(None);
        }
        if self.sent == 0 {
            self.sent = 1;
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        std::task::ready!(self.pause.as_mut().poll(cx));
        self.sent += 1;
        match self.end {
            End::Never => Poll::Pending,
            End::BreaksOff => Poll::Ready(Some(Err("the disk is on fire".into()))),
            End::Panics => panic!("planned by the test"),
            End::Whole if self.sent == 2 => Poll::Ready(Some(Ok(Frame::data(part)))),
            End::Whole => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.kind {
            Empty => SizeHint::with_exact(0),
            KnownLength => SizeHint::with_exact(8),
            UnknownLength | TooLarge => SizeHint::new(),
        }
    }
}

/// What a herd got.
#[derive(Debug)]
struct Outcome {
    calls: usize,
    /// Time until the last head.
    slowest: Duration,
    /// Number of responses by status: 0 for the own error of the service. Broken ones count as minus their status.
    statuses: BTreeMap<i32, usize>,
}

/// Sends a herd. If `differ` is set, no two of its requests are equal.
async fn herd(guard: &StampedeGuard, head: Head, kind: Kind, end: End, differ: bool) -> Outcome {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let service = guard.layer(service_fn(move |_: Request| {
        counted.fetch_add(1, SeqCst);
        async move {
            sleep(COST).await;
            match head {
                Head::Answers(status) => {
                    let mut response = Response::new(Body::new(SlowBody::new(kind, end)));
                    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
                    Ok(response)
                }
                Head::Fails => Err(io::Error::other("no route")),
                Head::Panics => panic!("planned by the test"),
                Head::Hangs => pending().await,
            }
        }
    }));
    let began = Instant::now();
    let asked = (0..HERD).map(|i| {
        let request = if differ { get_with("/page", &[("x-request-id", &i.to_string())]) } else { get("/page") };
        let answer = service.clone().oneshot(request);
        tokio::spawn(async move {
            let Ok(answer) = answer.await else { return (Instant::now(), 0) };
            let (at, status) = (Instant::now(), i32::from(answer.status().as_u16()));
            if end == End::Never {
                return (at, status);
            }
            (at, if breaks_off(answer.map(Body::new)).await { -status } else { status })
        })
    });
    let answers = join_all(asked).await;
    let mut outcome = Outcome { calls: calls.load(SeqCst), slowest: Duration::ZERO, statuses: BTreeMap::new() };
    for answer in answers {
        let (at, status) = answer.expect("no panic");
        outcome.slowest = outcome.slowest.max(at - began);
        *outcome.statuses.entry(status).or_default() += 1;
    }
    outcome
}

/// Seen to fail when a body that broke off handed its lease on without a failure: the rows of unknown length made 20 calls
/// one after the other, or 64 for a larger herd.
#[tokio::test(start_paused = true)]
async fn each_end_of_a_fetch_costs_a_herd_two_calls_at_most() {
    use End::{BreaksOff, Never, Whole};
    use Head::{Answers, Fails, Hangs};
    for (head, kind, end, calls, seconds, statuses) in [
        (Answers(200), Empty, Whole, 1, 0, &[(200, 20)][..]),
        (Answers(200), KnownLength, Whole, 1, 0, &[(200, 20)]),
        (Answers(200), KnownLength, BreaksOff, 1, 0, &[(-200, 20)]),
        (Answers(200), KnownLength, End::Panics, 1, 0, &[(-200, 20)]),
        (Answers(200), KnownLength, Never, 1, 0, &[(200, 20)]),
        (Answers(200), UnknownLength, Whole, 1, 1, &[(200, 20)]),
        (Answers(200), UnknownLength, BreaksOff, 2, 2, &[(-200, 2), (502, 18)]),
        (Answers(200), UnknownLength, End::Panics, 2, 2, &[(-200, 2), (500, 18)]),
        (Answers(200), UnknownLength, Never, 20, 5, &[(200, 20)]), // a stream, for each client its own
        (Answers(200), TooLarge, Whole, 20, 0, &[(200, 20)]),
        (Answers(200), TooLarge, BreaksOff, 20, 0, &[(-200, 20)]),
        (Answers(400), Empty, Whole, 2, 0, &[(400, 20)]),
        (Answers(400), KnownLength, Whole, 2, 0, &[(400, 20)]),
        (Answers(400), UnknownLength, BreaksOff, 2, 0, &[(-400, 2), (400, 18)]),
        (Answers(404), KnownLength, Whole, 2, 0, &[(404, 20)]),
        (Answers(404), KnownLength, BreaksOff, 2, 0, &[(-404, 20)]),
        (Answers(404), UnknownLength, Whole, 2, 1, &[(404, 20)]),
        (Answers(404), UnknownLength, BreaksOff, 2, 1, &[(-404, 2), (502, 18)]),
        (Answers(429), KnownLength, Whole, 2, 0, &[(429, 20)]),
        (Answers(500), KnownLength, Whole, 2, 0, &[(500, 20)]),
        (Answers(503), Empty, Whole, 2, 0, &[(503, 20)]),
        (Answers(503), KnownLength, BreaksOff, 2, 0, &[(-503, 20)]),
        (Answers(503), UnknownLength, BreaksOff, 2, 0, &[(-503, 2), (503, 18)]),
        (Answers(503), UnknownLength, Never, 2, 0, &[(503, 20)]),
        (Fails, Empty, Whole, 2, 0, &[(0, 2), (502, 18)]),
        (Head::Panics, Empty, Whole, 2, 0, &[(500, 20)]),
        (Hangs, Empty, Whole, 2, 20, &[(503, 18), (504, 2)]), // the others have left after the wait timeout
    ] {
        for differ in [false, true] {
            let guard = StampedeGuard::in_memory().fetch_timeout(Duration::from_secs(10));
            let outcome = herd(&guard, head, kind, end, differ).await;
            let case = format!("{head:?} {kind:?} {end:?} {differ}");
            assert_eq!(outcome.calls, calls, "{case}: {outcome:?}");
            assert_eq!(outcome.slowest.as_secs(), seconds, "{case}: {outcome:?}");
            assert_eq!(outcome.statuses, statuses.iter().copied().collect(), "{case}");
            if end != Never {
                at_rest(&guard).await;
            }
        }
    }
}

/// The second herd gets the failure marker.
#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_twice_blocks_for_100_ms() {
    let guard = StampedeGuard::in_memory();
    for (pause, calls, statuses) in [(0, 2, [(-200, 2), (502, 18)].into()), (10, 0, [(503, 20)].into())] {
        sleep(Duration::from_millis(pause)).await;
        let outcome = herd(&guard, Head::Answers(200), UnknownLength, End::BreaksOff, false).await;
        assert_eq!((outcome.calls, outcome.statuses), (calls, statuses));
        at_rest(&guard).await;
    }
}

const HERD: usize = 20;
const COST: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_secs(1);
