//! Batches concurrent reads into one command: for client and server alike, one read of many names costs far less than
//! many reads.
//!
//! No read waits for others to join it. A read is sent at once if none is in flight and the last batch had one reader.
//! Otherwise it is sent together with the reads of all tasks that are ready now, after the runtime has polled them.
//!
//! A batch belongs to no caller: a task polls it first, then each of its readers, and it goes on until the last reader has
//! left. Reads of one name are one name in the command. After it was sent, a caller joins the read of its name if the
//! resource was not invalidated since the read began, for at most the caller's `store_timeout`: the only rule of sharing
//! reads. The decoded entry belongs to the read as well. PERF: a read that is sent at once is shared with no other caller,
//! because that would cost it an allocation; so a new herd sends two reads, and then one at a time.
//!
//! In a cluster a command has names of one slot only. Its reads have lanes, so that they wait for no other node, and
//! each batch has the names of one slot.
//!
//! PERF: 175,000-181,000 hits a second instead of 128,000-166,000 with 64 tasks
//! (`docs/decisions/0029-reads-are-batched.md`).

use super::{
    connection::{error_class::store_error, reconnecting::CommandLink},
    names::shard_of,
};
use crate::{
    clock,
    store::{entry::Entry, error::StoreError},
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
    versions::ReadTerms,
};
use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::{Cmd, RedisResult, Value};
use std::sync::{
    Arc, OnceLock,
    atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{AcqRel, Acquire, Release},
    },
};
use tokio::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The batcher of reads over one link.
pub(super) struct ReadBatcher {
    pub(super) link: Arc<dyn CommandLink>,
    /// One for a server; for a cluster [`CLUSTER_LANES`], each for the slots with the same remainder.
    lanes: Box<[Arc<Lane>]>,
}

impl ReadBatcher {
    pub(super) fn over(link: Arc<dyn CommandLink>, is_cluster: bool) -> Self {
        let lanes = if is_cluster { CLUSTER_LANES } else { 1 };
        Self { link, lanes: (0..lanes).map(|_| Arc::default()).collect() }
    }

    /// Returns what is stored under the name, and the number at which the read began. A value of another type is
    /// `None`. Without terms the caller joins no read that is sent already.
    ///
    /// Cancel safe: dropping the future does not affect the other callers of its read, nor the other reads of its
    /// batch.
    pub(super) async fn get(
        &self,
        name: String,
        terms: Option<ReadTerms<'_>>,
    ) -> Result<(ReadAnswer, u64), StoreError> {
        let begun = terms.map_or(0, ReadTerms::now);
        let (lane, slot) = self.lane(&name);
        if lane.in_flight.load(Acquire) == 0 && !lane.is_shared.load(Acquire) {
            let _in_flight = lane.begin();
            return Ok((ReadAnswer::Own(get(&*self.link, &name).await?), begun));
        }
        let (answer, index, begun) = lane.join((slot, name), terms, begun, &self.link);
        Ok((ReadAnswer::Shared(answer.await?, index), begun))
    }

    /// Returns several values as they are at one moment. In a cluster their names share a slot.
    pub(super) async fn get_all(&self, names: Vec<String>) -> Result<Vec<Option<Bytes>>, StoreError> {
        if let [name] = &*names {
            return Ok(vec![self.get(name.clone(), None).await?.0.bytes().cloned()]);
        }
        let _in_flight = names.first().map(|name| self.lane(name).0.begin());
        get_together(&*self.link, &names).await.map_err(store_error)
    }

    /// Returns the lane of the name, and its slot.
    fn lane(&self, name: &str) -> (&Arc<Lane>, u16) {
        #[cfg(feature = "cluster")]
        if self.lanes.len() > 1 {
            let slot = super::names::slot_of(name.as_bytes());
            return (&self.lanes[usize::from(slot) % CLUSTER_LANES], slot);
        }
        let _ = name; // PERF: one server needs no slot
        (&self.lanes[0], 0)
    }
}

/// The answer to a read.
pub(super) enum ReadAnswer {
    /// Of a read that no other caller shares.
    Own(Option<Bytes>),
    /// Of a batch, with the index of the read.
    Shared(Arc<Vec<Stored>>, usize),
}

/// What a batch has found under one name.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) bytes: Option<Bytes>,
    /// The decoded entry, once a reader has decoded it.
    pub(super) entry: OnceLock<Entry>,
}

/// The answer to a batch, one result for each name.
type Found = Result<Arc<Vec<Stored>>, StoreError>;

impl ReadAnswer {
    /// Returns what is stored.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Own(bytes) => bytes.as_ref(),
            Self::Shared(found, index) => found[*index].bytes.as_ref(),
        }
    }

    /// Returns the place for the decoded entry, if other callers may have the same answer.
    pub(super) fn decoded(&self) -> Option<&OnceLock<Entry>> {
        match self {
            Self::Own(_) => None,
            Self::Shared(found, index) => Some(&found[*index].entry),
        }
    }
}

/// The reads that batch with each other, if their slots are equal too.
#[derive(Default)]
struct Lane {
    /// Number of commands without an answer, with the batches that will be sent.
    in_flight: AtomicUsize,
    /// Whether the last batch had several readers when it was sent. Then the next read is shared too. PERF: of 64
    /// callers of one key, 53 in place of 40 share a read.
    is_shared: AtomicBool,
    /// The batches without an answer. The last one takes further names until it is sent. No handle of an answer is dropped
    /// under this lock, because the last handle takes it to remove the batch.
    batches: Mutex<Vec<Batch>>,
}

/// A batch: reads that are sent together.
struct Batch {
    /// Among the batches without an answer.
    number: u64,
    /// The slot of all names. 0 if the server is not a cluster.
    slot: u16,
    /// The names, each once.
    names: Arc<Vec<String>>,
    /// The hashes of the names. PERF: compared before the names, which begin and end alike.
    hashes: Vec<u64>,
    /// The highest number of a reader that came before the batch was sent.
    begun: u64,
    /// Whether it had several readers before it was sent.
    is_shared: bool,
    /// When it was queued.
    queued_at: Instant,
    /// `None` until the batch is sent.
    sent_at: Option<Instant>,
    answer: WeakShared<Found>,
}

/// The answer to a batch, the index of one result, and the number at which its read began.
type Ticket = (Shared<Found>, usize, u64);

impl Lane {
    /// Counts a command that is not in a batch, until the guard is dropped.
    fn begin(&self) -> InFlightCount<'_> {
        self.in_flight.fetch_add(1, AcqRel);
        InFlightCount(self)
    }

    /// Joins the read of this name that has no answer yet, if the terms allow it. Otherwise adds the name to the batch
    /// that is sent next, or begins a batch.
    fn join(
        self: &Arc<Self>,
        (slot, name): (u16, String),
        terms: Option<ReadTerms<'_>>,
        begun: u64,
        link: &Arc<dyn CommandLink>,
    ) -> Ticket {
        let hash = xxh3_64(name.as_bytes());
        let mut batches = self.batches.lock();
        let known = batches.iter_mut().rev().find_map(|batch| Some((batch.position(hash, &name)?, batch)));
        if let Some((index, batch)) = known
            && let Some(ticket) = batch.join(index, begun, |begun, sent_at| {
                terms.is_some_and(|terms| terms.allow(shard_of(name.as_bytes()), begun, sent_at))
            })
        {
            return ticket;
        }
        let ticket = match batches.last_mut() {
            Some(batch) if batch.slot == slot && batch.hashes.len() < MAX_READS => {
                batch.join(batch.hashes.len(), begun, |_, _| false)
            }
            _ => None,
        };
        let ticket = ticket.unwrap_or_else(|| {
            self.in_flight.fetch_add(1, AcqRel);
            let number = batches.last().map_or(0, |batch| batch.number + 1);
            let answer = Unanswered { lane: self.clone(), number }.send(link.clone());
            batches.push(Batch {
                number,
                slot,
                names: Arc::new(Vec::with_capacity(MAX_READS)),
                hashes: Vec::with_capacity(MAX_READS),
                begun,
                is_shared: false,
                queued_at: clock::now(),
                sent_at: None,
                answer: answer.downgrade(),
            });
            (answer, 0, begun)
        });
        if let Some(batch) = batches.last_mut()
            && let Some(list) = Arc::get_mut(&mut batch.names)
        {
            list.push(name);
            batch.hashes.push(hash);
        }
        ticket
    }
}

impl Batch {
    /// Returns the index of the name.
    fn position(&self, hash: u64, name: &str) -> Option<usize> {
        let index = self.hashes.iter().position(|known| *known == hash)?;
        (self.names[index] == name).then_some(index)
    }

    /// Returns a ticket for the result with this index, if the batch is not sent yet, or `may_join` allows it.
    fn join(&mut self, index: usize, begun: u64, may_join: impl FnOnce(u64, Instant) -> bool) -> Option<Ticket> {
        match self.sent_at {
            None => (self.begun, self.is_shared) = (self.begun.max(begun), true),
            Some(sent_at) if may_join(self.begun, sent_at) => {}
            Some(_) => return None,
        }
        let answer = self.answer.upgrade()?;
        if self.sent_at.is_none() && self.queued_at.elapsed() > MAX_QUEUED {
            self.queued_at = clock::now();
            answer.queue();
        }
        Some((answer, index, self.begun))
    }
}

/// A batch without an answer. Callers may join its reads until this is dropped.
struct Unanswered {
    lane: Arc<Lane>,
    number: u64,
}

impl Unanswered {
    /// Sends the batch, once the runtime has polled the tasks that are ready now.
    fn send(self, link: Arc<dyn CommandLink>) -> Shared<Found> {
        let answer = Shared::new(async move {
            let found = match &self.close()[..] {
                [name] => get(&*link, name).await.map(|found| vec![found]),
                names => get_or_one_by_one(&*link, names).await,
            };
            drop(self); // before the callers learn the answer, so that no caller joins a read that has failed
            let stored = |bytes| Stored { bytes, entry: OnceLock::new() };
            found.map(|found| Arc::new(found.into_iter().map(stored).collect()))
        });
        answer.queue();
        answer
    }

    /// Closes the batch to further names, and returns its names. To be called just before they are sent.
    fn close(&self) -> Arc<Vec<String>> {
        let mut batches = self.lane.batches.lock();
        let Some(batch) = batches.iter_mut().find(|batch| batch.number == self.number) else { return Arc::default() };
        batch.sent_at = Some(clock::now());
        self.lane.is_shared.store(batch.is_shared, Release);
        batch.names.clone()
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.lane.batches.lock().retain(|batch| batch.number != self.number);
        self.lane.in_flight.fetch_sub(1, AcqRel);
    }
}

/// A guard that counts a command as in flight, from just before it is sent until its answer.
struct InFlightCount<'a>(&'a Lane);

impl Drop for InFlightCount<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, AcqRel);
    }
}

async fn get(link: &dyn CommandLink, name: &str) -> Result<Option<Bytes>, StoreError> {
    match link.read(redis::cmd("GET").arg(name)).await {
        Ok(Value::BulkString(bytes)) => Ok(Some(bytes.into())),
        Ok(Value::Nil) => Ok(None),
        // A reply of another type does not belong to this request.
        Ok(_) => {
            link.verify().await;
            Ok(None)
        }
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) => Err(store_error(error)),
    }
}

/// Returns several values; one of a wrong type is nil in the reply of MGET.
async fn get_together(link: &dyn CommandLink, names: &[String]) -> RedisResult<Vec<Option<Bytes>>> {
    let mut command = Cmd::with_capacity(1 + names.len(), names.iter().map(String::len).sum::<usize>() + 4);
    match link.read(command.arg("MGET").arg(names)).await? {
        Value::Array(found) if found.len() == names.len() => Ok(found.into_iter().map(bytes).collect()),
        _ => {
            link.verify().await;
            Ok(vec![None; names.len()])
        }
    }
}

/// Returns several values. Asks for them one by one if the server refuses to return them together: the right to one of
/// the names may be missing, or the names of a migrating slot are on two nodes.
async fn get_or_one_by_one(link: &dyn CommandLink, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
    match get_together(link, names).await.map_err(store_error) {
        Err(error) if error.is_refused() => try_join_all(names.iter().map(|name| get(link, name))).await,
        found => found,
    }
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

/// How long a batch is queued in one runtime before its next reader queues it in its own: a runtime may be blocked.
const MAX_QUEUED: Duration = Duration::from_millis(1);
/// Maximum number of names in a batch, because each read waits for the whole batch.
const MAX_READS: usize = 32;
/// Number of lanes in a cluster. A lane is shared by 64 slots; a read that finds another slot of its lane in flight
/// begins a batch of its own.
const CLUSTER_LANES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        redis::connection::{clock::ServerClock, reconnecting::Request},
        store::error::BoxFuture,
        versions::{Shard, Versions},
    };
    #[cfg(feature = "cluster")]
    use futures_util::future::Either;
    use futures_util::future::join_all;
    use shuttle::future::spawn;
    use std::{pin::pin, sync::atomic::Ordering::Relaxed};
    use tokio::{sync::Semaphore, task::yield_now};

    /// A server that answers each name with itself, or with another value, when the test permits it. It may answer MGET
    /// with an error.
    struct FakeServer {
        commands: Mutex<Vec<String>>,
        value: Mutex<Option<&'static [u8]>>,
        invalidated: AtomicBool,
        may_answer: Semaphore,
        refusal: Option<&'static [u8]>,
    }

    impl CommandLink for FakeServer {
        fn execute<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, RedisResult<Value>> {
            let Request::Read(cmd) = request else { panic!("only reads") };
            Box::pin(async move {
                let word = |arg| match arg {
                    redis::Arg::Simple(word) => Some(String::from_utf8_lossy(word).into_owned()),
                    _ => None,
                };
                let words: Vec<_> = cmd.args_iter().filter_map(word).collect();
                self.commands.lock().push(words.join(" "));
                if words[1].contains(HANGING) {
                    std::future::pending::<()>().await;
                }
                self.may_answer.acquire().await.expect("the semaphore stays open").forget();
                let stored = *self.value.lock();
                let value = |name: &String| Value::BulkString(stored.unwrap_or(name.as_bytes()).to_vec());
                for _ in 0..4 {
                    yield_now().await; // the answer is on its way
                }
                match (&*words[0], self.refusal) {
                    ("GET", _) => Ok(value(&words[1])),
                    (_, Some(refusal)) => redis::parse_redis_value(refusal)?.extract_error(),
                    _ => Ok(Value::Array(words[1..].iter().map(value).collect())),
                }
            })
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async { panic!("no reply is in doubt") })
        }

        fn connection(&self, _: &[u8]) -> u64 {
            1
        }

        fn clock(&self, _: &dyn Fn() -> String) -> Arc<ServerClock> {
            Arc::default()
        }
    }

    fn reads(refusal: Option<&'static [u8]>, is_cluster: bool) -> (Arc<FakeServer>, Arc<ReadBatcher>) {
        let (commands, value, invalidated) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let server = Arc::new(FakeServer { commands, value, invalidated, may_answer: Semaphore::new(0), refusal });
        (server.clone(), Arc::new(ReadBatcher::over(server, is_cluster)))
    }

    /// Reads these names at one moment, while another read is in flight.
    async fn read_at_once(reads: &Arc<ReadBatcher>, server: &FakeServer, names: impl Iterator<Item = String>) {
        let name = |found: Option<Bytes>| found.map(|found| String::from_utf8_lossy(&found).into_owned());
        let pending = names.map(|expected| async move {
            let found = get(reads, &expected).await.expect("an answer");
            assert_eq!(name(found), Some(expected));
        });
        send_next_at_once(reads);
        let mut alone = pin!(get(reads, "alone"));
        assert!(futures_util::poll!(&mut alone).is_pending());
        server.may_answer.add_permits(1000);
        join_all(pending).await;
        assert_eq!(name(alone.await.expect("an answer")).as_deref(), Some("alone"));
        assert!(is_idle(reads));
        server.may_answer.forget_permits(1000);
    }

    #[tokio::test]
    async fn reads_of_one_moment_are_one_command() {
        let (server, reads) = reads(None, false);
        read_at_once(&reads, &server, (0..70).map(|n| n.to_string())).await;
        let commands = server.commands.lock().clone();
        let mut names: Vec<_> = commands.iter().map(|command| command.split(' ').count() - 1).collect();
        names.sort_unstable();
        assert_eq!(names, [1, 6, 32, 32], "{commands:?}");
    }

    #[tokio::test]
    async fn reads_are_sent_one_by_one_when_mget_is_refused() {
        let (server, reads) = reads(Some(b"-CROSSSLOT no\r\n"), false);
        read_at_once(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
        assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b", "GET a", "GET b"]);
        read_at_once(&reads, &server, ["c", "d"].into_iter().map(Into::into)).await;
        assert_eq!(server.commands.lock()[4..], ["GET alone", "MGET c d", "GET c", "GET d"]);
    }

    /// Seen to fail when each read adds its name to the batch.
    #[tokio::test]
    async fn reads_of_one_name_are_one_name_in_the_batch() {
        let (server, reads) = reads(None, false);
        let names = (0..100).map(|n| ["a", "b", "c"][n % 3].to_owned());
        read_at_once(&reads, &server, names).await;
        assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b c"]);
    }

    /// Seen to fail when each read that finds none in flight is sent at once, and when none is after a shared one.
    #[tokio::test]
    async fn read_is_shared_at_once_while_the_last_batch_was() {
        let (server, reads) = reads(None, false);
        server.may_answer.add_permits(10);
        for (callers, commands) in [(3, 2), (3, 1), (1, 1), (3, 2)] {
            server.commands.lock().clear();
            let found = join_all((0..callers).map(|_| get(&reads, "a"))).await;
            assert!(found.into_iter().all(|found| found.is_ok_and(|found| found.is_some())));
            assert_eq!(*server.commands.lock(), vec!["GET a"; commands]);
        }
        assert!(is_idle(&reads));
    }

    /// A read of `a` that was sent, beside another read, in a process that has invalidated something else.
    async fn sent_read<'a>(
        server: &FakeServer,
        reads: &'a ReadBatcher,
        versions: &'a Versions,
    ) -> (BoxFuture<'a, Found>, BoxFuture<'a, Found>) {
        versions.bump(resource("b"));
        let mut alone: BoxFuture<'_, _> = Box::pin(get(reads, "alone"));
        assert!(futures_util::poll!(&mut alone).is_pending());
        let mut sent: BoxFuture<'_, _> = Box::pin(join(reads, ReadTerms::new(versions, STORE_TIMEOUT)));
        while server.commands.lock().len() < 2 {
            assert!(futures_util::poll!(&mut sent).is_pending());
            yield_now().await;
        }
        (alone, sent)
    }

    /// Sends a read of `a`, calls `then`, and begins another read of `a`, with these versions and this store timeout.
    /// Returns how often `a` was read.
    async fn reads_of_two_callers<'a>(
        (server, reads): (&FakeServer, &'a ReadBatcher),
        versions: (&'a Versions, &'a Versions),
        store_timeout: Duration,
        then: impl FnOnce(),
    ) -> usize {
        let (alone, sent) = sent_read(server, reads, versions.0).await;
        then();
        let mut joining = pin!(join(reads, ReadTerms::new(versions.1, store_timeout)));
        assert!(futures_util::poll!(&mut joining).is_pending());
        server.may_answer.add_permits(10);
        for read in [alone, sent, Box::pin(joining)] {
            assert!(read.await.is_ok_and(|found| found.is_some()));
        }
        assert!(is_idle(reads));
        server.commands.lock().iter().filter(|command| *command == "GET a").count()
    }

    /// Seen to fail (two reads) when a batch that is sent cannot be joined.
    #[test]
    fn read_in_flight_is_joined() {
        explore(async || {
            let ((server, reads), versions) = (reads(None, false), Versions::default());
            let count = reads_of_two_callers((&server, &reads), (&versions, &versions), STORE_TIMEOUT, || {});
            assert_eq!(count.await, 1);
        });
    }

    /// Seen to fail (one read) when the terms ask for the age of the read only.
    #[test]
    fn read_is_not_joined_after_an_invalidation() {
        explore(async || {
            let invalidations: [fn(&Versions); 2] =
                [|versions| versions.bump(resource("a")), |versions| _ = versions.bump_all()];
            for invalidate in invalidations {
                let ((server, reads), versions) = (reads(None, false), Versions::default());
                let then = || invalidate(&versions);
                let count = reads_of_two_callers((&server, &reads), (&versions, &versions), STORE_TIMEOUT, then);
                assert_eq!(count.await, 2);
            }
        });
    }

    /// Seen to fail (one read) when each engine counts from zero, because the first one has counted further.
    #[test]
    fn read_of_another_engine_is_joined_by_the_callers_numbers() {
        explore(async || {
            let versions = [Versions::default(), Versions::default()];
            for _ in 0..5 {
                versions[0].bump(resource("b"));
            }
            for (invalidated, expected) in [(0, 1), (1, 2)] {
                let (server, reads) = reads(None, false);
                let then = || versions[invalidated].bump(resource("a"));
                let engines = (&versions[0], &versions[1]);
                let count = reads_of_two_callers((&server, &reads), engines, STORE_TIMEOUT, then);
                assert_eq!(count.await, expected, "engine {invalidated}");
            }
        });
    }

    /// Seen to fail (one read) when a read in flight is joined at any age.
    #[test]
    fn read_is_not_joined_after_the_store_timeout() {
        explore(async || {
            let ((server, reads), versions) = (reads(None, false), Versions::default());
            let count = reads_of_two_callers((&server, &reads), (&versions, &versions), Duration::ZERO, || {});
            assert_eq!(count.await, 2);
        });
    }

    /// Seen to fail (one read) when a caller without terms joins a read that is sent.
    #[test]
    fn read_without_terms_is_sent_after_it_was_asked_for() {
        explore(async || {
            let ((server, reads), versions) = (reads(None, false), Versions::default());
            let (alone, sent) = sent_read(&server, &reads, &versions).await;
            let mut asked = pin!(get(&reads, "a"));
            assert!(futures_util::poll!(&mut asked).is_pending());
            server.may_answer.add_permits(10);
            for read in [alone, sent, Box::pin(asked)] {
                assert!(read.await.is_ok_and(|found| found.is_some()));
            }
            assert_eq!(*server.commands.lock(), ["GET alone", "GET a", "GET a"]);
        });
    }

    /// Seen to fail, with a deadlock, when only the first caller polls the read.
    #[test]
    fn read_goes_on_when_its_first_caller_leaves() {
        explore(async || {
            let ((server, reads), versions) = (reads(None, false), Arc::new(Versions::default()));
            let (alone, sent) = sent_read(&server, &reads, &versions).await;
            let joined = [(); 2].map(|()| {
                let (reads, versions) = (reads.clone(), versions.clone());
                spawn(async move { join(&reads, ReadTerms::new(&versions, STORE_TIMEOUT)).await })
            });
            for _ in 0..8 {
                yield_now().await; // the other callers may be polled
            }
            drop(sent);
            server.may_answer.add_permits(10);
            for joined in joined {
                assert!(joined.await.expect("no panic").is_ok_and(|found| found.is_some()));
            }
            alone.await.expect("an answer");
            assert!(server.commands.lock().len() <= 3, "a caller may come after the read has ended");
            assert!(is_idle(&reads));
        });
    }

    /// Reads beside an invalidation. Seen to fail when the terms ask for the age of the read only, and when a caller that
    /// joins a read counts with its own number.
    #[test]
    fn joined_reads_hide_no_invalidation() {
        crate::sync::schedules::explore(|| shuttle::future::block_on(reads_beside_an_invalidation()));
    }

    async fn reads_beside_an_invalidation() {
        let ((server, reads), versions) = (reads(None, false), Arc::new(Versions::default()));
        server.may_answer.add_permits(100);
        let callers = [(); 3].map(|()| {
            let (server, reads, versions) = (server.clone(), reads.clone(), versions.clone());
            spawn(async move {
                for _ in 0..3 {
                    let invalidated = server.invalidated.load(Relaxed);
                    let found = join(&reads, ReadTerms::new(&versions, STORE_TIMEOUT)).await.expect("an answer");
                    assert!(!invalidated || found.as_deref() == Some(NEW));
                }
            })
        });
        yield_now().await;
        *server.value.lock() = Some(NEW);
        versions.bump(resource("a"));
        server.invalidated.store(true, Relaxed);
        for caller in callers {
            caller.await.expect("no stale answer");
        }
        assert!(is_idle(&reads));
    }

    type Found = Result<Option<Bytes>, StoreError>;

    async fn get(reads: &ReadBatcher, name: &str) -> Found {
        Ok(reads.get(name.to_owned(), None).await?.0.bytes().cloned())
    }

    /// Reads `a`, and joins a read in flight if the terms allow it.
    async fn join(reads: &ReadBatcher, terms: ReadTerms<'_>) -> Found {
        Ok(reads.get("a".to_owned(), Some(terms)).await?.0.bytes().cloned())
    }

    fn resource(name: &str) -> Shard {
        shard_of(name.as_bytes())
    }

    /// Seen to fail, with a deadlock, when the first read alone sends the batch.
    #[test]
    fn reads_of_a_batch_survive_its_dropped_first_read() {
        explore(async || {
            let (server, reads) = reads(None, false);
            let mut alone = pin!(get(&reads, "alone"));
            assert!(futures_util::poll!(&mut alone).is_pending());
            let mut first = Box::pin(get(&reads, "a"));
            assert!(futures_util::poll!(&mut first).is_pending());
            server.may_answer.add_permits(10);
            let others = ["b", "c"].map(|name| {
                let reads = reads.clone();
                spawn(async move { get(&reads, name).await })
            });
            for _ in 0..8 {
                yield_now().await; // the other reads may be polled
            }
            drop(first);
            for other in others {
                assert!(other.await.expect("no panic").is_ok());
            }
            alone.await.expect("an answer");
            assert!(is_idle(&reads));
        });
    }

    /// A caller may hold its read: in a stream of reads, for example, whose consumer awaits another read.
    ///
    /// Seen to fail, without end, when the first read alone sends the batch.
    #[tokio::test]
    async fn batch_is_sent_although_its_first_read_is_not_polled() {
        let (server, reads) = reads(None, false);
        let [mut alone, mut held] = ["alone", "a"].map(|name| Box::pin(get(&reads, name)));
        assert!(futures_util::poll!(&mut alone).is_pending() && futures_util::poll!(&mut held).is_pending());
        server.may_answer.add_permits(10);
        assert!(get(&reads, "b").await.is_ok_and(|found| found.is_some()));
        for read in [alone, held] {
            assert!(read.await.is_ok_and(|found| found.is_some()));
        }
        assert!(is_idle(&reads));
    }

    /// Seen to fail (without end) when a batch is queued once.
    #[test]
    fn batch_is_sent_although_its_runtime_is_not_driven() {
        let runtimes = [(); 2].map(|()| tokio::runtime::Builder::new_current_thread().build().expect("a runtime"));
        let (server, reads) = reads(None, false);
        let mut blocked = ["alone", "a"].map(|name| Box::pin(get(&reads, name)));
        runtimes[0].block_on(async {
            for read in &mut blocked {
                assert!(futures_util::poll!(read).is_pending());
            }
        });
        runtimes[1].block_on(async {
            while server.commands.lock().len() == 1 {
                assert!(futures_util::poll!(Box::pin(get(&reads, "b"))).is_pending());
                yield_now().await;
            }
        });
        assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b"]);
    }

    /// Seen to fail, with one command for each name, without batches in a cluster, and with a name of another slot in
    /// a command if the slots of a lane share a batch.
    #[cfg(feature = "cluster")]
    #[tokio::test]
    async fn reads_of_one_slot_are_one_command_in_a_cluster() {
        let (server, reads) = reads(None, true);
        let (lane_mate, a, b) = (lane_mate("alone"), "{alone}:a".to_owned(), "{alone}:b".to_owned());
        let other_lane = "b".to_owned();
        read_at_once(&reads, &server, [a.clone(), b, other_lane, lane_mate.clone(), a].into_iter()).await;
        let mut commands = server.commands.lock().clone();
        commands.sort();
        let alone = ["GET alone", "GET b", "MGET {alone}:a {alone}:b"].map(str::to_owned);
        let mut expected = [&alone[..], &[format!("GET {lane_mate}")]].concat();
        expected.sort();
        assert_eq!(commands, expected);
    }

    /// Seen to fail, with a deadlock, if the slots of a lane share a batch.
    #[cfg(feature = "cluster")]
    #[test]
    fn node_that_hangs_holds_up_no_read_of_another_node() {
        explore(async || {
            let (server, reads) = reads(None, true);
            let hanging = ["{hanging}:0", "{hanging}:1"].map(|name| Box::pin(get(&reads, name)));
            let lane_mate = lane_mate(HANGING);
            let answers = ["a", &lane_mate].map(|name| get(&reads, name));
            server.may_answer.add_permits(10);
            let mut both = pin!(futures_util::future::select(join_all(answers), join_all(hanging)));
            let Either::Left((answers, hanging)) = both.as_mut().await else { panic!("the node has answered") };
            assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(Option::is_some)));
            drop(hanging);
            assert!(is_idle(&reads));
        });
    }

    /// Returns a name of another slot that shares the lane.
    #[cfg(feature = "cluster")]
    fn lane_mate(name: &str) -> String {
        let slot = |name: &str| crate::redis::names::slot_of(name.as_bytes());
        let is_mate =
            |mate: &String| slot(mate) != slot(name) && usize::from(slot(mate) ^ slot(name)) % CLUSTER_LANES == 0;
        (0..).map(|n: u32| n.to_string()).find(is_mate).expect("one of all numbers")
    }

    /// Seen to fail if the missing right to one name ends the batches.
    #[tokio::test]
    async fn reads_are_batched_again_after_a_right_to_a_name_was_missing() {
        let no_right = b"-NOPERM No permissions to access a key\r\n";
        let (server, reads) = reads(Some(no_right), false);
        for _ in 0..2 {
            read_at_once(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
            assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b", "GET a", "GET b"]);
            server.commands.lock().clear();
        }
    }

    /// Seen to fail when the error of MGET is the answer of its reads.
    #[tokio::test]
    async fn reads_of_a_migrating_slot_are_sent_one_by_one() {
        let (server, reads) = reads(Some(b"-TRYAGAIN the slot migrates\r\n"), false);
        for _ in 0..2 {
            read_at_once(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
            assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b", "GET a", "GET b"]);
            server.commands.lock().clear();
        }
    }

    /// Does what a batch of one reader would do.
    fn send_next_at_once(reads: &ReadBatcher) {
        reads.lanes.iter().for_each(|lane| lane.is_shared.store(false, Release));
    }

    fn is_idle(reads: &ReadBatcher) -> bool {
        reads.lanes.iter().all(|lane| lane.in_flight.load(Acquire) == 0 && lane.batches.lock().is_empty())
    }

    const NEW: &[u8] = b"new";
    const STORE_TIMEOUT: Duration = Duration::from_secs(3600);
    /// A name that the server never answers.
    const HANGING: &str = "hanging";

    /// Runs the test under 20 schedules.
    fn explore<Fut: Future<Output = ()>>(test: impl Fn() -> Fut + Send + Sync + Copy + 'static) {
        shuttle::check_random(move || shuttle::future::block_on(test()), 20);
    }
}
