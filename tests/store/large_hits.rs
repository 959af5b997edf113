//! Large entries in the reply of `get_or_lease`: the script names them, and the store reads them by `GET`.

use crate::{
    store_over,
    suite::{LONG, ask, fill, fresh, lead, payload},
    support::{Monitor, RedisServer},
};
use redis::{
    Arg, Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use stampede_guard::{
    Connection, RedisStore,
    store::{FillOutcome, LeaseReply},
};

/// Redis hashes the strings that it passes to scripts, while its other clients wait.
///
/// Seen to fail if the script returns entries of all sizes.
#[tokio::test]
async fn large_hit_of_a_waiter_is_read_by_get() {
    let server = RedisServer::start();
    let store = store_over(server.client());
    for (length, reads) in [(3_900, 0), (5_000, 1), (LARGE, 1)] {
        let key = fresh("hit");
        let lease = lead(&store, &key, LONG).await;
        assert!(matches!(ask(&store, &key, LONG, None).await.1, LeaseReply::Wait { .. }));
        assert_eq!(fill(&store, &key, lease, "x".repeat(length).leak()).await, FillOutcome::Stored);
        let monitor = Monitor::start(&server).await;
        let LeaseReply::Hit(entry) = ask(&store, &key, LONG, None).await.1 else { panic!("a hit") };
        assert_eq!(entry.payload().bytes().len(), length);
        let sent = monitor.stop().await;
        assert_eq!(sent.iter().filter(|command| command.name == "GET").count(), reads, "{length}: {sent:?}");
    }
}

/// A connection over which an entry vanishes just before it is read.
#[derive(Clone)]
struct Vanishing(MultiplexedConnection);

impl ConnectionLike for Vanishing {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let args: Vec<_> = cmd.args_iter().collect();
            if let [Arg::Simple(b"GET"), Arg::Simple(name)] = args[..] {
                self.0.req_packed_command(redis::cmd("DEL").arg(name)).await?;
            }
            self.0.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// Seen to fail if an absent entry is an error.
#[tokio::test]
async fn large_hit_that_vanishes_leads_to_a_lease() {
    let server = RedisServer::start();
    let filling = RedisStore::new(server.client());
    let store = store_over(Connection(Vanishing(server.connection().await)));
    let key = fresh("vanishing");
    let lease = lead(&filling, &key, LONG).await;
    fill(&filling, &key, lease, "x".repeat(LARGE).leak()).await;
    assert!(payload(&filling, &key).await.is_some());
    assert!(matches!(ask(&store, &key, LONG, None).await.1, LeaseReply::Granted { .. }));
}

const LARGE: usize = 64 << 10;
