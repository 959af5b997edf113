//! How a request was answered.

/// The way a request was answered. The HTTP layer adds it to the extensions of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheStatus {
    /// Answered from the cache, with a fresh entry.
    Hit,
    /// Answered from the cache, with a stale entry: it is being refreshed, the fetch for a newer one failed, or the
    /// request accepts it.
    Stale,
    /// Answered by the origin, while this request held the lease.
    Miss,
    /// Answered by the fetch of another request, in this process or in another process.
    Coalesced,
    /// Answered by the origin for this request alone. The request has no key, its response is private, it runs inside the
    /// fetch of the same key, or it runs inside another fetch and has waited for half of the time left to that fetch.
    Bypass,
    /// Answered by the origin because the store did not answer in time, or another leader did not under
    /// [`WaitTimeout::Fetch`](crate::WaitTimeout::Fetch). Shared within this process, not stored.
    FailOpen,
    /// Rejected: the fetch that this request waited for failed, or the request could not wait for it any longer.
    Rejected,
}
