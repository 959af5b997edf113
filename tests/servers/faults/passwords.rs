//! Passwords that change.

use super::{guards, server_survives, survives};
use crate::{
    SECOND,
    kit::{command, connection},
    sentinel::watched::Watched,
    support::eventually,
};
use stampede_guard::RedisEndpoint;
use tokio::time::sleep;

/// Seen to fail (5 stale) if a process serves what it has pending invalidations of.
#[tokio::test]
async fn password_that_changes_under_load_leaves_nothing_stale() {
    server_survives("password", async |server| {
        let mut admin = connection(&server.client()).await;
        for password in ["secret", ""] {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", "requirepass", password]).exec_async(&mut admin).await.expect("set");
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec_async(&mut admin).await.expect("killed");
            sleep(2 * SECOND).await;
        }
    })
    .await;
}

/// Sentinels get another password, and that of before again. Meanwhile they name another master to no guard.
///
/// Seen to fail (22 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn password_that_changes_at_sentinels_leaves_nothing_stale() {
    let watched = Watched::start().await;
    watched.master().await;
    let set = async |password: &str| {
        for sentinel in &watched.sentinels {
            command::<()>(sentinel, &format!("ACL SETUSER app on resetpass >{password} +@all &*")).await;
            command::<i64>(sentinel, "CLIENT KILL USER app").await;
        }
    };
    set("secret").await;
    let urls = watched.urls().into_iter().map(|url| url.replace("redis://", "redis://app:secret@"));
    let endpoint = RedisEndpoint::sentinel(urls, "main").expect("URLs");
    let guards = guards(|| endpoint.clone());
    survives("sentinels, password", guards.clone(), async || {
        watched.stop_replication().await;
        set("another").await;
        watched.servers[0].kill();
        watched.next_master(&watched.servers[0]).await;
        for guard in &guards {
            eventually("the sentinels refuse the password", async || guard.health().credentials_refused).await;
        }
        sleep(2 * SECOND).await;
        set("secret").await;
        watched.settle().await;
    })
    .await;
}
