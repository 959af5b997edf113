//! TLS: a server that speaks nothing else, with certificates that are made here and thrown away.
//!
//! rustls is built with `custom-provider` in tests: then nobody has chosen who does the cryptography, as in applications
//! into which two providers are compiled, and rustls panics unless the store chooses. Seen so with the choice taken out.

use crate::{
    kit::{Events, answers, calls_of_a_herd, hits, patient, recovers},
    support::{RedisServer, eventually},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::{ClientTlsConfig, TlsCertificates};
use stampede_guard::{
    RedisStore,
    store::{Address, Ask, Lead, Store},
};
use std::fs;
use tempfile::TempDir;

/// Who signs, and whom it has signed.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Where the server finds its files.
    dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        // OpenSSL takes a certificate whose subject is its issuer for one that signed itself.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let authority = Self { issuer, dir: tempfile::tempdir().expect("a directory") };
        let (cert, key) = authority.sign("127.0.0.1");
        for (name, text) in [("ca", authority.root()), ("cert", cert), ("key", key)] {
            fs::write(authority.dir.path().join(name), text).expect("written");
        }
        authority
    }

    fn root(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for that name, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        (cert.pem(), key.serialize_pem())
    }

    /// A server that shows its certificate, and asks for one or not.
    fn server(&self, asks: &str, more: &[&str]) -> RedisServer {
        let file = |name| self.dir.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
        let files = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert, "--tls-key-file", &key];
        RedisServer::tls(&[&files[..], &["--tls-auth-clients", asks], more].concat())
    }

    /// A client that trusts nobody else.
    fn client(&self, server: &RedisServer, own: Option<(String, String)>) -> redis::Client {
        let certificates = TlsCertificates {
            client_tls: own.map(|(cert, key)| ClientTlsConfig { client_cert: cert.into(), client_key: key.into() }),
            root_cert: Some(self.root().into()),
        };
        let url = format!("rediss://127.0.0.1:{}", server.port());
        redis::Client::build_with_tls(url, certificates).expect("a client")
    }
}

#[tokio::test]
async fn a_herd_over_tls_is_one_call_and_those_who_wait_are_woken() {
    let authority = Authority::new();
    let server = authority.server("no", &[]);
    let guards = [(); 2].map(|()| patient(authority.client(&server, None)));
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1);
    assert!(hits(&guards[1], "k").await);

    let [a, b] = [(); 2].map(|()| RedisStore::new(authority.client(&server, None)));
    let at = Address::new("sg", 0, "woken");
    let (mut leader, mut waiter) = (a.listen(&at), b.listen(&at));
    let ask = |token| Ask { token, lease: crate::SECOND, seen: None };
    assert!(matches!(a.lead(&at, ask(leader.token())).await, Ok(Lead::Granted { .. })));
    let wait = ask(waiter.token());
    eventually("wake-ups are heard", async || {
        matches!(b.lead(&at, wait).await, Ok(Lead::Wait { registered: true, .. }))
    })
    .await;
    a.invalidate(&at).await.expect("acknowledged");
    assert!(waiter.woken().await, "it is gone");
}

#[tokio::test]
async fn a_server_that_speaks_tls_1_2_only_will_do() {
    let authority = Authority::new();
    let server = authority.server("no", &["--tls-protocols", "TLSv1.2"]);
    let guard = patient(authority.client(&server, None));
    answers(&guard, "k").await;
    assert!(hits(&guard, "k").await);
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again() {
    let authority = Authority::new();
    let server = authority.server("no", &[]);
    let guard = patient(authority.client(&server, None));
    answers(&guard, "before").await;
    server.kill();
    answers(&guard, "without").await;
    server.restart().await;
    recovers(&guard).await;
}

/// The origin answers, and the event says why.
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
    let server = authority.server("no", &[]);
    is_not_trusted(other.client(&server, None), "certificate").await;
}

#[tokio::test]
async fn a_client_shows_its_certificate_if_the_server_asks() {
    let authority = Authority::new();
    let server = authority.server("yes", &[]);
    let own = authority.sign("app");
    let guards = [(); 2].map(|()| patient(authority.client(&server, Some(own.clone()))));
    assert_eq!(calls_of_a_herd(&guards, "k").await, 1);
    assert!(hits(&guards[1], "k").await);
    is_not_trusted(authority.client(&server, None), "the store did not answer").await;
}
