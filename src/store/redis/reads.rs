//! Reads that are asked for at one moment go as one command: for client and server alike, a read of many costs far less
//! than many reads.
//!
//! Nobody waits for company. A read that finds none under way is sent at once; while others are, what the tasks that are
//! ready now ask for is sent together, after the runtime has polled them.

use crate::{
    engine::{Shared, WeakShared},
    store::StoreError,
    wire::{Link, store_error},
};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use redis::Value;
use std::{
    future::{Future, poll_fn},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    task::Poll,
};

/// Reads over one link.
pub(super) struct Reads {
    link: Arc<dyn Link>,
    open: Mutex<Option<Batch>>,
    under_way: Arc<AtomicUsize>,
    /// Whether the server takes several names in one command: a cluster does not, unless they share a slot.
    together: Arc<AtomicBool>,
}

/// Reads that will be sent together.
struct Batch {
    names: Arc<Mutex<Names>>,
    answer: WeakShared<Found>,
}

/// None once they are sent.
type Names = Option<Vec<String>>;
type Found = Result<Arc<[Option<Bytes>]>, StoreError>;

impl Reads {
    pub(super) fn over(link: Arc<dyn Link>, together: bool) -> Self {
        let together = Arc::new(AtomicBool::new(together));
        Self { link, open: Mutex::default(), under_way: Arc::default(), together }
    }

    /// What is there. What is of another type is as good as nothing.
    ///
    /// Dropping the future takes nothing from those who are read together with it.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        if !self.together.load(Relaxed) || self.under_way.load(Acquire) == 0 {
            let _under_way = UnderWay::begin(&self.under_way);
            return get(&*self.link, name).await;
        }
        let (answer, number) = match self.join(name.to_owned()) {
            Seat::Last(answer, number) => (answer, number),
            Seat::First(answer, first) => {
                tokio::task::yield_now().await;
                first.asks();
                (answer, 0)
            }
        };
        Ok(answer.await?[number].clone())
    }

    /// Several, as they are at one moment.
    pub(super) async fn get_all(&self, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        match names {
            [name] => Ok(vec![self.get(name).await?]),
            names => {
                let _under_way = UnderWay::begin(&self.under_way);
                get_all(&*self.link, names).await
            }
        }
    }

    fn join(&self, name: String) -> Seat {
        let mut open = lock(&self.open);
        if let Some(batch) = &*open
            && let Some(answer) = batch.answer.upgrade()
            && let Some(names) = &mut *lock(&batch.names)
            && names.len() < MOST
        {
            names.push(name);
            return Seat::Last(answer, names.len() - 1);
        }
        let names = Arc::new(Mutex::new(Some(vec![name])));
        let gate = Arc::new(Gate::default());
        let under_way = UnderWay::begin(&self.under_way);
        let (link, together, asked, awaited) = (self.link.clone(), self.together.clone(), names.clone(), gate.clone());
        let answer = Shared::new(async move {
            awaited.opened().await;
            let names = lock(&asked).take().unwrap_or_default();
            let found = match &names[..] {
                [name] => get(&*link, name).await.map(|found| vec![found]),
                names => match get_all(&*link, names).await {
                    Err(error) if error.is_refused() => {
                        together.store(false, Relaxed);
                        one_by_one(&*link, names).await
                    }
                    found => found,
                },
            };
            drop(under_way);
            found.map(Into::into)
        });
        *open = Some(Batch { names, answer: answer.downgrade() });
        Seat::First(answer, First(gate))
    }
}

/// A place in a batch, and its number.
enum Seat {
    /// In one that waits for others: whoever began it says when it goes.
    First(Shared<Found>, First),
    Last(Shared<Found>, usize),
}

/// Closed until whoever began the batch has let the others come.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    waiting: AtomicWaker,
}

impl Gate {
    fn opened(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| {
            self.waiting.register(cx.waker());
            if self.open.load(Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

/// Who began the batch. When he goes away, the others are woken, to send it without him.
struct First(Arc<Gate>);

impl First {
    /// He asks himself, so nobody has to be woken for that.
    fn asks(self) {
        self.0.open.store(true, Release);
        self.0.waiting.take();
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.0.open.store(true, Release);
        self.0.waiting.wake();
    }
}

async fn get(link: &dyn Link, name: &str) -> Result<Option<Bytes>, StoreError> {
    match link.send(redis::cmd("GET").arg(name)).await {
        Ok(Value::BulkString(bytes)) => Ok(Some(bytes.into())),
        Ok(Value::Nil) => Ok(None),
        // What answers another question is no answer to this one.
        Ok(_) => {
            link.doubt().await;
            Ok(None)
        }
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) => Err(store_error(error)),
    }
}

/// What is of a wrong type is nil here.
async fn get_all(link: &dyn Link, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
    match link.send(redis::cmd("MGET").arg(names)).await.map_err(store_error)? {
        Value::Array(found) if found.len() == names.len() => Ok(found.into_iter().map(bytes).collect()),
        _ => {
            link.doubt().await;
            Ok(vec![None; names.len()])
        }
    }
}

async fn one_by_one(link: &dyn Link, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
    futures_util::future::try_join_all(names.iter().map(|name| get(link, name))).await
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

/// A command that was sent, or is about to be, and not answered yet.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, AcqRel);
        Self(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

/// Nothing in here panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many are read together: each of them waits for all.
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::BoxFuture;
    use futures_util::future::join_all;
    use redis::{Cmd, Pipeline, RedisResult};
    use shuttle::future::{spawn, yield_now};
    use std::{future::pending, pin::pin};
    use tokio::sync::Semaphore;

    /// Answers with the name that it is asked for, when it may.
    struct Server {
        said: Mutex<Vec<String>>,
        may_answer: Semaphore,
        refuses: bool,
    }

    impl Link for Server {
        fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(async move {
                let word = |arg| match arg {
                    redis::Arg::Simple(word) => Some(String::from_utf8_lossy(word).into_owned()),
                    _ => None,
                };
                let words: Vec<_> = cmd.args_iter().filter_map(word).collect();
                lock(&self.said).push(words.join(" "));
                self.may_answer.acquire().await.expect("it is never closed").forget();
                let value = |name: &String| Value::BulkString(name.clone().into_bytes());
                match &*words[0] {
                    "GET" => Ok(value(&words[1])),
                    _ if self.refuses => redis::parse_redis_value(b"-CROSSSLOT no\r\n")?.extract_error(),
                    _ => Ok(Value::Array(words[1..].iter().map(value).collect())),
                }
            })
        }

        fn transact<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(pending())
        }

        fn doubt(&self) -> BoxFuture<'_, ()> {
            Box::pin(async { panic!("each answer is that of its question") })
        }

        fn connections(&self) -> u64 {
            1
        }
    }

    fn reads(refuses: bool) -> (Arc<Server>, Arc<Reads>) {
        let server = Server { said: Mutex::default(), may_answer: Semaphore::new(0), refuses };
        let server = Arc::new(server);
        (server.clone(), Arc::new(Reads::over(server, true)))
    }

    /// Asks for these at one moment, while another one is under way.
    async fn ask(reads: &Arc<Reads>, server: &Server, names: impl Iterator<Item = String>) {
        let name = |found: Option<Bytes>| found.map(|found| String::from_utf8_lossy(&found).into_owned());
        let asked = names.map(|expected| async move {
            let found = reads.get(&expected).await.expect("an answer");
            assert_eq!(name(found), Some(expected));
        });
        let mut alone = pin!(reads.get("alone"));
        assert!(futures_util::poll!(&mut alone).is_pending());
        server.may_answer.add_permits(1000);
        join_all(asked).await;
        assert_eq!(name(alone.await.expect("an answer")).as_deref(), Some("alone"));
        assert_eq!(reads.under_way.load(Acquire), 0);
        server.may_answer.forget_permits(1000);
    }

    #[test]
    fn what_is_asked_for_at_one_moment_is_one_command() {
        explore(async || {
            let (server, reads) = reads(false);
            ask(&reads, &server, (0..70).map(|n| n.to_string())).await;
            let said = lock(&server.said).clone();
            let names: Vec<_> = said.iter().map(|said| said.split(' ').count() - 1).collect();
            assert_eq!(names, [1, 32, 32, 6], "{said:?}");
        });
    }

    #[test]
    fn where_several_names_are_refused_each_is_asked_for_alone() {
        explore(async || {
            let (server, reads) = reads(true);
            ask(&reads, &server, ["a", "b"].into_iter().map(Into::into)).await;
            assert_eq!(*lock(&server.said), ["GET alone", "MGET a b", "GET a", "GET b"]);
            ask(&reads, &server, ["c", "d"].into_iter().map(Into::into)).await;
            assert_eq!(lock(&server.said)[4..], ["GET alone", "GET c", "GET d"]);
        });
    }

    /// Seen to fail, with a deadlock, where the one who goes away wakes nobody.
    #[test]
    fn who_began_a_batch_may_go_away() {
        explore(async || {
            let (server, reads) = reads(false);
            let mut alone = pin!(reads.get("alone"));
            assert!(futures_util::poll!(&mut alone).is_pending());
            let mut first = Box::pin(reads.get("a"));
            assert!(futures_util::poll!(&mut first).is_pending());
            server.may_answer.add_permits(10);
            let others = ["b", "c"].map(|name| {
                let reads = reads.clone();
                spawn(async move { reads.get(name).await })
            });
            for _ in 0..8 {
                yield_now().await; // they are asked whether they are done, or not yet
            }
            drop(first);
            for other in others {
                assert!(other.await.expect("no panic").is_ok());
            }
            alone.await.expect("an answer");
            assert_eq!(reads.under_way.load(Acquire), 0);
        });
    }

    /// What is shared has the mutexes of an explored schedule.
    fn explore<Fut: Future<Output = ()>>(test: impl Fn() -> Fut + Send + Sync + Copy + 'static) {
        shuttle::check_random(move || shuttle::future::block_on(test()), 20);
    }
}
