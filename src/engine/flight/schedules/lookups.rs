//! Reads that are shared.

use super::*;
use futures_util::FutureExt;
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

/// A connection: reads are answered when it says so.
#[derive(Clone, Default)]
struct Connection(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Connection {
    fn answer(&self) {
        let mut state = lock(&self.0);
        state.0 = true;
        let wakers = std::mem::take(&mut state.1);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Connection {
    type Output = Found;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Found> {
        let mut state = lock(&self.0);
        if state.0 {
            return Poll::Ready(Ok(None));
        }
        state.1.push(cx.waker().clone());
        Poll::Pending
    }
}

/// Seen to fail when each one reads for himself.
#[test]
fn one_reads_at_a_time() {
    explore(|| {
        let (flights, connection, reading) =
            (Arc::new(Flights::default()), Connection::default(), Computing::default());
        let callers = [(); 3].map(|()| {
            let (flights, connection, reading) = (flights.clone(), connection.clone(), reading.clone());
            spawn(async move {
                let read = async move {
                    reading.once().await;
                    connection.await
                };
                flights.look_up(&at(), HOUR, read).await
            })
        });
        connection.answer();
        for caller in callers {
            block_on(caller).unwrap().unwrap();
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to deadlock when a lookup ends with its first caller.
#[test]
fn a_read_goes_on_without_whoever_began_it() {
    explore(|| {
        let (flights, connection) = (Arc::new(Flights::default()), Connection::default());
        let callers = [(); 2].map(|()| {
            let (flights, connection) = (flights.clone(), connection.clone());
            spawn(async move { flights.look_up(&at(), HOUR, connection).await })
        });
        let answering = thread::spawn(move || connection.answer());
        callers[0].abort();
        answering.join().unwrap();
        for caller in callers {
            let _ = block_on(caller);
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `forget`, or `gone`, leaves the lookups out.
#[test]
fn nobody_joins_a_read_that_began_before_an_invalidation() {
    let invalidations: [fn(&Flights, &Flight); 2] = [|flights, _| flights.forget(&at()), |_, flight| flight.gone()];
    for invalidate in invalidations {
        explore(move || {
            let flights = Arc::new(Flights::default());
            let flight = open(&flights, Scope::Fleet);
            let never = flights.look_up(&at(), HOUR, Connection::default());
            let invalidated = Arc::new(AtomicBool::new(false));
            let caller = thread::spawn({
                let (flights, invalidated) = (flights.clone(), invalidated.clone());
                move || {
                    let afterwards = invalidated.load(SeqCst);
                    let own = flights.look_up(&at(), HOUR, std::future::ready(Ok(None)));
                    assert!(own.now_or_never().is_some() || !afterwards);
                }
            });
            invalidate(&flights, &flight);
            invalidated.store(true, SeqCst);
            caller.join().unwrap();
            drop((flight, never));
            assert_eq!(flights.len(), 0);
        });
    }
}

const HOUR: Duration = Duration::from_secs(3600);
