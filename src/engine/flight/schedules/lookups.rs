//! Shared lookups.

use super::*;
use futures_util::FutureExt;
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

/// A connection that answers its reads when the test calls `answer`.
#[derive(Clone, Default)]
struct Connection(Arc<Mutex<Reads>>);

#[derive(Default)]
struct Reads {
    answered: bool,
    wakers: Vec<Waker>,
}

impl Connection {
    fn answer(&self) {
        self.0.lock().answered = true;
        let wakers = std::mem::take(&mut self.0.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Connection {
    type Output = Found;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Found> {
        let mut reads = self.0.lock();
        if reads.answered {
            reads.wakers.clear(); // a caller with the answer needs no wake-up
            return Poll::Ready(Ok(Vec::new()));
        }
        reads.wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

/// Seen to fail when each caller reads for itself.
#[test]
fn concurrent_lookups_share_one_read() {
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
                flights.look_up(&Arc::from([key()]), HOUR, read).await
            })
        });
        connection.answer();
        for caller in callers {
            block_on(caller).unwrap().unwrap();
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to deadlock with `futures_util`'s `Shared`, if its caller may be interrupted between the read's poll and its
/// own. Also with a share that records its waker after the poll, or that wakes no other when it is done.
#[test]
fn lookup_continues_without_the_caller_that_began_it() {
    explore(|| {
        let (flights, connection) = (Arc::new(Flights::default()), Connection::default());
        let callers = [(); 2].map(|()| {
            let (flights, connection) = (flights.clone(), connection.clone());
            spawn(async move { flights.look_up(&Arc::from([key()]), HOUR, connection).await })
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

/// Seen to fail when a lookup removes its successor from the table.
#[test]
fn lookup_that_was_unlisted_removes_no_newer_lookup() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let old = flights.look_up(&Arc::from([key()]), HOUR, Connection::default());
        flights.forget(&key());
        let leaving = thread::spawn(move || drop(old));
        let new = flights.look_up(&Arc::from([key()]), HOUR, Connection::default());
        leaving.join().unwrap();
        let joined = flights.look_up(&Arc::from([key()]), HOUR, std::future::ready(Ok(Vec::new())));
        assert!(joined.now_or_never().is_none(), "the lookup was not joined");
        drop(new);
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `forget` or `invalidated` omits the lookups, or the longer chains among them.
#[test]
fn lookup_begun_before_an_invalidation_is_not_joined() {
    let invalidations: [fn(&Flights, &Flight); 2] =
        [|flights, _| flights.forget(&key()), |_, flight| flight.invalidated()];
    let chains: [fn() -> Arc<[CacheKey]>; 2] = [|| Arc::from([key()]), || Arc::from([key(), variant_key("a")])];
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

/// Seen to fail when a lookup is found by its first cache key alone, or when its end removes all with the same first
/// key.
#[test]
fn lookups_with_equal_first_key_and_other_chains_stay_apart() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let chains: [Arc<[_]>; 3] =
            [Arc::from([key()]), Arc::from([key(), variant_key("a")]), Arc::from([key(), variant_key("b")])];
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
        assert!(joined.now_or_never().is_none(), "the lookup was not joined");
        leaving.join().unwrap();
        assert_eq!(flights.len(), 1);
        drop(stays);
        assert_eq!(flights.len(), 0);
    });
}

const HOUR: Duration = Duration::from_secs(3600);
