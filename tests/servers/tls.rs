//! TLS: a server that accepts only TLS, with temporary certificates.
//!
//! Tests build rustls with `custom-provider`, so no process-wide crypto provider is installed, as in applications with
//! two providers. rustls panics unless the store chooses a provider. Seen to panic without that choice.

use crate::{
    kit::{Events, answers, calls_of_a_herd, documented, hits, patient, recovers, tell},
    support::{RedisServer, eventually, skip},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::{ClientTlsConfig, ConnectionAddr, RedisResult, TlsCertificates};
use stampede_guard::{
    RedisEndpoint, RedisStore, StampedeGuard,
    store::{CacheKey, LeaseReply, LeaseRequest, Leaves, Store},
};
use std::fs;
use tempfile::TempDir;

/// A certificate authority and the files that it signed for the server.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Directory with the certificates of the server.
    dir: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::of("127.0.0.1")
    }

    /// Makes an authority that has signed for this host.
    pub(crate) fn of(host: &str) -> Self {
        let mut params = CertificateParams::default();
        // OpenSSL treats a certificate whose subject equals its issuer as self-signed, so the names must differ.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let authority = Self { issuer, dir: tempfile::tempdir().expect("a directory") };
        let (cert, key) = authority.sign(host);
        for (name, text) in [("ca", authority.root()), ("cert", cert), ("key", key)] {
            fs::write(authority.dir.path().join(name), text).expect("written");
        }
        authority
    }

    fn root(&self) -> String {
        self.issuer.pem()
    }

    /// Returns a certificate for the name, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        (cert.pem(), key.serialize_pem())
    }

    /// Returns the settings of a server that name its files.
    pub(crate) fn files(&self) -> [(&'static str, String); 3] {
        let file = |name| self.dir.path().join(name).display().to_string();
        [("tls-ca-cert-file", file("ca")), ("tls-cert-file", file("cert")), ("tls-key-file", file("key"))]
    }

    /// Starts a server with a certificate. `asks` says whether it requires client certificates. Returns `None` if the
    /// test is skipped because the server was built without TLS.
    pub(crate) fn server(&self, asks: &str, more: &[&str]) -> Option<RedisServer> {
        let files = self.files().map(|(setting, path)| [format!("--{setting}"), path]);
        let files: Vec<_> = files.iter().flatten().map(String::as_str).collect();
        let server = RedisServer::tls(&[&files[..], &["--tls-auth-clients", asks], more].concat());
        if server.is_none() {
            skip("the server was built without TLS");
        }
        server
    }

    /// Returns a client that trusts this authority only.
    fn client(&self, server: &RedisServer, own: Option<(String, String)>) -> redis::Client {
        let url = format!("rediss://127.0.0.1:{}", server.port());
        redis::Client::build_with_tls(url, self.certificates(own)).expect("a client")
    }

    /// Returns the certificates of a client that trusts this authority only.
    pub(crate) fn certificates(&self, own: Option<(String, String)>) -> TlsCertificates {
        TlsCertificates {
            client_tls: own.map(|(cert, key)| ClientTlsConfig { client_cert: cert.into(), client_key: key.into() }),
            root_cert: Some(self.root().into()),
        }
    }
}

#[tokio::test]
async fn tls_herd_makes_one_call_and_wakes_waiters() {
    let authority = Authority::new();
    let Some(server) = authority.server("no", &[]) else { return };
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let guards = [(); 2].map(|()| {
        let connect = |pem| -> RedisResult<StampedeGuard> {
            documented! {
                let certificates = TlsCertificates { root_cert: Some(pem), client_tls: None };
                let client = redis::Client::build_with_tls(&*url, certificates)?;
                let guard = StampedeGuard::new(client);
            }
            Ok(guard.store_timeout(30 * crate::SECOND))
        };
        connect(authority.root().into()).expect("a client")
    });
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1);
    assert!(hits(&guards[1], "k").await);

    is_woken([(); 2].map(|()| RedisStore::new(authority.client(&server, None)))).await;
}

/// Asserts that a waiter is woken by message: it does not poll.
async fn is_woken([a, b]: [RedisStore; 2]) {
    let at = CacheKey::new("sg", 0, "woken");
    let (mut leader, mut waiter) = (a.listen(&at), b.listen(&at));
    let ask = |token| LeaseRequest::new(token, 60 * crate::SECOND);
    let (lead, wait) = (ask(leader.token()), ask(waiter.token()));
    // The first connections are made within a second each, or made again.
    eventually("the lease is granted", async || {
        matches!(a.get_or_lease(&at, lead).await, Ok(LeaseReply::Granted { .. }))
    })
    .await;
    eventually("the waiter is registered", async || {
        matches!(b.get_or_lease(&at, wait).await, Ok(LeaseReply::Wait { registered: true, .. }))
    })
    .await;
    a.invalidate(std::slice::from_ref(&at), Leaves::Nothing).await.expect("acknowledged");
    assert!(waiter.notified().await, "the entry was invalidated");
}

#[tokio::test]
async fn tls_1_2_only_server_is_supported() {
    let authority = Authority::new();
    let Some(server) = authority.server("no", &["--tls-protocols", "TLSv1.2"]) else { return };
    let guard = patient(authority.client(&server, None));
    answers(&guard, "k").await;
    assert!(hits(&guard, "k").await);
}

/// The certificates of the user, in the address of the first node, are for all connections.
#[tokio::test]
async fn cluster_over_tls_is_woken_by_message() {
    let authority = Authority::new();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let Some(server) = authority.server("yes", &cluster) else { return };
    let own = authority.sign("app");
    let client = authority.client(&server, Some(own));
    answers(&patient(client.clone()), "k").await; // chooses the crypto provider
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    tell::<()>(&client, &format!("CLUSTER ADDSLOTS {}", slots.join(" "))).await;
    eventually("the node serves all slots", async || {
        tell::<String>(&client, "CLUSTER INFO").await.contains("cluster_state:ok")
    })
    .await;

    let node = client.get_connection_info().clone();
    let endpoint = RedisEndpoint::cluster([node.clone()]).expect("an endpoint");
    let guards = [(); 2].map(|()| patient(endpoint.clone()));
    for guard in &guards {
        recovers(guard).await; // a question to the node may take a second, and so may the handshake on a busy machine
    }
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1);
    is_woken([(); 2].map(|()| RedisStore::new(endpoint.clone()))).await;

    let plain = node.clone().set_addr(ConnectionAddr::Tcp("127.0.0.1".into(), server.port()));
    let error = RedisEndpoint::cluster([node, plain]).expect_err("the password would be sent as plain text");
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn killed_tls_server_is_found_after_restart() {
    let authority = Authority::new();
    let Some(server) = authority.server("no", &[]) else { return };
    let guard = patient(authority.client(&server, None));
    answers(&guard, "before").await;
    server.kill();
    answers(&guard, "without").await;
    server.restart().await;
    recovers(&guard).await;
}

/// Asserts that the origin answers and that an event names the reason.
async fn is_not_trusted(client: redis::Client, why: &str) {
    let events = Events::listen();
    let guard = patient(client);
    answers(&guard, "k").await;
    assert!(!hits(&guard, "k").await);
    assert!(events.about(why) > 0, "{}", events.all());
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let Some(server) = authority.server("no", &[]) else { return };
    is_not_trusted(other.client(&server, None), "certificate").await;
}

#[tokio::test]
async fn a_client_shows_its_certificate_if_the_server_asks() {
    let authority = Authority::new();
    let Some(server) = authority.server("yes", &[]) else { return };
    let own = authority.sign("app");
    let guards = [(); 2].map(|()| patient(authority.client(&server, Some(own.clone()))));
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1);
    assert!(hits(&guards[1], "k").await);
    is_not_trusted(authority.client(&server, None), "the store failed").await;
}
