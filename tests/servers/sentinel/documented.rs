//! The lines of src/guide/sentinel.md.

use super::{is_shared_by_message, watched::Watched};
use crate::{
    SECOND,
    acl::{self, refused},
    kit::{command, documented, patient, recovers},
    support::{RedisServer, eventually},
    tls::Authority,
};
use redis::{
    RedisResult, TlsMode,
    sentinel::{SentinelClient, SentinelServerType},
};
use stampede_guard::{Lock, RedisEndpoint, StampedeGuard, lock::FencedLock};

#[tokio::test]
async fn documented_sentinel_lines_connect() -> RedisResult<()> {
    let watched = Watched::start().await;
    let sentinels = watched.urls();
    documented! {
        let guard = StampedeGuard::new(RedisEndpoint::sentinel(sentinels, "main")?);
    }
    is_shared_by_message(&[guard.store_timeout(30 * SECOND), patient(watched.endpoint())], "endpoint").await;

    let sentinels = watched.urls();
    documented! {
        let client = SentinelClient::build(sentinels, String::from("main"), None, SentinelServerType::Master)?;
        let guard = StampedeGuard::new(client);
    }
    recovers(&guard).await;
    Ok(())
}

/// Servers and sentinels have users of their own.
#[tokio::test]
async fn documented_sentinel_lines_log_in() -> RedisResult<()> {
    let watched = Watched::start().await;
    // The documented rights, with the password of this document.
    let rights =
        [acl::documented(), acl::documented_for("locks")].concat().join(" ").replace(">secret", ">server-secret");
    for server in &watched.servers {
        command::<()>(server, &format!("ACL SETUSER app {rights} +role")).await;
    }
    let page = include_str!("../../../src/guide/sentinel.md");
    let rule = page.lines().find(|line| line.starts_with("ACL SETUSER observer ")).expect("a rule in the docs");
    for sentinel in &watched.sentinels {
        command::<()>(sentinel, rule).await;
    }
    let with_user = |url: String| url.replace("redis://", "redis://observer:sentinel-secret@");
    let sentinels: Vec<_> = watched.urls().into_iter().map(with_user).collect();
    documented! {
        let endpoint = RedisEndpoint::sentinel_with(sentinels, "main", |client| {
            client.set_client_to_redis_username("app").set_client_to_redis_password("server-secret")
        })?;
    }
    let guards = [patient(endpoint.clone()), patient(endpoint.clone())];
    is_shared_by_message(&guards, "users").await;
    let lock = Lock::new(endpoint).recipe(FencedLock).store_timeout(30 * SECOND);
    lock.acquire("k").await.expect("free").release().await.expect("held");
    for (server, user) in [(&watched.servers[0], "user=app"), (&watched.sentinels[1], "user=observer")] {
        eventually("the user is logged in and sends a ping", async || {
            let clients: String = command(server, "CLIENT LIST").await;
            clients.lines().any(|client| client.contains(user) && client.contains("cmd=ping"))
        })
        .await;
        assert_eq!(refused(server).await, [""; 0], "{user}");
    }
    Ok(())
}

/// The server accepts only TLS, the sentinel does without.
#[tokio::test]
async fn documented_sentinel_lines_connect_to_tls_servers() -> RedisResult<()> {
    let authority = Authority::new();
    let Some(server) = authority.server("no", &[]) else { return Ok(()) };
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1", server.port());
    let files = authority.files().map(|(setting, path)| format!("{setting} {path}"));
    let config: Vec<_> = [monitor, "tls-replication yes".to_owned()].into_iter().chain(files).collect();
    let sentinel = RedisServer::sentinel(&config.iter().map(String::as_str).collect::<Vec<_>>());
    eventually("the sentinel reaches the server", async || {
        command::<String>(&sentinel, "INFO sentinel").await.contains("status=ok")
    })
    .await;
    let (sentinels, certificates) = ([sentinel.url()], authority.certificates(None));
    documented! {
        let endpoint = RedisEndpoint::sentinel_with(sentinels, "main", |client| {
            let client = client.set_client_to_redis_tls_mode(TlsMode::Secure);
            client.set_client_to_redis_certificates(certificates.clone())
        })?;
    }
    is_shared_by_message(&[patient(endpoint.clone()), patient(endpoint)], "tls").await;
    Ok(())
}
