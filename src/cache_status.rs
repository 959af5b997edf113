//! How a request was answered.

/// The way a request was answered. The HTTP layer adds it to the extensions of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheStatus {
    /// Answered from the cache, with a fresh entry.
    Hit,
    /// Answered from the cache, with a stale entry: it is being refreshed, or the fetch for a newer one failed.
    Stale,
    /// Answered by the origin, while this request held the lease.
    Miss,
    /// Answered by the fetch of another request, in this process or in another process.
    Coalesced,
    /// Answered by the origin for this request alone. The request has no key, its response is private or was not shared
    /// in time, it runs inside a fetch of the same key or of a key that waits for it, or the guard is set to
    /// [`bypass`](crate::StampedeGuard::bypass).
    Bypass,
    /// Answered by the origin, through a fetch that this process shares and the store does not get: the store did not
    /// answer in time, or the response of the leader was too old for this request.
    FailOpen,
    /// Rejected: the fetch that this request waited for failed, unless its error is an
    /// [answer](crate::FailureClass::Answer), a [failure marker](crate::StampedeGuard::failure_ttl) holds the key, or the
    /// request could not wait any longer. Over HTTP a response with an error status is no error: a request that shares
    /// it is [`Coalesced`](Self::Coalesced).
    Rejected,
}

impl CacheStatus {
    /// The names of all statuses, in their order.
    pub(crate) const NAMES: &'static [&'static str] =
        &["hit", "stale", "miss", "coalesced", "bypass", "fail_open", "rejected"];

    /// Returns the name in metrics and spans, for example `fail_open`.
    ///
    /// ```
    /// # #[cfg(feature = "http")]
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use http::{Request, Response};
    /// use stampede_guard::{CacheStatus, StampedeGuard};
    /// use tower::{ServiceBuilder, ServiceExt};
    /// # use axum::body::Body;
    ///
    /// let page = async |_: Request<Body>| Ok::<_, std::io::Error>(Response::new(Body::from("tea")));
    /// let site = ServiceBuilder::new().layer(StampedeGuard::in_memory()).service_fn(page);
    /// let response = site.oneshot(Request::get("https://example.org/tea").body(Body::empty())?).await?;
    /// let status: &CacheStatus = response.extensions().get().unwrap();
    /// assert_eq!(status.as_str(), "miss");
    /// # Ok(()) }
    /// # #[cfg(not(feature = "http"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why the engine lets a caller fetch for itself: the reasons of [`CacheStatus::Bypass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BypassReason {
    /// The entry, or the shared result, is for other callers.
    ForOthers,
    /// The leader has a private response.
    Private,
    /// The caller is part of the fetch that it would wait for.
    Nested,
    /// The body of the leader's response may never end.
    UnknownLength,
    /// The guard is set to bypass the cache.
    Disabled,
}

#[cfg(test)]
mod tests {
    use super::CacheStatus::*;

    #[test]
    fn status_has_the_name_at_its_place() {
        let names = [Hit, Stale, Miss, Coalesced, Bypass, FailOpen, Rejected].map(super::CacheStatus::as_str);
        assert_eq!(names, ["hit", "stale", "miss", "coalesced", "bypass", "fail_open", "rejected"]);
    }
}
