//! The reads of a lane that have no answer yet, and which of them a caller joins.

use super::answer::Found;
use crate::{
    clock,
    redis::names::shard_of,
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
    versions::ReadTerms,
};
use futures_util::task::AtomicWaker;
use quick_cache::DefaultHashBuilder;
use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    task::Poll,
};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// The reads that batch with each other, if their slots are equal too.
#[derive(Default)]
pub(super) struct Lane {
    /// Number of commands without an answer, with the batches that will be sent.
    in_flight: AtomicUsize,
    /// No handle of an answer is dropped under this lock, because the last handle takes it to remove the batch.
    reads: Mutex<Reads>,
}

/// The batches without an answer, and their names.
#[derive(Default)]
struct Reads {
    /// In the order of their numbers. The last one takes further names until it is sent.
    batches: VecDeque<Batch>,
    last: u64,
    /// The number of the batch and the index there, by the hash of the name. PERF: compared before the names, which
    /// begin and end alike.
    names: HashMap<u64, (u64, usize), DefaultHashBuilder>,
}

/// A batch: reads that are sent together.
struct Batch {
    number: u64,
    /// The slot of all names. 0 if the server is not a cluster.
    slot: u16,
    /// The names, each once.
    names: Arc<Vec<String>>,
    hashes: Vec<u64>,
    /// The highest number of a reader that came before the batch was sent.
    begun: u64,
    /// `None` until the batch is sent.
    sent_at: Option<Instant>,
    answer: WeakShared<Found>,
}

/// A ticket for one result of a batch.
pub(super) struct BatchTicket {
    pub(super) answer: Shared<Found>,
    pub(super) index: usize,
    /// The number at which the read began.
    pub(super) begun: u64,
    /// The first read of a batch, which decides when the batch is sent.
    pub(super) first: Option<BatchLeader>,
}

impl Lane {
    /// Reports whether no command is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Acquire) == 0
    }

    #[cfg(test)]
    pub(super) fn has_no_batch(&self) -> bool {
        let reads = self.reads.lock();
        reads.batches.is_empty() && reads.names.is_empty()
    }

    /// Counts a command that is not in a batch, until the guard is dropped.
    pub(super) fn begin(&self) -> InFlightCount<'_> {
        self.in_flight.fetch_add(1, AcqRel);
        InFlightCount(self)
    }

    /// Joins the read of this name that has no answer yet, if the terms allow it. Otherwise adds the name to the batch
    /// that is sent next, or begins a batch with `begin`.
    pub(super) fn join(
        self: &Arc<Self>,
        (slot, name): (u16, String),
        terms: Option<ReadTerms<'_>>,
        max_reads: usize,
        begin: impl FnOnce(Unanswered) -> (Shared<Found>, BatchLeader),
    ) -> BatchTicket {
        let (hash, begun) = (xxh3_64(name.as_bytes()), terms.map_or(0, |terms| terms.now()));
        let mut reads = self.reads.lock();
        if let Some((batch, index)) = reads.find(hash, &name)
            && let Some(ticket) = batch.join(index, begun, |begun, sent_at| {
                terms.is_some_and(|terms| terms.allow(shard_of(name.as_bytes()), begun, sent_at))
            })
        {
            return ticket;
        }
        let Reads { batches, last, names } = &mut *reads;
        let ticket = match batches.back_mut() {
            Some(batch) if batch.slot == slot && batch.hashes.len() < max_reads => {
                batch.join(batch.hashes.len(), begun, |_, _| false)
            }
            _ => None,
        };
        let ticket = ticket.unwrap_or_else(|| {
            self.in_flight.fetch_add(1, AcqRel);
            *last += 1;
            let (answer, first) = begin(Unanswered { lane: self.clone(), number: *last });
            batches.push_back(Batch {
                number: *last,
                slot,
                names: Arc::new(Vec::with_capacity(max_reads)),
                hashes: Vec::with_capacity(max_reads),
                begun,
                sent_at: None,
                answer: answer.downgrade(),
            });
            BatchTicket { answer, index: 0, begun, first: Some(first) }
        });
        if let Some(batch) = batches.back_mut()
            && let Some(list) = Arc::get_mut(&mut batch.names)
        {
            names.insert(hash, (batch.number, ticket.index));
            list.push(name);
            batch.hashes.push(hash);
        }
        ticket
    }
}

impl Reads {
    /// Returns the place of the batch with this number.
    fn position(&self, number: u64) -> Result<usize, usize> {
        self.batches.binary_search_by_key(&number, |batch| batch.number)
    }

    /// Returns the batch that has this name, and the index of the name there.
    fn find(&mut self, hash: u64, name: &str) -> Option<(&mut Batch, usize)> {
        let (number, index) = *self.names.get(&hash)?;
        let at = self.position(number).ok()?;
        let batch = &mut self.batches[at];
        (batch.names[index] == name).then_some((batch, index))
    }
}

impl Batch {
    /// Returns a ticket for the result with this index, if the batch is not sent yet, or `may_join` allows it.
    fn join(&mut self, index: usize, begun: u64, may_join: impl FnOnce(u64, Instant) -> bool) -> Option<BatchTicket> {
        match self.sent_at {
            None => self.begun = self.begun.max(begun),
            Some(sent_at) if may_join(self.begun, sent_at) => {}
            Some(_) => return None,
        }
        let answer = self.answer.upgrade()?;
        Some(BatchTicket { answer, index, begun: self.begun, first: None })
    }
}

/// A batch without an answer. Callers may join its reads until this is dropped.
pub(super) struct Unanswered {
    lane: Arc<Lane>,
    number: u64,
}

impl Unanswered {
    /// Closes the batch to further names, and returns its names. To be called just before they are sent.
    pub(super) fn close(&self) -> Arc<Vec<String>> {
        let mut reads = self.lane.reads.lock();
        let Ok(at) = reads.position(self.number) else { return Arc::default() };
        let batch = &mut reads.batches[at];
        batch.sent_at = Some(clock::now());
        batch.names.clone()
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut reads = self.lane.reads.lock();
        let batch = reads.position(self.number).ok().and_then(|at| reads.batches.remove(at));
        for hash in batch.map(|batch| batch.hashes).unwrap_or_default() {
            // Another batch may have the name too, if its reader was not allowed to join.
            if reads.names.get(&hash).is_some_and(|(number, _)| *number == self.number) {
                reads.names.remove(&hash);
            }
        }
        drop(reads);
        self.lane.in_flight.fetch_sub(1, AcqRel);
    }
}

/// A gate that opens once, when the first read of the batch has let others join.
#[derive(Default)]
pub(super) struct OpenOnce {
    open: AtomicBool,
    waiting: AtomicWaker,
}

impl OpenOnce {
    pub(super) fn opened(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| {
            self.waiting.register(cx.waker());
            if self.open.load(Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

/// The first read of a batch. If it is dropped, it wakes the other reads, which send the batch.
pub(super) struct BatchLeader(pub(super) Arc<OpenOnce>);

impl BatchLeader {
    /// Sends the batch. PERF: without a wake-up, because the first read polls the batch itself next.
    pub(super) fn send(self) {
        self.0.open.store(true, Release);
        self.0.waiting.take();
    }
}

impl Drop for BatchLeader {
    fn drop(&mut self) {
        self.0.open.store(true, Release);
        self.0.waiting.wake();
    }
}

/// A guard that counts a command as in flight, from just before it is sent until its answer.
pub(super) struct InFlightCount<'a>(&'a Lane);

impl Drop for InFlightCount<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, AcqRel);
    }
}
