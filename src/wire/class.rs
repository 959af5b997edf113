//! What an error means for the guard: one pure function.
//!
//! | the error | class | what follows |
//! |---|---|---|
//! | the connection broke or was refused, an answer that is no answer | [`Disconnected`](Class::Disconnected) | connect anew, try once more at once |
//! | `LOADING`, `BUSY`, `CLUSTERDOWN`, `MASTERDOWN`, `TRYAGAIN` | [`Unavailable`](Class::Unavailable) | nobody is served now, as if the server were away; connect anew, at most once a second |
//! | `READONLY` | [`Demoted`](Class::Demoted) | refused, and connect anew, at most once a second: the name may lead to the new master |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM`, `MOVED`, `ASK` | [`Misconfigured`](Class::Misconfigured) | refused, and said once, with the way out |
//! | any other answer: `OOM`, `NOREPLICAS`, `MISCONF`, `WRONGTYPE`, an error of a script | [`Refused`](Class::Refused) | not done, but the server is alive, and hits go on |
//! | anything else, of the client or the system | [`Unknown`](Class::Unknown) | perhaps done, perhaps not |
//!
//! `NOSCRIPT` never gets this far: the text follows (`script`). For a plain GET `WRONGTYPE` is a miss.

use crate::{store::StoreError, telemetry};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Disconnected,
    Unavailable,
    Refused,
    Demoted,
    Misconfigured(Setting),
    Unknown,
}

/// What somebody has to set right: it does not pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Credentials,
    Rights,
    Client,
}

pub(super) fn class(error: &RedisError) -> Class {
    use ServerErrorKind::{
        Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, ReadOnly, ResponseError, TryAgain,
    };
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => {
            Class::Misconfigured(Setting::Credentials)
        }
        (ErrorKind::Server(NoPerm), _) => Class::Misconfigured(Setting::Rights),
        (ErrorKind::Server(ResponseError), _) => in_script(error.detail().unwrap_or_default()),
        (ErrorKind::Server(Moved | Ask), _) => Class::Misconfigured(Setting::Client),
        (ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | TryAgain), _) | (_, Some("BUSY")) => {
            Class::Unavailable
        }
        (ErrorKind::Server(ReadOnly), _) => Class::Demoted,
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => Class::Refused,
        _ if error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_connection_refusal() => {
            Class::Disconnected
        }
        _ => Class::Unknown,
    }
}

pub(crate) fn store_error(error: RedisError) -> StoreError {
    match class(&error) {
        Class::Disconnected => StoreError::disconnected(error),
        Class::Refused | Class::Demoted | Class::Misconfigured(_) => StoreError::refused(error),
        Class::Unavailable | Class::Unknown => StoreError::new(error),
    }
}

/// What a script calls is refused without a code of its own: rights in any version, and all the rest before 7.0.
fn in_script(detail: &str) -> Class {
    let says = |words: &[&str]| words.iter().any(|words| detail.contains(words));
    if says(&["The user executing the script", "ACL failure in script"]) {
        Class::Misconfigured(Setting::Rights)
    } else if says(&["-READONLY "]) {
        Class::Demoted
    } else {
        Class::Refused
    }
}

impl Setting {
    fn way_out(self) -> &'static str {
        match self {
            Self::Credentials => "check user and password of the client",
            Self::Rights => "give the user the rights that docs/operations.md lists",
            Self::Client => "the server is part of a cluster: use redis::cluster::ClusterClient (feature `cluster`)",
        }
    }
}

/// The settings that one connection has spoken of. Every request meets them, and hearing of it once is enough.
#[derive(Default)]
pub(super) struct Spoken(AtomicU8);

impl Spoken {
    pub(super) fn once(&self, connection: &'static str, error: &RedisError) {
        if let Class::Misconfigured(setting) = class(error) {
            let bit = 1 << setting as u8;
            if self.0.fetch_or(bit, Relaxed) & bit == 0 {
                telemetry::misconfigured(connection, error, setting.way_out());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn answered(line: &str) -> Class {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an answer");
        class(&answer.extract_error().expect_err("an error"))
    }

    #[test]
    fn every_answer_of_the_server_has_its_class() {
        let refused = [
            "OOM command not allowed when used memory > 'maxmemory'. script: 89, on @user_script:1.",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR user_script:1: attempt to index local 'l' (a nil value)",
            "ERR unknown command 'EVALSHA'",
        ];
        for line in refused {
            assert_eq!(answered(line), Class::Refused, "{line}");
        }
        for line in ["LOADING l", "BUSY b", "CLUSTERDOWN c", "MASTERDOWN m", "TRYAGAIN t"] {
            assert_eq!(answered(line), Class::Unavailable, "{line}");
        }
        for line in ["NOAUTH Authentication required.", "WRONGPASS invalid username-password pair"] {
            assert_eq!(answered(line), Class::Misconfigured(Setting::Credentials), "{line}");
        }
        let rights = [
            "NOPERM this user has no permissions to run the 'get' command",
            "ERR The user executing the script can't run this command or subcommand script: 89, on @user_script:1.",
            "ERR ACL failure in script: User app has no permissions to run the 'time' command",
        ];
        for line in rights {
            assert_eq!(answered(line), Class::Misconfigured(Setting::Rights), "{line}");
        }
        for line in ["MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381"] {
            assert_eq!(answered(line), Class::Misconfigured(Setting::Client), "{line}");
        }
        let demoted = [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_89): @user_script:1: -READONLY You can't write against a read only replica.",
        ];
        for line in demoted {
            assert_eq!(answered(line), Class::Demoted, "{line}");
        }
    }

    #[test]
    fn what_breaks_a_connection_may_be_tried_again() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionRefused, io::ErrorKind::UnexpectedEof] {
            assert_eq!(class(&RedisError::from(io::Error::from(kind))), Class::Disconnected, "{kind}");
        }
        let garbage = redis::parse_redis_value(b"?\r\n").expect_err("no answer");
        assert_eq!(class(&garbage), Class::Disconnected);
        assert_eq!(class(&RedisError::from(io::Error::from(io::ErrorKind::TimedOut))), Class::Unknown);
        assert_eq!(class(&RedisError::from((ErrorKind::InvalidClientConfig, "no such feature"))), Class::Unknown);
    }

    #[test]
    fn a_store_error_says_what_is_known_of_the_outcome() {
        let error = |line: &[u8]| {
            store_error(redis::parse_redis_value(line).expect("an answer").extract_error().expect_err("an error"))
        };
        assert!(error(b"-OOM full\r\n").is_refused());
        assert!(error(b"-READONLY replica\r\n").is_refused());
        assert!(error(b"-NOPERM no\r\n").is_refused());
        let loading = error(b"-LOADING wait\r\n");
        assert!(!loading.is_refused() && !loading.is_disconnected());
        assert!(store_error(io::Error::from(io::ErrorKind::BrokenPipe).into()).is_disconnected());
    }
}
