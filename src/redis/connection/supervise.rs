//! Connections for messages, which a task keeps: made, checked, and made again when they end.

use super::error_class::{ErrorClass, Misconfiguration, class};
use crate::{backoff, clock, sync::mutex::Mutex};
use redis::{RedisError, RedisResult, Value};
use std::{convert::Infallible, future::Future, time::Duration};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// A task that runs from its first use on, until it is dropped.
#[derive(Default)]
pub(in crate::redis) struct KeptTask(Mutex<Option<AbortOnDropHandle<Infallible>>>);

impl KeptTask {
    /// Spawns the task if it does not run yet, or if its runtime has ended.
    pub(in crate::redis) fn start<F>(&self, task: impl FnOnce() -> F)
    where
        F: Future<Output = Infallible> + Send + 'static,
    {
        let mut current = self.0.lock();
        if current.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            *current = Some(AbortOnDropHandle::new(tokio::spawn(task())));
        }
    }
}

/// A subscription that is kept.
pub(super) trait Subscription: Send {
    /// Subscribes, and returns when the subscription is lost or is to be replaced. An error is a failed attempt.
    fn hold(&mut self) -> impl Future<Output = RedisResult<()>> + Send;

    /// Reports a failed attempt to subscribe.
    fn on_failure(&self, error: &RedisError);
}

/// Subscribes, and again whenever the subscription has ended.
pub(super) async fn supervise(mut subscription: impl Subscription) -> Infallible {
    let mut failures = 0;
    loop {
        let held = subscription.hold().await;
        failures = if held.is_ok() { 0 } else { failures + 1 };
        let mut pause = backoff::poll(failures, clock::random_unit());
        if let Err(error) = held {
            subscription.on_failure(&error);
            // An operator has to correct it. Credentials slow down the attempts of all connections.
            if matches!(class(&error), ErrorClass::Misconfigured(setting) if setting != Misconfiguration::Credentials) {
                pause = CHECK_INTERVAL;
            }
        }
        sleep(pause).await;
    }
}

/// Reports whether the reply to a `PING`, within this time, shows a server that works. A server that serves no client
/// sends no messages either. A permission error is a reply, so the connection works.
pub(in crate::redis) async fn answers(limit: Duration, ping: impl Future<Output = RedisResult<Value>>) -> bool {
    let is_denied = |error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights);
    let is_reply = |reply: RedisResult<Value>| reply.and_then(Value::extract_error).map_or_else(is_denied, |_| true);
    timeout(limit, ping).await.is_ok_and(is_reply)
}

/// Interval between checks of a subscription, maximum time for the reply, and pause after a misconfiguration.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
