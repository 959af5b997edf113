//! The classes of errors, and their consequences, as one pure function.
//!
//! | the error | class | consequence |
//! |---|---|---|
//! | the connection broke or was refused, or the reply is not valid RESP | [`Disconnected`](ErrorClass::Disconnected) | reconnect, retry once at once |
//! | `LOADING`, `BUSY`, `CLUSTERDOWN`, `MASTERDOWN` | [`Unavailable`](ErrorClass::Unavailable) | the server serves no client now, as if it were down; reconnect at most once a second, except after `CLUSTERDOWN` |
//! | `READONLY` | [`Demoted`](ErrorClass::Demoted) | refused; reconnect at most once a second, because the host name may resolve to the new master |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM`, `NOPROTO`, `MOVED`, `ASK`, a refused `SELECT`, a server without `GET` | [`Misconfigured`](ErrorClass::Misconfigured) | refused, and logged once ([`log`](super::log)) with the setting to change |
//! | any other error reply: `OOM`, `NOREPLICAS`, `MISCONF`, `WRONGTYPE`, `TRYAGAIN` (a slot that moves), an error of a script | [`Refused`](ErrorClass::Refused) | not done, but the server is alive and hits go on |
//! | any other error of the client or the system | [`Unknown`](ErrorClass::Unknown) | the outcome is unknown |
//!
//! `NOSCRIPT` does not get this far: the script is sent again in full (`script`). For a plain GET `WRONGTYPE` is a
//! miss.

use self::ErrorClass::{Demoted, Disconnected, Misconfigured, Refused, Unavailable, Unknown};
use self::Misconfiguration::{Client, Credentials, Database, Protocol, Rights};
use crate::{error::BoxError, store::error::StoreError};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::borrow::Cow;

/// The class of an error. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorClass {
    Disconnected,
    Unavailable,
    Refused,
    Demoted,
    Misconfigured(Misconfiguration),
    Unknown,
}

/// A misconfiguration that an operator has to correct: it does not pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misconfiguration {
    Credentials,
    Rights,
    Database,
    Client,
    Protocol,
}

pub(super) fn class(error: &RedisError) -> ErrorClass {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, ReadOnly, ResponseError};
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => Misconfigured(Credentials),
        (ErrorKind::RESP3NotSupported, _) | (_, Some("NOPROTO")) => Misconfigured(Protocol),
        (ErrorKind::Server(NoPerm), _) => Misconfigured(Rights),
        (ErrorKind::Server(ResponseError), _) | (_, Some(SCRIPT_LINE | RENAME)) => without_code(error),
        (ErrorKind::Server(Moved | Ask), _) => Misconfigured(Client),
        (ErrorKind::Server(BusyLoading | ClusterDown | MasterDown), _) | (_, Some("BUSY")) => Unavailable,
        (ErrorKind::Server(ReadOnly), _) => Demoted,
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => Refused,
        _ if error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_connection_refusal() => {
            Disconnected
        }
        _ => Unknown,
    }
}

/// Converts an error of redis-rs, by what it says about the outcome of the command.
#[must_use]
pub fn store_error(error: RedisError) -> StoreError {
    let class = class(&error);
    let source: BoxError = without_arguments(&error).map_or_else(|| error.into(), Into::into);
    match class {
        Disconnected => StoreError::disconnected(source),
        Refused | Demoted => StoreError::refused(source),
        Misconfigured(of) => StoreError::misconfigured(source, of == Credentials),
        Unavailable | Unknown => StoreError::new(source),
    }
}

/// Returns this error of a sentinel. If the sentinel refuses the user, the error says so: servers have users of their own.
#[cfg(feature = "sentinel")]
pub(super) fn by_sentinel(error: RedisError) -> RedisError {
    match class(&error) {
        Misconfigured(Credentials) => (ErrorKind::AuthenticationFailed, BY_SENTINEL, loggable(&error)).into(),
        Misconfigured(Rights) => (ErrorKind::Server(ServerErrorKind::NoPerm), BY_SENTINEL, loggable(&error)).into(),
        _ => error,
    }
}

/// Returns the text of an error for a log.
pub(super) fn loggable(error: &RedisError) -> String {
    without_arguments(error).unwrap_or_else(|| error.to_string())
}

/// Returns the text of an error that repeats arguments of its command, without them: they are keys, values, and in a
/// handshake the password. Redis repeats them if it does not know the command.
fn without_arguments(error: &RedisError) -> Option<String> {
    error.to_string().split_once(", with args beginning with").map(|(text, _)| text.to_owned())
}

/// Classifies an error without a code of its own, by what its text contains. Redis drops the code when a command within
/// a script is refused: for missing rights in any version, and for all errors before 7.0, where the code follows a minus
/// sign in the text. redis-rs drops the code when `SELECT` is refused.
fn without_code(error: &RedisError) -> ErrorClass {
    let classes = [
        ("The user executing the script", Misconfigured(Rights)),
        ("ACL failure in script", Misconfigured(Rights)),
        ("no permissions to run the 'select'", Misconfigured(Rights)),
        ("Authentication required", Misconfigured(Credentials)),
        ("is busy running a ", Unavailable),
        ("refused to switch database", Misconfigured(Database)),
        ("-READONLY ", Demoted),
        ("unknown command 'GET'", Misconfigured(Client)),
        ("unknown command `GET`", Misconfigured(Client)),
    ];
    let text = loggable(error);
    classes.into_iter().find(|(part, _)| text.contains(part)).map_or(Refused, |(_, class)| class)
}

impl Misconfiguration {
    /// Returns the setting to change, and how. `named` is the place where the user has named user, password and database.
    pub(super) fn hint(self, error: &RedisError, named: &str) -> String {
        let text = error.to_string();
        let is_sentinels = text.contains(BY_SENTINEL) || text.contains("the 'sentinel");
        match self {
            // Begins otherwise than the next hint, because a server that accepts a user says nothing about the sentinels.
            Self::Credentials if is_sentinels => "in the URLs of the sentinels, correct user and password".to_owned(),
            Self::Credentials => format!("{CREDENTIALS_HINT} in {named}{CREDENTIALS_CAUSES}"),
            Self::Rights => {
                let (user, right) = (if is_sentinels { "user of the sentinels" } else { "user" }, missing_right(&text));
                format!("grant the {user} {right} with `ACL SETUSER`; `stampede_guard::guide::rights` lists all")
            }
            Self::Database => format!("correct the database in {named}"),
            Self::Client if text.contains("unknown command") => SENTINEL_HINT.to_owned(),
            Self::Client => CLIENT_HINT.to_owned(),
            Self::Protocol => PROTOCOL_HINT.to_owned(),
        }
    }
}

/// Names the right that the server has missed, as far as its message tells.
fn missing_right(message: &str) -> Cow<'static, str> {
    if let Some((command, rest)) = message.split_once("run the '").and_then(|(_, rest)| rest.split_once('\'')) {
        // Redis 6.2 does not say which subcommand it is.
        let subcommand = if rest.contains("subcommand") { " or its subcommand" } else { "" };
        return format!("the command `+{command}`{subcommand}").into();
    }
    if message.contains("channel") {
        format!("`&{}`", if message.contains(BY_SENTINEL) { "+switch-master" } else { "stampede-guard:*" }).into()
    } else if message.contains("key") {
        "the keys of its namespace, `~{sg:*` by default (of a lock `~{lock:*`)".into()
    } else {
        "the commands that the scripts call (`ACL LOG` on the server names the missing command)".into()
    }
}

/// First word of an error that a script of Redis 6.2 got by `redis.pcall` and returned: `@user_script: 7: -READONLY ..`.
const SCRIPT_LINE: &str = "@user_script:";
/// First word of the error of a fill whose `RENAME` was refused.
const RENAME: &str = "RENAME";
/// redis-rs says only that `AUTH` has failed, so this names the rarer causes too.
const CREDENTIALS_CAUSES: &str = ", or `requirepass` and `ACL SETUSER` of the server; an `AUTH` may also fail because the \
    server has no password, has reached `maxclients`, or is a sentinel";
pub(super) const CREDENTIALS_HINT: &str = "correct user and password";
/// The words in the error of a sentinel that refuses its user.
const BY_SENTINEL: &str = "refused by a sentinel";
/// For an error of TLS, in the words of rustls or of OpenSSL.
pub(super) const CERTIFICATE_HINT: &str = "renew the server's certificate if it has expired, issue it for the host name in \
    the URL, or name its authority or your certificate with `redis::Client::build_with_tls` or `sentinel_with`";
pub(super) const CLIENT_HINT: &str = "the server is part of a cluster: build the guard from its nodes \
    (`RedisEndpoint::cluster`, feature `cluster`) instead of a `redis::Client`";
const SENTINEL_HINT: &str = "the server knows no `GET`, so it is probably a sentinel: build the guard with \
    `RedisEndpoint::sentinel` (feature `sentinel`)";

const PROTOCOL_HINT: &str = "connect to a server that speaks RESP3 (Redis 6.0, Valkey, Redis Enterprise 7.2 or later): \
    until then waiters poll, and a near cache keeps its copies by age";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn class_of_reply(line: &str) -> ErrorClass {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an answer");
        class(&answer.extract_error().expect_err("an error"))
    }

    #[test]
    fn error_reply_maps_to_its_class() {
        let refused = [
            "OOM command not allowed when used memory > 'maxmemory'. script: 89, on @user_script:1.",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR user_script:1: attempt to index local 'l' (a nil value)",
            "ERR unknown command 'EVALSHA'",
            "@user_script: 7: -OOM command not allowed when used memory > 'maxmemory'.",
        ];
        for line in refused {
            assert_eq!(class_of_reply(line), Refused, "{line}");
        }
        for line in ["LOADING l", "BUSY b", "CLUSTERDOWN c", "MASTERDOWN m"] {
            assert_eq!(class_of_reply(line), Unavailable, "{line}");
        }
        for line in ["NOAUTH Authentication required.", "WRONGPASS invalid username-password pair"] {
            assert_eq!(class_of_reply(line), Misconfigured(Credentials), "{line}");
        }
        assert_eq!(class_of_reply("NOPROTO unsupported"), Misconfigured(Protocol));
        let rights = [
            "NOPERM this user has no permissions to run the 'get' command",
            "ERR The user executing the script can't run this command or subcommand script: 89, on @user_script:1.",
            "ERR ACL failure in script: User app has no permissions to run the 'time' command",
            "@user_script: 7: The user executing the script can't run this command or subcommand",
            "RENAME ERR The user executing the script can't run this command or subcommand",
            "@user_script: 7: The user executing the script can't access at least one of the keys mentioned in the command \
             arguments",
        ];
        for line in rights {
            assert_eq!(class_of_reply(line), Misconfigured(Rights), "{line}");
        }
        let of_sentinels =
            ["ERR unknown command 'GET', with args beginning with: 'k' ", "ERR unknown command `GET`, with args"];
        for line in ["MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381"].into_iter().chain(of_sentinels) {
            assert_eq!(class_of_reply(line), Misconfigured(Client), "{line}");
        }
        let unknown_key = "ERR unknown command 'EVALSHA', with args beginning with: 'Authentication required'";
        assert_eq!(class_of_reply(unknown_key), Refused);
        let demoted = [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_89): @user_script:1: -READONLY You can't write against a read only replica.",
            "@user_script: 7: -READONLY You can't write against a read only replica.",
        ];
        for line in demoted {
            assert_eq!(class_of_reply(line), Demoted, "{line}");
        }
    }

    /// In the words of redis-rs, which drops the code.
    #[test]
    fn refused_select_maps_to_its_class() {
        for (detail, class_of_select) in [
            ("DB index is out of range", Misconfigured(Database)),
            ("SELECT is not allowed in cluster mode", Misconfigured(Database)),
            ("Authentication required.", Misconfigured(Credentials)),
            ("User app has no permissions to run the 'select' command", Misconfigured(Rights)),
            ("Redis is busy running a script. You can only call SCRIPT KILL", Unavailable),
        ] {
            let kind = ErrorKind::Server(ServerErrorKind::ResponseError);
            let error = RedisError::from((kind, "Redis server refused to switch database", detail.to_owned()));
            assert_eq!(class(&error), class_of_select, "{detail}");
        }
    }

    /// In the words of Redis 6.2 and 7.0. The text of redis-rs shows them.
    #[test]
    fn arguments_of_an_unknown_command_are_not_shown() {
        for (line, shown) in [
            ("ERR unknown command `EVALSHA`, with args beginning with: `89`, `1`, `{sg:token=1}:e`, ", "`EVALSHA`"),
            ("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'app' 'token' ", "'HELLO'"),
        ] {
            let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an answer");
            let error = answer.extract_error().expect_err("an error");
            assert!(error.to_string().contains("token"), "{error}");
            for text in [loggable(&error), store_error(error.clone()).with_cause()] {
                assert!(text.ends_with(&format!("unknown command {shown}")), "{text}");
            }
            assert!(!format!("{:?}", store_error(error.clone())).contains("token"));
            assert!(store_error(error).is_refused());
        }
    }

    /// In the words of Redis 6.2, 7.0 and 7.2.
    #[test]
    fn hint_names_the_missing_right() {
        for (line, named) in [
            ("NOPERM this user has no permissions to run the 'get' command", "`+get`"),
            ("NOPERM User app has no permissions to run the 'client|tracking' command", "`+client|tracking`"),
            (
                "NOPERM this user has no permissions to run the 'client' command or its subcommand",
                "the command `+client` or its subcommand with",
            ),
            ("@user_script: 7: The user executing the script can't run this command or subcommand", "the scripts"),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", "`~{sg:*`"),
            ("NOPERM No permissions to access a key", "`~{sg:*`"),
            ("NOPERM No permissions to access a channel", "`&stampede-guard:*`"),
            ("NOPERM refused by a sentinel: No permissions to access a channel", "`&+switch-master`"),
            ("ERR ACL failure in script: User app has no permissions to run the 'time' command", "`+time`"),
            ("ERR The user executing the script can't run this command or subcommand", "the scripts"),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments",
                "`~{sg:*`",
            ),
        ] {
            let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an answer");
            let hint = Rights.hint(&answer.extract_error().expect_err("an error"), "");
            assert!(hint.contains(named), "{line}: {hint}");
        }
    }

    #[test]
    fn error_class_is_disconnected_when_the_connection_breaks() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionRefused, io::ErrorKind::UnexpectedEof] {
            assert_eq!(class(&RedisError::from(io::Error::from(kind))), Disconnected, "{kind}");
        }
        let garbage = redis::parse_redis_value(b"?\r\n").expect_err("no answer");
        assert_eq!(class(&garbage), Disconnected);
        assert_eq!(class(&RedisError::from(io::Error::from(io::ErrorKind::TimedOut))), Unknown);
        assert_eq!(class(&RedisError::from((ErrorKind::InvalidClientConfig, "no such feature"))), Unknown);
    }

    #[test]
    fn store_error_states_the_known_outcome() {
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
