//! What a recipe says to its servers, as they hear it.

use crate::{
    site::{Site, Subject},
    support::{Command, Monitor, RedisServer},
};
use futures_util::future::join_all;
use std::ops::AsyncFn;

/// What is sent meanwhile.
pub(crate) async fn sent(servers: &[RedisServer], meanwhile: impl AsyncFn()) -> Vec<Command> {
    let monitors = join_all(servers.iter().map(Monitor::start)).await;
    meanwhile().await;
    join_all(monitors.into_iter().map(Monitor::stop)).await.concat()
}

/// All that is sent for one lock: acquired, found held, looked at, extended, released; waited for and handed over.
pub(crate) async fn of_a_lock(servers: &[RedisServer], site: &Site, recipe: &Subject, name: &str) -> Vec<Command> {
    sent(servers, async || {
        let lock = site.lock(recipe);
        let guard = lock.acquire(name).await.expect("free");
        assert!(lock.try_acquire(name).await.expect("an answer").is_none());
        lock.check(name).await.expect_err("held");
        guard.check().await.expect("an answer");
        assert_eq!(guard.extend(crate::site::LONG).await.is_ok(), recipe.guarantees().extendable);
        let patient = lock.clone().wait(crate::site::LONG);
        let (next, released) = tokio::join!(patient.acquire(name), guard.release());
        released.expect("held");
        next.expect("released").release().await.expect("held");
    })
    .await
}

/// The arguments of a command, as `MONITOR` shows them.
pub(crate) fn arguments(command: &Command) -> impl Iterator<Item = &str> {
    let args = command.args.strip_prefix('"').and_then(|args| args.strip_suffix('"')).unwrap_or_default();
    args.split(r#"" ""#)
}
