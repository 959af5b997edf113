//! The crypto provider of TLS connections.

/// Calls [`choose_provider`] if connections of the client use TLS. Otherwise an application may still choose later.
pub(super) fn prepare(client: &redis::Client) {
    if matches!(client.get_connection_info().addr(), redis::ConnectionAddr::TcpTls { .. }) {
        choose_provider();
    }
}

/// Chooses `ring` before a connection that may use TLS, unless the application has already chosen with
/// `CryptoProvider::install_default`.
///
/// redis-rs asks rustls for the provider of the process. rustls panics if none is chosen and several are compiled in,
/// which happens when another crate of the application brings `aws-lc-rs`.
pub(super) fn choose_provider() {
    #[cfg(feature = "tls-rustls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
