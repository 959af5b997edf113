//! Scripts, and the numbers in their answers.

use super::Link;
use crate::store::StoreError;
use redis::{Arg, Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

/// A text with its SHA-1.
pub(crate) struct Script {
    text: &'static str,
    compiled: redis::Script,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, compiled: redis::Script::new(text) }
    }

    pub(crate) fn call<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call {
        let mut cmd = Cmd::with_capacity(keys.len() + ARGS, BYTES);
        cmd.arg("EVALSHA").arg(self.compiled.get_hash()).arg(keys.len());
        for key in keys {
            cmd.arg(key.as_ref());
        }
        Call { text: self.text, cmd }
    }
}

/// A script with its keys and arguments, each copied once: a fill has the whole payload among them.
pub(crate) struct Call {
    text: &'static str,
    cmd: Cmd,
}

impl Call {
    pub(crate) fn arg(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        self.cmd.arg(arg.as_ref());
        self
    }

    /// One round trip; two if the server has forgotten its scripts.
    pub(crate) async fn run(self, link: &dyn Link) -> RedisResult<Value> {
        match link.send(&self.cmd).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                link.send(&self.in_full()).await
            }
            answer => answer,
        }
    }

    /// The same with the text in place of its hash.
    fn in_full(&self) -> Cmd {
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

/// Loads scripts, so that the first who needs one need not send its text.
pub(crate) fn load(texts: &[&'static str]) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    for text in texts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(*text);
    }
    pipeline
}

/// A number, as an integer or in digits.
pub(crate) fn number(value: &Value) -> Result<u64, StoreError> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => digits(text),
        _ => None,
    };
    number.ok_or_else(|| unexpected(value))
}

/// A number in digits.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// By shape only: it may hold users' data.
pub(crate) fn unexpected(value: &Value) -> StoreError {
    let shape = match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) => "a string",
        Value::Array(_) => "an array",
        _ => "something else",
    };
    StoreError::new(format!("the server answered {shape}, which is not what was asked for"))
}

/// Room for the arguments beside the keys,
const ARGS: usize = 12;
/// and for the bytes of all of them, as long as they are short.
const BYTES: usize = 384;
