//! Who does the cryptography of TLS connections.

/// [`choose_provider`], if connections of the client are over TLS: an application that uses none may choose later.
pub(super) fn prepare(client: &redis::Client) {
    if matches!(client.get_connection_info().addr(), redis::ConnectionAddr::TcpTls { .. }) {
        choose_provider();
    }
}

/// Before a connection that may be one over TLS: chooses `ring`, unless the application has chosen by then, with
/// `CryptoProvider::install_default`.
///
/// redis-rs asks rustls for the provider of the process, and rustls panics if none is chosen while several are compiled
/// in: that happens to whoever has another crate that brings `aws-lc-rs`, and is no reason for us to fail.
pub(super) fn choose_provider() {
    #[cfg(feature = "tls-rustls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
