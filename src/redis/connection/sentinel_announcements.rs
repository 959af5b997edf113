//! The task that follows the announcements of the sentinels (`+switch-master`).

use super::{
    error_class::{ErrorClass, Misconfiguration, class},
    sentinel::{RETRY_PAUSE, Sentinels},
    supervise::{CHECK_INTERVAL, Subscription, answers, checks, supervise},
};
use futures_util::{StreamExt, future::join_all};
use redis::{RedisError, RedisResult, aio::PubSub, sentinel::SentinelClient};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::sleep};

/// Follows the announcements of the sentinels.
///
/// Without it, a process whose connections do not break would stay with an old master that sentinels cannot reach.
pub(super) async fn listen(sentinels: Arc<Sentinels>) -> Infallible {
    let announced = Notify::new();
    let (sentinels, announced) = (&*sentinels, &announced);
    let following = sentinels.clients.iter().map(|client| supervise(Follower { sentinels, client, announced }));
    tokio::join!(join_all(following), ask_when(announced, sentinels)).1
}

/// Asks after announcements. All that arrive during a question lead to one more question: it may have been answered
/// before the other sentinels have learnt of the new master.
async fn ask_when(announced: &Notify, sentinels: &Sentinels) -> Infallible {
    loop {
        announced.notified().await;
        while sentinels.ask().await.is_err() {
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Listens to one sentinel.
struct Follower<'a> {
    sentinels: &'a Sentinels,
    client: &'a tokio::sync::Mutex<SentinelClient>,
    announced: &'a Notify,
}

impl Subscription for Follower<'_> {
    type Channel = PubSub;

    async fn subscribe(&self) -> RedisResult<PubSub> {
        let sentinel = self.client.lock().await.async_get_sentinel_client().await?;
        let mut channel = sentinel.get_async_pubsub().await?;
        channel.subscribe("+switch-master").await?;
        Ok(channel)
    }

    fn subscribe_timeout(&self) -> Duration {
        SUBSCRIBE_TIMEOUT
    }

    /// Passes announcements on. Returns when the connection is lost, or when the sentinel does not answer.
    async fn stay(&mut self, channel: PubSub) {
        self.announced.notify_one(); // the master may have changed before the subscription
        let (mut sink, mut messages) = channel.split();
        let mut checks = checks();
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(_) => self.announced.notify_one(),
                    None => return,
                },
                _ = checks.tick() => if !answers(CHECK_INTERVAL, sink.ping()).await {
                    return;
                },
            }
        }
    }

    fn on_failure(&self, error: &RedisError) {
        if let ErrorClass::Misconfigured(setting) = class(error) {
            let hint = match setting {
                Misconfiguration::Rights => RIGHTS_HINT.into(),
                other => other.hint(error),
            };
            self.sentinels.log.misconfigured(&hint, error);
        }
    }

    fn pause(&self, _: u32) -> Duration {
        RETRY_PAUSE
    }
}

/// Maximum time to subscribe at a sentinel.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(3);
const RIGHTS_HINT: &str = "grant the user of the sentinel `+role`, `+subscribe` and `&+switch-master` with `ACL SETUSER`: \
    until then an old master that still answers is not left";
