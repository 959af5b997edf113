//! The log lines about the connections to one endpoint: one for each cause, not one for each request or connection.

use super::error_class::{CERTIFICATE_HINT, CREDENTIALS_HINT, ErrorClass, class, loggable};
use crate::{sync::mutex::Mutex, telemetry};
use redis::{ConnectionAddr, RedisError};
use std::{
    collections::HashSet,
    fmt::Display,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// The log of the connections to one endpoint: the causes that they have reported.
#[derive(Default)]
pub(in crate::redis) struct ConnectionLog {
    /// The place in which the user has named the servers.
    urls: &'static str,
    /// The place in which the user has named user, password and database.
    place: &'static str,
    /// The addresses that the user has named. `None` for connections that the application has made.
    address: Option<String>,
    /// Whether the server has replied once, or a failed attempt to reach it was reported.
    is_settled: AtomicBool,
    /// The hints about misconfigurations that were given.
    hints: Mutex<HashSet<String>>,
}

impl ConnectionLog {
    /// Creates the log of the connections to servers at these addresses, which the user has named in these places.
    pub(super) fn of<'a>([urls, place]: [&'static str; 2], at: impl IntoIterator<Item = &'a ConnectionAddr>) -> Self {
        let addresses = at.into_iter().map(shown).collect::<Vec<_>>().join(", ");
        Self { urls, place, address: Some(addresses).filter(|it| !it.is_empty()), ..Self::default() }
    }

    /// Reports a failed attempt to connect, unless the server has replied before: then the circuit breaker reports that
    /// it is gone.
    pub(super) fn connect_failed(&self, error: &RedisError) {
        match class(error) {
            ErrorClass::Misconfigured(of) => self.report(telemetry::misconfigured, &of.hint(error, self.place), error),
            _ => self.unreachable(error),
        }
    }

    /// Reports a failed command if an operator has to correct its cause. A connection that the application has made may
    /// show only with its first command that it reaches no server.
    pub(in crate::redis) fn command_failed(&self, error: &RedisError) {
        if !matches!(class(error), ErrorClass::Unavailable | ErrorClass::Refused | ErrorClass::Demoted) {
            self.connect_failed(error);
        }
    }

    /// Records that the server has replied.
    pub(super) fn reached(&self) {
        self.is_settled.store(true, Relaxed);
    }

    /// Records that a server has accepted a new connection. If the password or the certificate of a server changes later,
    /// that is a new cause.
    pub(super) fn accepted(&self) {
        self.reached();
        self.hints.lock().retain(|hint| !hint.starts_with(CREDENTIALS_HINT) && hint != CERTIFICATE_HINT);
    }

    /// Reports the loss of all servers that the user has named, once until one of them has no error. Other servers may
    /// work. If all refuse their user from the start, the line about that is enough.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn check_named(&self, errors: impl Iterator<Item = Option<RedisError>>) {
        if let Some(error) = errors.reduce(Option::and).flatten() {
            self.connect_failed(&error);
            if self.is_settled.load(Relaxed) {
                self.report(telemetry::unreachable, ALL_HINT, &error);
            }
        } else {
            self.hints.lock().remove(ALL_HINT);
        }
    }

    fn unreachable(&self, error: &RedisError) {
        let is_first = !self.is_settled.swap(true, Relaxed);
        let _ = is_first && self.is_new(ALL_HINT); // counts as reported: the next line names the same addresses
        if loggable(error).contains("certificate") {
            // A certificate expires while connections work.
            self.report(telemetry::unreachable, CERTIFICATE_HINT, error);
        } else if is_first {
            self.report(telemetry::unreachable, &format!("{URL_HINT} in {}, or start the server", self.urls), error);
        }
    }

    /// Reports the error by this event, unless the hint was given already.
    fn report(&self, event: fn(Option<&str>, &dyn Display, &str), hint: &str, error: &RedisError) {
        if self.is_new(hint) {
            event(self.address.as_deref(), &loggable(error), hint);
        }
    }

    /// Reports whether the hint was not given yet.
    pub(super) fn is_new(&self, hint: &str) -> bool {
        let mut hints = self.hints.lock();
        hints.len() < MAX_HINTS && hints.insert(hint.to_owned())
    }
}

/// Returns the address of the server in the form of a URL, without user, password and database.
fn shown(address: &ConnectionAddr) -> String {
    let scheme = match address {
        ConnectionAddr::TcpTls { .. } => "rediss://",
        ConnectionAddr::Unix(_) => "redis+unix://",
        _ => "redis://",
    };
    format!("{scheme}{address}")
}

const URL_HINT: &str = "correct host, port and scheme (`redis://`, or `rediss://` for TLS)";
const ALL_HINT: &str = "none of the named addresses answers, or none accepts the user: the connections that exist go on, \
    but a process that starts now finds no server; start the servers, name the addresses that they have now, or correct \
    user and password";
/// Maximum number of hints. A hint may name a command in the words of the server.
const MAX_HINTS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use redis::Client;

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
            assert_eq!(super::shown(Client::open(url).expect("a URL").get_connection_info().addr()), shown);
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
