//! The log lines about the connections to one endpoint: one for each cause, not one for each request or connection.

#[cfg(feature = "cluster")]
use super::error_class::CLIENT_HINT;
use super::error_class::{CREDENTIALS_HINT, ErrorClass, class, loggable};
use crate::{sync::mutex::Mutex, telemetry};
use redis::{Client, ConnectionAddr, RedisError};
use std::{
    borrow::Cow,
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// The log of the connections to one endpoint: the causes that they have reported.
#[derive(Default)]
pub(in crate::redis) struct ConnectionLog {
    /// `None` for connections that the application has made, and for clusters.
    address: Option<String>,
    /// Whether the server has replied once, or a failed attempt to reach it was reported.
    is_settled: AtomicBool,
    /// The hints about misconfigurations that were given.
    hints: Mutex<HashSet<Cow<'static, str>>>,
}

impl ConnectionLog {
    /// Creates the log of the connections to the server of this client.
    pub(super) fn of(client: &Client) -> Self {
        Self { address: Some(address(client)), ..Self::default() }
    }

    /// Creates the log of the connections to a cluster. Redirections need no hint.
    #[cfg(feature = "cluster")]
    pub(super) fn of_cluster() -> Self {
        Self { hints: Mutex::new([CLIENT_HINT.into()].into()), ..Self::default() }
    }

    /// Reports a failed attempt to connect, unless the server has replied before: then the circuit breaker reports that
    /// it is gone.
    pub(super) fn connect_failed(&self, error: &RedisError) {
        match class(error) {
            ErrorClass::Misconfigured(setting) => self.misconfigured(&setting.hint(error), error),
            _ => self.unreachable(error),
        }
    }

    /// Reports a failed command if an operator has to correct its cause. A connection that the application has made may
    /// show only with its first command that it reaches no server.
    pub(in crate::redis) fn command_failed(&self, error: &RedisError) {
        match class(error) {
            ErrorClass::Misconfigured(setting) => self.misconfigured(&setting.hint(error), error),
            ErrorClass::Disconnected | ErrorClass::Unknown => self.unreachable(error),
            ErrorClass::Unavailable | ErrorClass::Refused | ErrorClass::Demoted => {}
        }
    }

    /// Records that the server has replied.
    pub(super) fn reached(&self) {
        // PERF: read first, because threads share it and it changes once.
        if !self.is_settled.load(Relaxed) {
            self.is_settled.store(true, Relaxed);
        }
    }

    /// Records that the server has accepted a new connection. If the password changes later, that is a new cause.
    pub(super) fn accepted(&self) {
        self.reached();
        self.hints.lock().remove(CREDENTIALS_HINT);
    }

    fn unreachable(&self, error: &RedisError) {
        if !self.is_settled.swap(true, Relaxed) {
            telemetry::unreachable(self.address.as_deref(), &loggable(error));
        }
    }

    /// Reports an error whose cause an operator has to correct, once for each hint.
    pub(super) fn misconfigured(&self, hint: &str, error: &RedisError) {
        let is_new = {
            let mut hints = self.hints.lock();
            hints.len() < MAX_HINTS && hints.insert(hint.to_owned().into())
        };
        if is_new {
            telemetry::misconfigured(self.address.as_deref(), &loggable(error), hint);
        }
    }
}

/// Returns the address of the server in the form of a URL, without user, password and database.
fn address(client: &Client) -> String {
    let address = client.get_connection_info().addr();
    let scheme = match address {
        ConnectionAddr::TcpTls { .. } => "rediss://",
        ConnectionAddr::Unix(_) => "redis+unix://",
        _ => "redis://",
    };
    format!("{scheme}{address}")
}

/// Maximum number of hints. A hint may name a command in the words of the server.
const MAX_HINTS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_neither_user_nor_password() {
        for (url, shown) in [
            ("redis://app:secret@cache.example/3", "redis://cache.example:6379"),
            ("redis://:secret@127.0.0.1:7000?protocol=resp3", "redis://127.0.0.1:7000"),
            #[cfg(feature = "tls-rustls")]
            ("rediss://app:secret@cache.example:6380", "rediss://cache.example:6380"),
            #[cfg(unix)]
            ("redis+unix:///run/redis.sock?user=app&pass=secret", "redis+unix:///run/redis.sock"),
        ] {
            assert_eq!(address(&Client::open(url).expect("a URL")), shown);
        }
    }

    /// A server with words of its own for each error must not fill the memory.
    #[test]
    fn number_of_hints_is_bounded() {
        let log = ConnectionLog::default();
        for n in 0..1_000 {
            let line = format!("-NOPERM User app has no permissions to run the 'c{n}' command\r\n");
            let answer = redis::parse_redis_value(line.as_bytes()).expect("an answer");
            log.command_failed(&answer.extract_error().expect_err("an error"));
        }
        assert_eq!(log.hints.lock().len(), MAX_HINTS);
    }
}
