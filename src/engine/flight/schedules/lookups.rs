//! Reads that are shared.

use super::*;
use futures_util::FutureExt;
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

/// A connection that answers its reads when it is told to.
#[derive(Clone, Default)]
struct Connection(Arc<Mutex<Reads>>);

#[derive(Default)]
struct Reads {
    answered: bool,
    wakers: Vec<Waker>,
}

impl Connection {
    fn answer(&self) {
        lock(&self.0).answered = true;
        let wakers = std::mem::take(&mut lock(&self.0).wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Connection {
    type Output = Found;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Found> {
        let mut reads = lock(&self.0);
        if reads.answered {
            reads.wakers.clear(); // who has the answer need not be woken
            return Poll::Ready(Ok(Vec::new()));
        }
        reads.wakers.push(cx.waker().clone());
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
                flights.look_up(&Arc::from([at()]), HOUR, read).await
            })
        });
        connection.answer();
        for caller in callers {
            block_on(caller).unwrap().unwrap();
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to deadlock with `futures_util`'s `Shared`, if its caller may be interrupted between the read's poll and its own,
/// and with a share that notes its waker after it has polled, or wakes nobody when it is done.
#[test]
fn a_read_goes_on_without_whoever_began_it() {
    explore(|| {
        let (flights, connection) = (Arc::new(Flights::default()), Connection::default());
        let callers = [(); 2].map(|()| {
            let (flights, connection) = (flights.clone(), connection.clone());
            spawn(async move { flights.look_up(&Arc::from([at()]), HOUR, connection).await })
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

/// Seen to fail when a lookup takes what is in its place for itself.
#[test]
fn a_read_that_was_forgotten_takes_no_other_out_of_the_map() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let old = flights.look_up(&Arc::from([at()]), HOUR, Connection::default());
        flights.forget(&at());
        let leaving = thread::spawn(move || drop(old));
        let new = flights.look_up(&Arc::from([at()]), HOUR, Connection::default());
        leaving.join().unwrap();
        let joined = flights.look_up(&Arc::from([at()]), HOUR, std::future::ready(Ok(Vec::new())));
        assert!(joined.now_or_never().is_none(), "it has made a read of its own");
        drop(new);
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `forget`, or `gone`, leaves the lookups out, or those that go on to what is beneath.
#[test]
fn nobody_joins_a_read_that_began_before_an_invalidation() {
    let invalidations: [fn(&Flights, &Flight); 2] = [|flights, _| flights.forget(&at()), |_, flight| flight.gone()];
    let chains: [fn() -> Arc<[Address]>; 2] = [|| Arc::from([at()]), || Arc::from([at(), beneath("a")])];
    explore(move || {
        let (invalidate, chain) = (any(&invalidations), any(&chains)());
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        let never = flights.look_up(&chain, HOUR, Connection::default());
        let invalidated = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (flights, invalidated) = (flights.clone(), invalidated.clone());
            move || {
                let afterwards = invalidated.load(SeqCst);
                let own = flights.look_up(&chain, HOUR, std::future::ready(Ok(Vec::new())));
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

/// Seen to fail when a read is found by its first address alone, or takes with it all that begin there.
#[test]
fn reads_that_begin_alike_and_go_on_elsewhere_leave_each_other_alone() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let chains: [Arc<[_]>; 3] =
            [Arc::from([at()]), Arc::from([at(), beneath("a")]), Arc::from([at(), beneath("b")])];
        let callers = chains.clone().map(|chain| {
            let (flights, read) = (flights.clone(), std::future::ready(Ok(vec![None; chain.len()])));
            spawn(async move { flights.look_up(&chain, HOUR, read).await })
        });
        for (caller, chain) in callers.into_iter().zip(&chains) {
            assert_eq!(block_on(caller).unwrap().unwrap().len(), chain.len());
        }
        assert_eq!(flights.len(), 0);
        let stays = flights.look_up(&chains[1], HOUR, Connection::default());
        let leaving = flights.look_up(&chains[2], HOUR, Connection::default());
        let leaving = thread::spawn(move || drop(leaving));
        let joined = flights.look_up(&chains[1], HOUR, std::future::ready(Ok(Vec::new())));
        assert!(joined.now_or_never().is_none(), "it has made a read of its own");
        leaving.join().unwrap();
        assert_eq!(flights.len(), 1);
        drop(stays);
        assert_eq!(flights.len(), 0);
    });
}

const HOUR: Duration = Duration::from_secs(3600);
