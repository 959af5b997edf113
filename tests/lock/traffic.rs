//! The commands that a recipe sends, as recorded by `MONITOR`.

use crate::{
    site::{Site, Subject},
    support::{Command, Monitor, RedisServer},
};
use futures_util::future::join_all;
use std::ops::AsyncFn;

/// Returns the commands that the servers receive while `meanwhile` runs.
pub(crate) async fn sent(servers: &[RedisServer], meanwhile: impl AsyncFn()) -> Vec<Command> {
    let monitors = join_all(servers.iter().map(Monitor::start)).await;
    meanwhile().await;
    join_all(monitors.into_iter().map(Monitor::stop)).await.concat()
}

/// Returns all commands for one lock: acquire, busy attempt, check, extend, release, wait and hand-over.
pub(crate) async fn of_a_lock(servers: &[RedisServer], site: &Site, recipe: &Subject, name: &str) -> Vec<Command> {
    sent(servers, async || {
        let lock = site.lock(recipe);
        let guard = lock.acquire(name).await.expect("free");
        assert!(lock.try_acquire(name).await.expect("an answer").is_none());
        guard.check().await.expect("an answer");
        assert_eq!(guard.extend(crate::site::LONG).await.is_ok(), recipe.guarantees().extendable);
        let patient = lock.clone().wait(crate::site::LONG);
        let (next, released) = tokio::join!(patient.acquire(name), guard.release());
        released.expect("held");
        next.expect("released").release().await.expect("held");
    })
    .await
}

/// Returns the arguments of a command, as `MONITOR` shows them.
pub(crate) fn arguments(command: &Command) -> impl Iterator<Item = &str> {
    let args = command.args.strip_prefix('"').and_then(|args| args.strip_suffix('"')).unwrap_or_default();
    args.split(r#"" ""#)
}
