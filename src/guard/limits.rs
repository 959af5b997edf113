//! Settings that limit how much a process holds or does at once.

use super::StampedeGuard;
use crate::sync::newest_first::NewestFirst;

impl StampedeGuard {
    /// Sets the maximum number of requests in one process that wait for one fetch. Further requests are rejected at
    /// once, with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response 503, unless the policy permits
    /// the stale value on errors. Default: 10,000.
    ///
    /// # Panics
    ///
    /// Panics if `number` is zero.
    #[must_use]
    #[track_caller]
    pub fn max_waiters(self, number: usize) -> Self {
        assert!(number > 0, "max_waiters must be greater than zero");
        self.set(|config| config.max_waiters = number)
    }

    /// Sets the maximum number of concurrent fetches while the store is unavailable. Further fetches queue for at most
    /// one second, and are then rejected with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response
    /// 503. The newest in the queue is served first, and a fetch that no request waits for leaves the queue: under a
    /// load above the limit the permits go to requests whose clients are still there. A fetch inside another fetch does
    /// not queue, because the outer fetch may hold the last permit. Default: 64.
    ///
    /// The permits belong to this clone and to clones made from it afterwards.
    ///
    /// # Panics
    ///
    /// Panics if `permits` is zero.
    #[must_use]
    #[track_caller]
    pub fn max_fallback_fetches(self, permits: usize) -> Self {
        assert!(permits > 0, "max_fallback_fetches must be greater than zero");
        self.set(|config| config.max_fallback_fetches = NewestFirst::new(permits))
    }

    /// Sets the maximum number of detached fetches: running fetches that no request of this process waits for any more,
    /// because their clients have left or were answered at their [`deadline`](Self::deadline). A fetch that would be one
    /// more is dropped, as it would be without the guard, and its lease is released, so that the next request for the
    /// key leads at once, in any process. A fetch that a request joins again is not detached any more. Zero ends each
    /// fetch with its last client. Default: 64.
    ///
    /// A limit above the guard, for example a [`ConcurrencyLimit`] of 10, does not see detached fetches: clients that
    /// leave early make room for others, and up to 74 handlers run at once.
    ///
    /// The limit is about handlers. A fetch whose response head has arrived does not count while its body is collected,
    /// and a refresh in the background does not count either, because its request was answered.
    ///
    /// The permits belong to this clone and to clones made from it afterwards.
    ///
    /// [`ConcurrencyLimit`]: https://docs.rs/tower/latest/tower/limit/struct.ConcurrencyLimit.html
    #[must_use]
    pub fn max_detached(self, fetches: usize) -> Self {
        self.set(|config| config.max_detached = NewestFirst::new(fetches))
    }

    /// Sets the maximum payload that is stored, in bytes. Larger answers are passed through. Default: 1 MiB. A
    /// large payload delays all operations that follow on its connection, so that they may exceed
    /// [`store_timeout`](Self::store_timeout).
    ///
    /// # Panics
    ///
    /// Panics if `bytes` is more than 512,000,000, because a string in Redis has at most 512 MiB.
    #[must_use]
    #[track_caller]
    pub fn max_payload(self, bytes: usize) -> Self {
        assert!(bytes <= LARGEST_PAYLOAD, "max_payload must be at most {LARGEST_PAYLOAD} bytes");
        self.set(|config| config.max_payload = bytes)
    }
}

/// A string in Redis has at most 512 MiB, and the metadata of an entry need some of them.
const LARGEST_PAYLOAD: usize = 512_000_000;
