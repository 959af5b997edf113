//! Connections for messages, which a task keeps: made, checked, and made again when they end.

use super::error_class::{ErrorClass, Misconfiguration, class};
use crate::{clock, sync::mutex::Mutex};
use redis::{ErrorKind, RedisError, RedisResult, Value};
use std::{convert::Infallible, future::Future, time::Duration};
use tokio::time::{Interval, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// A task that runs from its first use on, until it is dropped.
#[derive(Default)]
pub(super) struct KeptTask(Mutex<Option<AbortOnDropHandle<Infallible>>>);

impl KeptTask {
    /// Spawns the task if it does not run yet, or if its runtime has ended.
    pub(super) fn start<F>(&self, task: impl FnOnce() -> F)
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
    type Channel: Send;

    fn subscribe(&self) -> impl Future<Output = RedisResult<Self::Channel>> + Send;

    /// Returns the maximum time to subscribe.
    fn subscribe_timeout(&self) -> Duration;

    /// Returns when the channel is lost or is to be replaced.
    fn stay(&mut self, channel: Self::Channel) -> impl Future<Output = ()> + Send;

    /// Reports a failed attempt to subscribe.
    fn on_failure(&self, error: &RedisError);

    /// Returns the pause after this number of failed attempts in a row.
    fn pause(&self, failures: u32) -> Duration;
}

/// Subscribes, and again whenever the subscription has ended.
pub(super) async fn supervise(mut subscription: impl Subscription) -> Infallible {
    let timed_out = |_| Err(RedisError::from((ErrorKind::Io, "subscribing to redis timed out")));
    let mut failures = 0;
    loop {
        let mut is_misconfigured = false;
        let limit = subscription.subscribe_timeout();
        match timeout(limit, subscription.subscribe()).await.unwrap_or_else(timed_out) {
            Ok(channel) => {
                failures = 0;
                subscription.stay(channel).await;
            }
            Err(error) => {
                failures += 1;
                subscription.on_failure(&error);
                is_misconfigured = matches!(class(&error), ErrorClass::Misconfigured(_));
            }
        }
        // A misconfiguration that an operator has to correct is not worth two connections a second.
        sleep(if is_misconfigured { CHECK_INTERVAL } else { subscription.pause(failures) }).await;
    }
}

/// Returns the times at which a subscription is checked.
pub(super) fn checks() -> Interval {
    let mut ticks = interval_at(clock::deadline_after(CHECK_INTERVAL), CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Reports whether the reply to a `PING`, within this time, shows a server that works. A server that serves no client
/// sends no messages either. A permission error is a reply, so the connection works.
pub(super) async fn answers(limit: Duration, ping: impl Future<Output = RedisResult<Value>>) -> bool {
    let is_denied = |error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights);
    let is_reply = |reply: RedisResult<Value>| reply.and_then(Value::extract_error).map_or_else(is_denied, |_| true);
    timeout(limit, ping).await.is_ok_and(is_reply)
}

/// Interval between checks of a subscription, maximum time for the reply, and pause after a misconfiguration.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
