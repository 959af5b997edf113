//! The attempts to connect to one server: when the next one may begin.
//!
//! All connections to a server share its attempts, because they fail together: while the server is gone or refuses the
//! credentials, each process connects at most once per pause, which grows to five seconds. Nothing waits for the pause,
//! because the last error answers meanwhile. A success ends it for all connections.

use super::{
    clock::ServerClock,
    error_class::{ErrorClass, Misconfiguration, class},
    log::ConnectionLog,
};
use crate::{backoff, clock, sync::mutex::Mutex};
use redis::{ErrorKind, RedisError, RedisResult};
use std::{future::Future, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};

#[derive(Default)]
pub(in crate::redis) struct Attempts {
    /// The log of the connections, which all servers of an endpoint share.
    pub(in crate::redis) log: Arc<ConnectionLog>,
    /// The clock of the server. Each link learns from it when it connects, and the data link from each lease.
    pub(super) clock: Arc<ServerClock>,
    last_failure: Mutex<Option<Failure>>,
}

/// What is known since the last success.
struct Failure {
    error: RedisError,
    /// The number of attempts that have failed one after the other, with the present attempt.
    attempts: u32,
    next: Instant,
}

impl Attempts {
    pub(super) fn new(log: impl Into<Arc<ConnectionLog>>) -> Arc<Self> {
        Arc::new(Self { log: log.into(), ..Self::default() })
    }

    /// Connects, or returns the last error if it is too early for another attempt.
    pub(super) async fn run<T>(&self, connect: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        self.begin()?;
        let made = connect.await;
        self.end(made.as_ref().err());
        made
    }

    fn begin(&self) -> RedisResult<()> {
        if let Some(failure) = &mut *self.last_failure.lock() {
            if clock::now() < failure.next {
                return Err(failure.error.clone());
            }
            *failure = Failure::new(failure.error.clone(), failure.attempts + 1);
        }
        Ok(())
    }

    /// Records the end of an attempt. `None`: it has succeeded, or another server is named now, so the next attempt may
    /// begin at once.
    pub(super) fn end(&self, error: Option<&RedisError>) {
        let mut last = self.last_failure.lock();
        match (error.filter(|error| concerns_all(error)), &mut *last) {
            // Counted when it began, or it began together with another attempt that has failed.
            (Some(error), Some(failure)) => failure.error = error.clone(),
            (Some(error), None) => *last = Some(Failure::new(error.clone(), 1)),
            (None, _) => *last = None,
        }
    }

    /// Returns how long an attempt may take: until the next one is due, so that one is in flight when a server that hangs
    /// goes on.
    pub(super) fn patience(&self) -> Duration {
        let next = self.last_failure.lock().as_ref().map(|failure| failure.next);
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(clock::now())).max(CONNECT_TIMEOUT)
    }

    /// Returns the error of the last attempt, if it has failed.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn last_error(&self) -> Option<RedisError> {
        self.last_failure.lock().as_ref().map(|failure| failure.error.clone())
    }
}

impl Failure {
    fn new(error: RedisError, attempts: u32) -> Self {
        Self { error, attempts, next: clock::deadline_after(backoff::reconnect(attempts, clock::random_unit())) }
    }
}

/// Reports whether the error concerns all connections to the server. Only some of them need RESP3, or a certain process.
fn concerns_all(error: &RedisError) -> bool {
    error.kind() != ErrorKind::Client && class(error) != ErrorClass::Misconfigured(Misconfiguration::Protocol)
}

/// Limits a step of an attempt.
pub(in crate::redis) async fn within<T>(limit: Duration, step: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let timed_out = |_| Err((ErrorKind::Io, "connecting to redis timed out").into());
    timeout(limit, step).await.unwrap_or_else(timed_out)
}

/// Maximum time to connect, at least.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, future::ready};

    fn refused(line: &str) -> RedisError {
        let reply = redis::parse_redis_value(line.as_bytes()).expect("a reply");
        reply.extract_error().expect_err("an error")
    }

    /// Two connections that fail together are asked for every 10 ms. Seen to fail (20,000 attempts) if each failure is
    /// forgotten.
    #[tokio::test(start_paused = true)]
    async fn attempts_of_all_connections_slow_down_to_one_in_five_seconds() {
        let attempts = Attempts::default();
        let began = clock::now();
        let mut begun = Vec::new();
        while began.elapsed() < Duration::from_secs(100) {
            let [first, second] = [attempts.begin(), attempts.begin()].map(|begin| begin.is_ok());
            for _ in [first, second].into_iter().filter(|is_begun| *is_begun) {
                begun.push(began.elapsed());
                attempts.end(Some(&std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!((24..=32).contains(&begun.len()), "{} attempts", begun.len());
        let longest = begun.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(Duration::from_millis(5010)), "{begun:?}");
        attempts.end(None);
        assert!(attempts.begin().is_ok() && attempts.begin().is_ok(), "a success ends the pause");
    }

    /// Seen to fail if each error counts: the subscriber of a server without RESP3 would keep the data from being reached.
    #[test]
    fn missing_protocol_is_no_failed_attempt() {
        for (line, is_free) in [
            ("-NOPROTO unsupported protocol version\r\n", true),
            ("-WRONGPASS invalid username-password pair\r\n", false),
        ] {
            let attempts = Attempts::default();
            let made = attempts.run(ready(Err::<(), _>(refused(line)))).now_or_never().expect("it is made at once");
            assert!(made.is_err());
            assert_eq!(attempts.begin().is_ok(), is_free, "{line}");
        }
    }
}
