//! The task that follows the announcements of the sentinels (`+switch-master`).

use super::{
    error_class::{ErrorClass, Misconfiguration, class},
    sentinel::{RETRY_PAUSE, Sentinels},
};
use crate::{clock, sync::mutex::Mutex};
use futures_util::{StreamExt, future::join_all};
use redis::{
    ErrorKind, RedisError, RedisResult, Value,
    aio::{PubSub, PubSubSink},
    sentinel::SentinelClient,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval_at, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// Follows the announcements of the sentinels from the first connection on, until it is dropped.
///
/// Without it, a process whose connections do not break would stay with an old master that sentinels cannot reach.
#[derive(Default)]
pub(super) struct Announcements {
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Announcements {
    /// Starts to listen if it does not listen yet, or if the runtime of its task has ended.
    pub(super) fn start(&self, sentinels: &Arc<Sentinels>) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            *task = Some(AbortOnDropHandle::new(tokio::spawn(listen(sentinels.clone()))));
        }
    }
}

async fn listen(sentinels: Arc<Sentinels>) {
    let announced = Notify::new();
    let following = sentinels.clients.iter().map(|client| follow(&sentinels, client, &announced));
    tokio::select! {
        () = ask_when(&announced, &sentinels) => {}
        _ = join_all(following) => {}
    }
}

/// Asks after announcements. All that arrive during a question lead to one more question: it may have been answered
/// before the other sentinels have learnt of the new master.
async fn ask_when(announced: &Notify, sentinels: &Sentinels) {
    loop {
        announced.notified().await;
        while sentinels.ask().await.is_err() {
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Listens to one sentinel, and subscribes again when its connection is lost.
async fn follow(sentinels: &Sentinels, client: &tokio::sync::Mutex<SentinelClient>, announced: &Notify) {
    let timed_out = |_| Err(RedisError::from((ErrorKind::Io, "subscribing to a sentinel timed out")));
    loop {
        let pause = match timeout(SUBSCRIBE_TIMEOUT, subscribe(client)).await.unwrap_or_else(timed_out) {
            Ok(channel) => {
                announced.notify_one(); // the master may have changed before the subscription
                stay(channel, announced).await;
                RETRY_PAUSE
            }
            Err(error) => match class(&error) {
                ErrorClass::Misconfigured(setting) => {
                    let hint = match setting {
                        Misconfiguration::Rights => RIGHTS_HINT.into(),
                        other => other.hint(&error),
                    };
                    sentinels.log.misconfigured(&hint, &error);
                    CHECK_INTERVAL
                }
                _ => RETRY_PAUSE,
            },
        };
        sleep(pause).await;
    }
}

async fn subscribe(client: &tokio::sync::Mutex<SentinelClient>) -> RedisResult<PubSub> {
    let sentinel = client.lock().await.async_get_sentinel_client().await?;
    let mut channel = sentinel.get_async_pubsub().await?;
    channel.subscribe("+switch-master").await?;
    Ok(channel)
}

/// Passes announcements on. Returns when the connection is lost, or when the sentinel does not answer.
async fn stay(channel: PubSub, announced: &Notify) {
    let (mut sink, mut messages) = channel.split();
    let mut watchdog = interval_at(clock::deadline_after(CHECK_INTERVAL), CHECK_INTERVAL);
    watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(_) => announced.notify_one(),
                None => return,
            },
            _ = watchdog.tick() => if !answers(&mut sink).await {
                return;
            },
        }
    }
}

/// Reports whether the sentinel answers. A permission error is a reply, so the connection works.
async fn answers(sink: &mut PubSubSink) -> bool {
    let is_denied = |error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights);
    timeout(CHECK_INTERVAL, sink.ping::<Value>()).await.is_ok_and(|reply| reply.map_or_else(is_denied, |_| true))
}

/// Maximum time to subscribe at a sentinel.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between checks of a subscription, maximum time for the reply, and pause after a misconfiguration.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const RIGHTS_HINT: &str = "grant the user of the sentinel `+role`, `+subscribe` and `&+switch-master` with `ACL SETUSER`: \
    until then an old master that still answers is not left";
