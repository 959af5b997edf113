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
    /// Answered by the origin for this request alone. The request has no key, its response is private, or it runs
    /// inside the fetch of the same key.
    Bypass,
    /// Answered by the origin because the store or another leader did not answer in time. Shared within this process,
    /// not stored.
    FailOpen,
    /// Rejected: the fetch that this request waited for had failed.
    Rejected,
}
