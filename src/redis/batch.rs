//! Batches concurrent reads into one command: for client and server alike, one read of many names costs far less than
//! many reads.
//!
//! No read waits for others to join it. A read is sent at once if none is in flight. Otherwise it is sent together with
//! the reads of all tasks that are ready now, after the runtime has polled them. Reads of one name are one name in the
//! command, if they are asked for before it is sent.
//!
//! In a cluster a command has names of one slot only. Its reads have lanes, so that they wait for no other node, and
//! each batch has the names of one slot.
//!
//! PERF: 175,000-181,000 hits a second instead of 128,000-166,000 with 64 tasks
//! (`docs/decisions/0029-reads-are-batched.md`; names: `docs/decisions/0086-reads-share-names.md`).

use super::connection::{
    error_class::{is_unsupported, store_error},
    reconnecting::CommandLink,
};
use crate::{
    store::error::StoreError,
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use std::{
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    task::Poll,
};
use xxhash_rust::xxh3::xxh3_64;

/// The batcher of reads over one link.
pub(super) struct ReadBatcher {
    link: Arc<dyn CommandLink>,
    /// One for a server; for a cluster [`CLUSTER_LANES`], each for the slots with the same remainder.
    lanes: Box<[Lane]>,
    /// Whether the server takes several names in one command.
    together: Arc<AtomicBool>,
}

/// The reads that batch with each other, if their slots are equal too.
#[derive(Default)]
struct Lane {
    open: Mutex<Option<Batch>>,
    in_flight: Arc<AtomicUsize>,
}

/// A batch: reads that will be sent together.
struct Batch {
    /// The slot of all names. 0 if the server is not a cluster.
    slot: u16,
    /// `None` once they are sent.
    names: Arc<Mutex<Option<Names>>>,
    answer: WeakShared<Found>,
}

/// The names of a batch, each once.
struct Names {
    list: Vec<String>,
    /// PERF: compared before the names, which begin and end alike.
    hashes: Vec<u64>,
}

type Found = Result<Arc<Vec<Option<Bytes>>>, StoreError>;

impl ReadBatcher {
    pub(super) fn over(link: Arc<dyn CommandLink>, is_cluster: bool) -> Self {
        let lanes = if is_cluster { CLUSTER_LANES } else { 1 };
        let lanes = (0..lanes).map(|_| Lane::default()).collect();
        Self { link, lanes, together: Arc::new(AtomicBool::new(true)) }
    }

    /// Returns what is stored under the name. A value of another type is `None`.
    ///
    /// Cancel safe: dropping the future does not affect the other reads of its batch.
    pub(super) async fn get(&self, name: String) -> Result<Option<Bytes>, StoreError> {
        let (lane, slot) = self.lane(&name);
        if !self.together.load(Relaxed) || lane.in_flight.load(Acquire) == 0 {
            let _in_flight = InFlightCount::begin(&lane.in_flight);
            return get(&*self.link, &name).await;
        }
        let (answer, number) = match self.join(lane, slot, name) {
            BatchTicket::Joined(answer, number) => (answer, number),
            BatchTicket::First(answer, first) => {
                tokio::task::yield_now().await;
                first.send();
                (answer, 0)
            }
        };
        Ok(answer.await?[number].clone())
    }

    /// Returns several values as they are at one moment. In a cluster their names share a slot.
    pub(super) async fn get_all(&self, mut names: Vec<String>) -> Result<Vec<Option<Bytes>>, StoreError> {
        match names.pop() {
            Some(name) if names.is_empty() => Ok(vec![self.get(name).await?]),
            last => {
                names.extend(last);
                let _in_flight = names.first().map(|name| InFlightCount::begin(&self.lane(name).0.in_flight));
                get_together(&*self.link, &names).await.map_err(store_error)
            }
        }
    }

    /// Returns the lane of the name, and its slot.
    fn lane(&self, name: &str) -> (&Lane, u16) {
        #[cfg(feature = "cluster")]
        if self.lanes.len() > 1 {
            let slot = super::names::slot_of(name);
            return (&self.lanes[usize::from(slot) % CLUSTER_LANES], slot);
        }
        let _ = name; // PERF: one server needs no slot
        (&self.lanes[0], 0)
    }

    /// Adds the name to the open batch, unless it is in the batch already, or begins a batch with it.
    fn join(&self, lane: &Lane, slot: u16, mut name: String) -> BatchTicket {
        let mut open = lane.open.lock();
        if let Some(batch) = &*open
            && batch.slot == slot
            && let Some(answer) = batch.answer.upgrade()
            && let Some(names) = &mut *batch.names.lock()
        {
            match names.add(name) {
                Ok(number) => return BatchTicket::Joined(answer, number),
                Err(rejected) => name = rejected,
            }
        }
        let names = Arc::new(Mutex::new(Some(Names::of(name))));
        let gate = Arc::new(OpenOnce::default());
        let in_flight = InFlightCount::begin(&lane.in_flight);
        let (link, together, batch_names, awaited) =
            (self.link.clone(), self.together.clone(), names.clone(), gate.clone());
        let answer = Shared::new(async move {
            awaited.opened().await;
            let names = batch_names.lock().take().map_or_else(Vec::new, |names| names.list);
            let found = match &names[..] {
                [name] => get(&*link, name).await.map(|found| vec![found]),
                names => match get_together(&*link, names).await {
                    // Of a slot that has moved, no read would have another answer.
                    Err(error) if matches!(error.kind(), MOVED | ASK) => Err(store_error(error)),
                    Err(error) => {
                        let (is_final, try_again) = (is_final(&error), error.kind() == TRY_AGAIN);
                        let error = store_error(error);
                        if is_final {
                            together.store(false, Relaxed);
                        }
                        // While a slot migrates, its names may be on two nodes. Rights may be missing to one name only.
                        if is_final || try_again || error.is_refused() {
                            one_by_one(&*link, names).await
                        } else {
                            Err(error)
                        }
                    }
                    Ok(found) => Ok(found),
                },
            };
            drop(in_flight);
            found.map(Arc::new)
        });
        *open = Some(Batch { slot, names, answer: answer.downgrade() });
        BatchTicket::First(answer, BatchLeader(gate))
    }
}

impl Names {
    fn of(first: String) -> Self {
        let (mut list, mut hashes) = (Vec::with_capacity(MAX_READS), Vec::with_capacity(MAX_READS));
        hashes.push(xxh3_64(first.as_bytes()));
        list.push(first);
        Self { list, hashes }
    }

    /// Adds the name unless it is there already, and returns its index. Returns the name if the batch is full.
    fn add(&mut self, name: String) -> Result<usize, String> {
        let hash = xxh3_64(name.as_bytes());
        let known = self.hashes.iter().position(|known| *known == hash).filter(|known| self.list[*known] == name);
        match known {
            Some(known) => Ok(known),
            None if self.list.len() == MAX_READS => Err(name),
            None => {
                self.list.push(name);
                self.hashes.push(hash);
                Ok(self.list.len() - 1)
            }
        }
    }
}

/// A ticket for one result of a batch, with its index.
enum BatchTicket {
    /// The first read of a batch, which decides when the batch is sent.
    First(Shared<Found>, BatchLeader),
    Joined(Shared<Found>, usize),
}

/// A gate that opens once, when the first read of the batch has let others join.
#[derive(Default)]
struct OpenOnce {
    open: AtomicBool,
    waiting: AtomicWaker,
}

impl OpenOnce {
    fn opened(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| {
            self.waiting.register(cx.waker());
            if self.open.load(Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

/// The first read of a batch. If it is dropped, it wakes the other reads, which send the batch.
struct BatchLeader(Arc<OpenOnce>);

impl BatchLeader {
    /// Sends the batch. PERF: without a wake-up, because the first read polls the batch itself next.
    fn send(self) {
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

async fn get(link: &dyn CommandLink, name: &str) -> Result<Option<Bytes>, StoreError> {
    match link.send(redis::cmd("GET").arg(name)).await {
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
    match link.send(redis::cmd("MGET").arg(names)).await? {
        Value::Array(found) if found.len() == names.len() => Ok(found.into_iter().map(bytes).collect()),
        _ => {
            link.verify().await;
            Ok(vec![None; names.len()])
        }
    }
}

async fn one_by_one(link: &dyn CommandLink, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
    futures_util::future::try_join_all(names.iter().map(|name| get(link, name))).await
}

/// Reports whether the server would refuse each MGET. The right to a name may be missing without it.
fn is_final(error: &RedisError) -> bool {
    let is_of_a_name = error.kind() == NO_PERM && error.to_string().contains("key");
    error.kind() == CROSS_SLOT || is_unsupported(error) && !is_of_a_name
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

/// A guard that counts a command as in flight, from just before it is sent until its reply.
struct InFlightCount(Arc<AtomicUsize>);

impl InFlightCount {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, AcqRel);
        Self(count.clone())
    }
}

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

/// Maximum number of names in a batch, because each read waits for the whole batch.
const MAX_READS: usize = 32;
/// Number of lanes in a cluster. A lane is shared by 64 slots; a read that finds another slot of its lane in flight
/// begins a batch of its own.
const CLUSTER_LANES: usize = 256;
const TRY_AGAIN: ErrorKind = ErrorKind::Server(ServerErrorKind::TryAgain);
const CROSS_SLOT: ErrorKind = ErrorKind::Server(ServerErrorKind::CrossSlot);
const NO_PERM: ErrorKind = ErrorKind::Server(ServerErrorKind::NoPerm);
const MOVED: ErrorKind = ErrorKind::Server(ServerErrorKind::Moved);
const ASK: ErrorKind = ErrorKind::Server(ServerErrorKind::Ask);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::error::BoxFuture;
    #[cfg(feature = "cluster")]
    use futures_util::future::Either;
    use futures_util::future::join_all;
    use redis::Cmd;
    use shuttle::future::{spawn, yield_now};
    use std::pin::pin;
    use tokio::sync::Semaphore;

    /// A server that answers each name with itself, when the test permits it, and MGET perhaps with an error.
    struct FakeServer {
        commands: Mutex<Vec<String>>,
        may_answer: Semaphore,
        refusal: Option<&'static [u8]>,
    }

    impl CommandLink for FakeServer {
        fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
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
                let value = |name: &String| Value::BulkString(name.clone().into_bytes());
                match (&*words[0], self.refusal) {
                    ("GET", _) => Ok(value(&words[1])),
                    (_, Some(refusal)) => redis::parse_redis_value(refusal)?.extract_error(),
                    _ => Ok(Value::Array(words[1..].iter().map(value).collect())),
                }
            })
        }

        fn transact<'a>(&'a self, _: &'a redis::Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(std::future::pending())
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async { panic!("no reply is in doubt") })
        }

        fn generation(&self) -> u64 {
            1
        }
    }

    fn reads(refusal: Option<&'static [u8]>, is_cluster: bool) -> (Arc<FakeServer>, Arc<ReadBatcher>) {
        let server = FakeServer { commands: Mutex::default(), may_answer: Semaphore::new(0), refusal };
        let server = Arc::new(server);
        (server.clone(), Arc::new(ReadBatcher::over(server, is_cluster)))
    }

    /// Reads these names at one moment, while another read is in flight.
    async fn read_at_once(reads: &Arc<ReadBatcher>, server: &FakeServer, names: impl Iterator<Item = String>) {
        let name = |found: Option<Bytes>| found.map(|found| String::from_utf8_lossy(&found).into_owned());
        let pending = names.map(|expected| async move {
            let found = reads.get(expected.clone()).await.expect("an answer");
            assert_eq!(name(found), Some(expected));
        });
        let mut alone = pin!(reads.get("alone".into()));
        assert!(futures_util::poll!(&mut alone).is_pending());
        server.may_answer.add_permits(1000);
        join_all(pending).await;
        assert_eq!(name(alone.await.expect("an answer")).as_deref(), Some("alone"));
        assert!(is_idle(reads));
        server.may_answer.forget_permits(1000);
    }

    #[test]
    fn reads_of_one_moment_are_one_command() {
        explore(async || {
            let (server, reads) = reads(None, false);
            read_at_once(&reads, &server, (0..70).map(|n| n.to_string())).await;
            let commands = server.commands.lock().clone();
            let names: Vec<_> = commands.iter().map(|command| command.split(' ').count() - 1).collect();
            assert_eq!(names, [1, 32, 32, 6], "{commands:?}");
        });
    }

    #[test]
    fn reads_are_sent_one_by_one_when_mget_is_refused() {
        explore(async || {
            let (server, reads) = reads(Some(b"-CROSSSLOT no\r\n"), false);
            read_at_once(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
            assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b", "GET a", "GET b"]);
            read_at_once(&reads, &server, ["c", "d"].into_iter().map(Into::into)).await;
            assert_eq!(server.commands.lock()[4..], ["GET alone", "GET c", "GET d"]);
        });
    }

    /// Seen to fail when each read adds its name to the batch.
    #[test]
    fn reads_of_one_name_are_one_name_in_the_batch() {
        explore(async || {
            let (server, reads) = reads(None, false);
            let names = (0..100).map(|n| ["a", "b", "c"][n % 3].to_owned());
            read_at_once(&reads, &server, names).await;
            assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b c"]);
        });
    }

    /// Seen to fail when a read shares the name of a command that is sent.
    #[test]
    fn read_shares_no_name_that_is_sent_already() {
        explore(async || {
            let (server, reads) = reads(None, false);
            let mut alone = pin!(reads.get("alone".into()));
            assert!(futures_util::poll!(&mut alone).is_pending());
            let mut before = pin!(reads.get("a".into()));
            while server.commands.lock().len() < 2 {
                assert!(futures_util::poll!(&mut before).is_pending());
            }
            let mut after = pin!(reads.get("a".into()));
            assert!(futures_util::poll!(&mut after).is_pending());
            server.may_answer.add_permits(10);
            for read in [alone, before, after] {
                assert!(read.await.is_ok_and(|found| found.is_some()));
            }
            assert_eq!(*server.commands.lock(), ["GET alone", "GET a", "GET a"]);
        });
    }

    /// Seen to fail, with a deadlock, when the dropped first read wakes no other.
    #[test]
    fn reads_of_a_batch_survive_its_dropped_first_read() {
        explore(async || {
            let (server, reads) = reads(None, false);
            let mut alone = pin!(reads.get("alone".into()));
            assert!(futures_util::poll!(&mut alone).is_pending());
            let mut first = Box::pin(reads.get("a".into()));
            assert!(futures_util::poll!(&mut first).is_pending());
            server.may_answer.add_permits(10);
            let others = ["b", "c"].map(|name| {
                let reads = reads.clone();
                spawn(async move { reads.get(name.into()).await })
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

    /// Seen to fail, with one command for each name, without batches in a cluster, and with a name of another slot in
    /// a command if the slots of a lane share a batch.
    #[cfg(feature = "cluster")]
    #[test]
    fn reads_of_one_slot_are_one_command_in_a_cluster() {
        explore(async || {
            let (server, reads) = reads(None, true);
            let (lane_mate, a, b) = (lane_mate("alone"), "{alone}:a".to_owned(), "{alone}:b".to_owned());
            let other_lane = "b".to_owned();
            read_at_once(&reads, &server, [a.clone(), b, other_lane, lane_mate.clone(), a].into_iter()).await;
            let mut commands = server.commands.lock().clone();
            commands.sort();
            let alone = ["GET alone", "GET b", "GET {alone}:a", "MGET {alone}:a {alone}:b"].map(str::to_owned);
            let mut expected = [&alone[..], &[format!("GET {lane_mate}")]].concat();
            expected.sort();
            assert_eq!(commands, expected);
        });
    }

    /// Seen to fail, with a deadlock, if the slots of a lane share a batch.
    #[cfg(feature = "cluster")]
    #[test]
    fn node_that_hangs_holds_up_no_read_of_another_node() {
        explore(async || {
            let (server, reads) = reads(None, true);
            let hanging = ["{hanging}:0", "{hanging}:1"].map(|name| Box::pin(reads.get(name.to_owned())));
            let answers = ["a".to_owned(), lane_mate(HANGING)].map(|name| reads.get(name));
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
        let slot = crate::redis::names::slot_of;
        let is_mate =
            |mate: &String| slot(mate) != slot(name) && usize::from(slot(mate) ^ slot(name)) % CLUSTER_LANES == 0;
        (0..).map(|n: u32| n.to_string()).find(is_mate).expect("one of all numbers")
    }

    /// Seen to fail if each refusal of MGET ends the batches.
    #[test]
    fn reads_are_batched_again_after_their_slot_has_moved() {
        for refusal in [&b"-MOVED 1 10.0.0.1:7000\r\n"[..], b"-ASK 1 10.0.0.1:7000\r\n"] {
            shuttle::check_random(move || shuttle::future::block_on(read_of_a_moved_slot(refusal)), 20);
        }
    }

    async fn read_of_a_moved_slot(refusal: &'static [u8]) {
        let (server, reads) = reads(Some(refusal), false);
        server.may_answer.add_permits(100);
        for _ in 0..2 {
            let mut alone = pin!(reads.get(HANGING.into()));
            assert!(futures_util::poll!(&mut alone).is_pending());
            let answers = join_all(["a", "b"].map(|name| reads.get(name.into()))).await;
            assert!(answers.iter().all(Result::is_err));
            assert_eq!(*server.commands.lock(), ["GET hanging", "MGET a b"]);
            server.commands.lock().clear();
        }
    }

    /// Seen to fail if the missing right to one name ends the batches.
    #[test]
    fn reads_are_batched_again_after_a_right_to_a_name_was_missing() {
        explore(async || {
            let no_right = b"-NOPERM No permissions to access a key\r\n";
            let (server, reads) = reads(Some(no_right), false);
            for _ in 0..2 {
                read_at_once(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
                assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b", "GET a", "GET b"]);
                server.commands.lock().clear();
            }
        });
    }

    /// Seen to fail when the error of MGET is the answer of its reads.
    #[test]
    fn reads_of_a_migrating_slot_are_sent_one_by_one() {
        explore(async || {
            let (server, reads) = reads(Some(b"-TRYAGAIN the slot migrates\r\n"), false);
            for _ in 0..2 {
                read_at_once(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
                assert_eq!(*server.commands.lock(), ["GET alone", "MGET a b", "GET a", "GET b"]);
                server.commands.lock().clear();
            }
        });
    }

    fn is_idle(reads: &ReadBatcher) -> bool {
        reads.lanes.iter().all(|lane| lane.in_flight.load(Acquire) == 0)
    }

    /// A name that the server never answers.
    const HANGING: &str = "hanging";

    /// Runs the test under 20 schedules.
    fn explore<Fut: Future<Output = ()>>(test: impl Fn() -> Fut + Send + Sync + Copy + 'static) {
        shuttle::check_random(move || shuttle::future::block_on(test()), 20);
    }
}
