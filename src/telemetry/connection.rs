//! Events about the connections to Redis. Each is emitted once for its cause, not once for each request.

use std::fmt::Display;

/// Reports that no server was reached so far. `address` is `None` if only the client knows it.
pub(crate) fn unreachable(address: Option<&str>, error: &dyn Display) {
    let hint = match address {
        Some(_) => URL_HINT,
        None => CLIENT_HINT,
    };
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "stampede_guard", address, %error, hint, "cannot connect to redis; the connection is tried again");
    let _ = (error, hint);
}

/// Reports a setting that an operator has to correct. Until then the origin answers.
pub(crate) fn misconfigured(address: Option<&str>, error: &dyn Display, hint: &str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "stampede_guard", address, %error, hint, "redis refuses to serve this client");
    let _ = (address, error, hint);
}

const URL_HINT: &str = "correct host, port, scheme (`redis://`, or `rediss://` for TLS) and database in the URL of the \
    client (`redis::Client::open`), or start the server";
/// A cluster client, and a connection that connects by itself, do not say whether it was the password.
const CLIENT_HINT: &str = "correct host, port, scheme (`redis://`, or `rediss://` for TLS), user and password in the \
    URLs of the client that the guard was built from, or start the server";
