//! Servers that are announced by host names.

use super::{cluster::started_shards_survive, guards, survives};
use crate::{
    SECOND,
    cluster::shards::{Shards, endpoint},
    kit::command,
    sentinel::watched::Watched,
    support::{RedisServer, skip},
    tls::Authority,
};
use redis::{AsyncConnectionConfig, TlsMode};
use stampede_guard::RedisEndpoint;
use std::time::Duration;

/// The names do not resolve: without TLS a guard connects to addresses, while redirections name the hosts.
///
/// Seen to fail (invalidations stay pending) if nodes are connected to by the names that they announce.
#[tokio::test]
async fn cluster_that_announces_host_names_leaves_nothing_stale() {
    if RedisServer::is_older_than(7, 0) {
        return skip("it has no setting `cluster-announce-hostname`");
    }
    let start = async || {
        let shards = Shards::start().await;
        let names: Vec<_> = (0..6).map(|n| format!("node-{n}.invalid")).collect();
        announce(&shards, &names).await;
        let endpoint = endpoint(&shards.masters[1..]);
        (shards, endpoint, ())
    };
    started_shards_survive("cluster, host names", &[0, 1], Duration::ZERO, start, two_fail_over).await;
}

/// The certificate is valid for the announced name, and not for an address.
///
/// Seen to fail (invalidations stay pending) if nodes are connected to by their addresses, and (11 stale) without the
/// repetition of recent invalidations.
#[tokio::test]
async fn tls_cluster_with_host_names_leaves_nothing_stale() {
    let authority = Authority::of("localhost");
    let Some(_) = authority.server("no", &[]) else { return };
    let files = authority.files().map(|(setting, path)| [format!("--{setting}"), path]);
    let files: Vec<_> = files.iter().flatten().map(String::as_str).collect();
    // `localhost` may lead to either address.
    let bind = ["--bind", "127.0.0.1", "-::1"];
    let uses = ["--tls-cluster", "yes", "--tls-replication", "yes", "--tls-auth-clients", "no"];
    let start = async || {
        let shards = Shards::with(&[&files[..], &uses, &bind].concat()).await;
        announce(&shards, &[(); 6].map(|()| "localhost".to_owned())).await;
        let client = |node: &RedisServer| {
            let url = format!("rediss://localhost:{}", node.tls_port());
            redis::Client::build_with_tls(url, authority.certificates(None)).expect("a client")
        };
        let seeds = shards.masters[1..].iter().map(|node| client(node).get_connection_info().clone());
        // A handshake takes long on a busy machine.
        let patient = |config: AsyncConnectionConfig| config.set_connection_timeout(Some(10 * SECOND));
        let endpoint = RedisEndpoint::cluster(seeds).expect("an endpoint").connection_config(patient);
        (shards, endpoint, ())
    };
    started_shards_survive("cluster, host names over TLS", &[0, 1], Duration::ZERO, start, two_fail_over).await;
}

/// Lets each node announce its host name, by which redirections name it from then on.
async fn announce(shards: &Shards, names: &[String]) {
    let mut described = Vec::new();
    for (node, name) in shards.nodes().zip(names) {
        command::<()>(node, &format!("CONFIG SET cluster-announce-hostname {name}")).await;
        described.push(format!(":{}@{},{name}", node.port(), node.bus_port()));
    }
    shards.set("cluster-preferred-endpoint-type", "hostname").await;
    shards.described_by(&described).await;
}

/// One master is replaced by command, the other one because it dies.
async fn two_fail_over(shards: &Shards, (): &()) {
    command::<()>(&shards.replicas[1], "CLUSTER FAILOVER").await;
    shards.promoted(1).await;
    shards.stop_replication(0).await;
    shards.masters[0].kill();
    shards.promoted(0).await;
}

/// Sentinels and servers have the same name, and are told apart by their ports.
///
/// Seen to fail (31 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn sentinels_that_announce_host_names_leave_nothing_stale() {
    let servers = Watched::servers(&NAMED);
    let port = servers[0].port();
    let watched = Watched::watch(servers, "localhost", port, &NAMES).await;
    master_is_killed("sentinels, host names", &watched, &watched.endpoint()).await;
}

/// Servers and sentinels use TLS, and their certificates are valid for the announced name alone.
///
/// Seen to fail (never shared) if the certificates are for another name.
#[tokio::test]
async fn tls_sentinels_with_host_names_leave_nothing_stale() {
    let authority = Authority::of("localhost");
    let Some(_) = authority.server("no", &[]) else { return };
    let files = authority.files();
    let args = files.iter().flat_map(|(setting, path)| [format!("--{setting}"), path.clone()]).collect::<Vec<_>>();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let servers =
        Watched::servers(&[&NAMED, &args[..], &["--tls-replication", "yes", "--tls-auth-clients", "no"]].concat());
    let port = servers[0].tls_port();
    let lines = files.map(|(setting, path)| format!("{setting} {path}"));
    let lines = lines.each_ref().map(String::as_str);
    let config = [&NAMES, &lines[..], &["tls-replication yes", "tls-auth-clients no"]].concat();
    let watched = Watched::watch(servers, "localhost", port, &config).await;
    let urls = watched.sentinels.iter().map(|sentinel| format!("rediss://localhost:{}", sentinel.tls_port()));
    let endpoint = RedisEndpoint::sentinel_with(urls, "main", |client| {
        let client = client.set_client_to_sentinel_certificates(authority.certificates(None));
        client
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(authority.certificates(None))
    });
    // A handshake takes long on a busy machine.
    let patient = |config: AsyncConnectionConfig| config.set_connection_timeout(Some(10 * SECOND));
    let endpoint = endpoint.expect("an endpoint").connection_config(patient);
    master_is_killed("sentinels, host names over TLS", &watched, &endpoint).await;
}

/// The sentinels name the master by its host.
async fn master_is_killed(what: &str, watched: &Watched, endpoint: &RedisEndpoint) {
    let [host, _]: [String; 2] = command(&watched.sentinels[0], "SENTINEL GET-MASTER-ADDR-BY-NAME main").await;
    assert_eq!(host, "localhost");
    survives(what, guards(|| endpoint.clone()), async || {
        watched.stop_replication().await;
        watched.servers[0].kill();
        watched.next_master(&watched.servers[0]).await;
        watched.settle().await;
    })
    .await;
}

/// `localhost` may lead to either address.
const NAMED: [&str; 5] = ["--bind", "127.0.0.1", "-::1", "--replica-announce-ip", "localhost"];
const NAMES: [&str; 3] = ["bind 127.0.0.1 -::1", "sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
