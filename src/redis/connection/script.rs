//! Calls of Lua scripts, and the numbers in their replies.

use super::reconnecting::CommandLink;
use crate::store::error::StoreError;
use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisResult, ServerErrorKind, ToRedisArgs, Value};
use std::{fmt, sync::Arc, time::Duration};

/// The text of a script with its SHA-1.
#[derive(Debug)]
pub struct Script {
    pub(crate) text: &'static str,
    compiled: redis::Script,
}

impl Script {
    /// Creates a script from its text.
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        Self { text, compiled: redis::Script::new(text) }
    }

    /// Returns a call with these keys.
    #[must_use]
    pub fn call<K: AsRef<[u8]>>(&self, keys: &[K]) -> ScriptCall {
        let mut cmd = Cmd::with_capacity(keys.len() + ARGS, BYTES);
        cmd.arg("EVALSHA").arg(self.compiled.get_hash()).arg(keys.len());
        for key in keys {
            cmd.arg(key.as_ref());
        }
        ScriptCall { text: self.text, cmd }
    }
}

/// A call of a script: its keys and arguments.
pub struct ScriptCall {
    text: &'static str,
    cmd: Cmd,
}

/// Omits the arguments, because they hold the data of users.
impl fmt::Debug for ScriptCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptCall").field("text", &self.text).finish_non_exhaustive()
    }
}

impl ScriptCall {
    /// Adds an argument.
    pub fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.cmd.arg(arg);
        self
    }

    /// Runs the script: one round trip, or two if the server has forgotten it.
    pub(crate) async fn run(self, link: &dyn CommandLink) -> RedisResult<Value> {
        match link.send(&self.cmd).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                link.send(&self.in_full()).await
            }
            answer => answer,
        }
    }

    /// Returns the call as a command of a pipeline.
    pub(crate) fn into_cmd(self) -> Cmd {
        self.cmd
    }

    /// Returns the same call with the text of the script instead of its hash.
    pub(crate) fn in_full(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.text);
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

/// Returns the first commands on a connection: they load the scripts, so that no call has to send the text, and ask for
/// the server's time.
pub(crate) fn introduction(texts: &[&'static str]) -> Arc<Pipeline> {
    let mut pipeline = redis::pipe();
    for text in texts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(*text);
    }
    pipeline.cmd("TIME");
    Arc::new(pipeline)
}

/// Parses a number: an integer, or digits in a string.
///
/// # Errors
///
/// The value is something else.
pub fn number(value: &Value) -> Result<u64, StoreError> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => digits(text),
        _ => None,
    };
    number.ok_or_else(|| unexpected(value))
}

/// Parses a number in digits.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns an error that names only the shape of the value, which may hold user data.
#[must_use]
pub fn unexpected(value: &Value) -> StoreError {
    let shape = match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) => "a string",
        Value::Array(_) => "an array",
        _ => "something else",
    };
    StoreError::new(format!("unexpected reply from redis: {shape}"))
}

/// Returns the span as Redis takes it: whole milliseconds, at least one.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(MAX_MILLIS).clamp(1, MAX_MILLIS)
}

/// Capacity for the arguments besides the keys.
const ARGS: usize = 12;
/// Capacity in bytes for all arguments together, when they are short.
const BYTES: usize = 1024;
/// Maximum expiry in milliseconds, about 285 years. Redis refuses much larger ones.
const MAX_MILLIS: u64 = 9_000_000_000_000;
