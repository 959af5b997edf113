//! Invalidations that replicas have before they are acknowledged (`WAIT`).
//!
//! `WAIT` blocks its connection, and it covers only the writes of that connection. So these invalidations have a
//! connection of their own: first the scripts, then one `WAIT` for all of them. Invalidations that arrive meanwhile are
//! sent together afterwards. A replica that hangs delays each of them by at most twice the time of one `WAIT`, however
//! many there are.
//!
//! The scripts run on the data connection first, because the other connection may lead to another master for a while:
//! an acknowledged invalidation must not leave a hit in its own process.

use super::connection::{
    error_class::store_error,
    reconnecting::CommandLink,
    script::{ScriptCall, millis, number},
    subscriber::CHANNEL,
};
use super::scripts::parse_invalidated;
use crate::{
    store::error::StoreError,
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
};
use futures_util::future::join_all;
use redis::RedisResult;
use std::{sync::Arc, time::Duration};

/// How many replicas have an invalidation before it is acknowledged, and the maximum time that one `WAIT` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaWait {
    pub(crate) replicas: usize,
    pub(crate) within: Duration,
}

/// Sends invalidations and waits for the replicas, over a connection that nothing else uses.
pub(super) struct ReplicatedInvalidations {
    links: Links,
    wait: ReplicaWait,
    open: Mutex<Option<Batch>>,
    /// Held by the batch that is in flight.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Links {
    data: Arc<dyn CommandLink>,
    /// Leads to the server of `data`, and is made again after it.
    waits: Arc<dyn CommandLink>,
}

/// Invalidations that will be sent together.
struct Batch {
    /// `None` once they are sent.
    calls: Arc<Mutex<Option<Vec<ScriptCall>>>>,
    answer: WeakShared<Outcomes>,
}

/// One outcome for each call of a batch.
type Outcomes = Arc<[Outcome]>;

/// The waiters that the script has left to wake, and whether the replicas have its writes.
pub(super) type Outcome = (Vec<Vec<u8>>, Result<(), StoreError>);

impl ReplicatedInvalidations {
    pub(super) fn over(data: Arc<dyn CommandLink>, waits: Arc<dyn CommandLink>, wait: ReplicaWait) -> Self {
        Self { links: Links { data, waits }, wait, open: Mutex::default(), turn: Arc::default() }
    }

    /// Runs the script, and returns `Ok` if the replicas have its writes.
    ///
    /// Cancel safe: dropping the future does not affect the other invalidations of its batch.
    pub(super) async fn run(&self, call: ScriptCall) -> Outcome {
        let (answer, number) = self.join(call);
        answer.await[number].clone()
    }

    /// Adds the call to the batch that is sent next.
    fn join(&self, call: ScriptCall) -> (Shared<Outcomes>, usize) {
        let mut open = self.open.lock();
        if let Some(batch) = &*open
            && let Some(answer) = batch.answer.upgrade()
            && let Some(calls) = &mut *batch.calls.lock()
        {
            calls.push(call);
            return (answer, calls.len() - 1);
        }
        let calls = Arc::new(Mutex::new(Some(vec![call])));
        let (links, wait, turn, batch_calls) = (self.links.clone(), self.wait, self.turn.clone(), calls.clone());
        let answer = Shared::new(async move {
            let _turn = turn.lock().await;
            let calls = batch_calls.lock().take().unwrap_or_default();
            wait.send(&links, calls).await
        });
        *open = Some(Batch { calls, answer: answer.downgrade() });
        (answer, 0)
    }
}

impl ReplicaWait {
    /// Runs the scripts on both connections, then `WAIT` on the one for it.
    async fn send(self, links: &Links, calls: Vec<ScriptCall>) -> Outcomes {
        let Links { data, waits } = links;
        let data_before = connected_generation(&**data).await;
        let on_data = join_all(calls.iter().map(|call| call.clone().run(&**data))).await;
        let before = connected_generation(&**waits).await;
        let on_waits = join_all(calls.into_iter().map(|call| call.run(&**waits))).await;
        let mut replicated = self.confirmed(&**waits).await;
        if waits.generation() != before || data.generation() != data_before {
            // `WAIT` on a new connection covers none of the writes, and a new data connection may lead elsewhere.
            replicated = Err(StoreError::disconnected("the connection broke before the replicas had confirmed"));
        }
        let left_by = |reply: RedisResult<_>| reply.map_err(store_error).and_then(parse_invalidated);
        let outcome = |(on_data, on_waits)| match (left_by(on_data), left_by(on_waits)) {
            // The first script leaves the waiters, unless the second runs at another server.
            (Ok(left), Ok(_)) => (left, replicated.clone()),
            (Ok(left), Err(error)) | (Err(error), Ok(left)) => (left, Err(error)),
            (Err(error), Err(_)) => (Vec::new(), Err(error)),
        };
        on_data.into_iter().zip(on_waits).map(outcome).collect()
    }

    /// Waits for the replicas, up to the write before.
    async fn confirmed(self, link: &dyn CommandLink) -> Result<(), StoreError> {
        let Self { replicas, within } = self;
        // A message is a write in any case. A script may find nothing to drop because another connection has dropped it,
        // and `WAIT` would not wait for that.
        link.send(redis::cmd("PUBLISH").arg(CHANNEL).arg("")).await.map_err(store_error)?;
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(millis(within));
        let confirmed = number(&link.send(&wait).await.map_err(store_error)?)?;
        if usize::try_from(confirmed).is_ok_and(|confirmed| confirmed >= replicas) {
            return Ok(());
        }
        // Refused, and not a failure of the store: the master answers, so the circuit breaker stays closed.
        Err(StoreError::refused(format!(
            "{confirmed} of {replicas} replicas confirmed the invalidation within {within:?}: repair the replicas, or \
             change `RedisEndpoint::invalidations_reach`"
        )))
    }
}

/// Makes the connection if there is none that is current, and returns the generation.
async fn connected_generation(link: &dyn CommandLink) -> u64 {
    // An error shows again with the first script.
    let _ = link.send(&redis::cmd("PING")).await;
    link.generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{redis::connection::script::Script, store::error::BoxFuture};
    use redis::{Cmd, Value};
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    /// A master with one replica. Its connection breaks before `WAIT` as often as told.
    struct Master {
        breaks: AtomicU64,
        generation: AtomicU64,
    }

    impl CommandLink for Master {
        fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
            let is_wait = cmd.get_packed_command().windows(4).any(|word| word == b"WAIT");
            if is_wait && self.breaks.fetch_update(SeqCst, SeqCst, |breaks| breaks.checked_sub(1)).is_ok() {
                self.generation.fetch_add(1, SeqCst);
            }
            let is_script = cmd.get_packed_command().windows(7).any(|word| word == b"EVALSHA");
            let reply = if is_script { Value::Array(vec![Value::BulkString(Vec::new())]) } else { Value::Int(1) };
            Box::pin(async { Ok(reply) })
        }

        fn transact<'a>(&'a self, _: &'a redis::Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(async { Ok(Value::Nil) })
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn generation(&self) -> u64 {
            self.generation.load(SeqCst)
        }
    }

    /// The new connection has written nothing, so its `WAIT` succeeds although no replica has the invalidation.
    #[tokio::test]
    async fn wait_on_another_connection_confirms_nothing() {
        let master = |breaks| Arc::new(Master { breaks: AtomicU64::new(breaks), generation: AtomicU64::new(1) });
        let wait = ReplicaWait { replicas: 1, within: Duration::from_secs(1) };
        let invalidations = ReplicatedInvalidations::over(master(0), master(1), wait);
        let invalidate = || invalidations.run(Script::new("return 1").call(&["k"]));
        assert!(invalidate().await.1.expect_err("the connection broke").is_disconnected());
        invalidate().await.1.expect("confirmed");
    }
}
