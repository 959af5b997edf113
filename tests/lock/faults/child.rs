//! Holders and contenders in processes of their own, which can be killed.

use super::lock;
use crate::support::{
    RedisServer, SECOND,
    child::{self, Env},
    processes::{self, Child},
};
use serde::{Deserialize, Serialize};
use stampede_guard::{
    Lock,
    lock::{FencedLock, LockErrorKind, SetPx},
};
use std::time::Duration;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    url: String,
    pub(super) name: String,
    pub(super) recipe: Recipe,
    pub(super) ttl: Duration,
    pub(super) part: Part,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Recipe {
    FencedLock,
    SetPx,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Part {
    /// Acquires the lock and reports its fencing token. When the parent says so, reports the results of
    /// [`lost`](stampede_guard::LockGuard::lost) and `release`.
    Keep,
    /// Like `Keep`, with `keep_alive`.
    KeepAlive,
    /// Acquires and releases the lock, and reports its fencing token.
    Pass,
}

/// The outcome of `Part::Keep`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) was_lost: bool,
    pub(super) release: String,
}

impl Task {
    pub(super) fn new(server: &RedisServer, name: &str, recipe: Recipe, part: Part) -> Self {
        Self { url: server.url(), name: name.to_owned(), recipe, ttl: 60 * SECOND, part }
    }

    pub(super) fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    pub(super) fn start(&self) -> Child {
        processes::spawn(1, "faults::child::part", self).remove(0)
    }

    /// Starts the child and waits for its first report.
    pub(super) async fn started(&self) -> (Child, Option<u64>) {
        let mut child = self.start();
        let token = child.result().await;
        (child, token)
    }

    fn lock(&self, lock: Lock) -> Lock {
        let lock = lock.ttl(self.ttl).wait(600 * SECOND);
        match self.recipe {
            Recipe::FencedLock => lock.recipe(FencedLock),
            Recipe::SetPx => lock.recipe(SetPx),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn part() {
    let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
    let client = redis::Client::open(&*task.url).expect("a URL");
    let guard = task.lock(lock(client)).acquire(&task.name).await.expect("in time");
    let token = guard.fencing_token();
    if let Part::Keep | Part::KeepAlive = task.part {
        if let Part::KeepAlive = task.part {
            guard.keep_alive().expect("the recipe can extend");
        }
        child::report(&token);
        child::ready_and_wait().await;
        // `lost` must be ready now, not after some time.
        let was_lost = tokio::time::timeout(Duration::ZERO, guard.lost()).await.is_ok();
        let release = guard.release().await.map_err(|error| error.kind());
        child::report(&Kept { was_lost, release: format!("{release:?}") });
    } else {
        guard.release().await.expect("held");
        child::report(&token);
    }
}

impl Kept {
    pub(super) fn lost() -> Self {
        Self { was_lost: true, release: format!("{:?}", Err::<(), _>(LockErrorKind::Release)) }
    }
}
