//! Invalidations that replicas have before they are acknowledged (`WAIT`).
//!
//! `WAIT` blocks its connection, and it covers only the writes of that connection. So these invalidations have a
//! connection of their own: first the scripts, then one `WAIT` for all of them. Invalidations that arrive meanwhile are
//! sent together afterwards. A replica that hangs delays each of them by at most twice the time of one `WAIT`, however
//! many there are.

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
use std::{sync::Arc, time::Duration};

/// How many replicas have an invalidation before it is acknowledged, and the maximum time that one `WAIT` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaWait {
    pub(crate) replicas: usize,
    pub(crate) within: Duration,
}

/// Sends invalidations and waits for the replicas, over a connection that nothing else uses.
pub(super) struct ReplicatedInvalidations {
    link: Arc<dyn CommandLink>,
    wait: ReplicaWait,
    open: Mutex<Option<Batch>>,
    /// Held by the batch that is in flight.
    turn: Arc<tokio::sync::Mutex<()>>,
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
    pub(super) fn over(link: Arc<dyn CommandLink>, wait: ReplicaWait) -> Self {
        Self { link, wait, open: Mutex::default(), turn: Arc::default() }
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
        let (link, wait, turn, batch_calls) = (self.link.clone(), self.wait, self.turn.clone(), calls.clone());
        let answer = Shared::new(async move {
            let _turn = turn.lock().await;
            let calls = batch_calls.lock().take().unwrap_or_default();
            wait.send(&*link, calls).await
        });
        *open = Some(Batch { calls, answer: answer.downgrade() });
        (answer, 0)
    }
}

impl ReplicaWait {
    /// Runs the scripts, then `WAIT`, all on one connection.
    async fn send(self, link: &dyn CommandLink, calls: Vec<ScriptCall>) -> Outcomes {
        let before = connected_generation(link).await;
        let outcomes = join_all(calls.into_iter().map(|call| call.run(link))).await;
        let mut replicated = self.confirmed(link).await;
        if link.generation() != before {
            // `WAIT` on a new connection covers none of the writes.
            replicated = Err(StoreError::disconnected("the connection broke before the replicas had confirmed"));
        }
        let outcome = |reply: redis::RedisResult<_>| match reply.map_err(store_error).and_then(parse_invalidated) {
            Ok(left) => (left, replicated.clone()),
            Err(error) => (Vec::new(), Err(error)),
        };
        outcomes.into_iter().map(outcome).collect()
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

/// Makes the first connection, and returns the generation.
async fn connected_generation(link: &dyn CommandLink) -> u64 {
    if link.generation() == 0 {
        // An error shows again with the first script.
        let _ = link.send(&redis::cmd("PING")).await;
    }
    link.generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{redis::connection::script::Script, store::error::BoxFuture};
    use redis::{Cmd, RedisResult, Value};
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
        let link = Arc::new(Master { breaks: AtomicU64::new(1), generation: AtomicU64::new(1) });
        let wait = ReplicaWait { replicas: 1, within: Duration::from_secs(1) };
        let invalidations = ReplicatedInvalidations::over(link, wait);
        let invalidate = || invalidations.run(Script::new("return 1").call(&["k"]));
        assert!(invalidate().await.1.expect_err("the connection broke").is_disconnected());
        invalidate().await.1.expect("confirmed");
    }
}
