//! Why a response was not stored, as `Cache-Status` and the counters say it.

use std::fmt;

/// Defines the reasons: for each one its documentation, its name, its token, and what an operator can do about it if it
/// says something about the route.
macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident = $token:literal $(, $way_out:literal)?;)+) => {
        /// Why the HTTP layer did not answer from the cache and did not store the response: the `detail` of
        /// `Cache-Status` (RFC 9211 §2.8). [`Stats::uncached`](crate::Stats::uncached) counts each reason.
        ///
        /// A response has one reason. If several apply, it is the first one that was found. Reasons of the request come
        /// first, except its credentials: they are checked after everything that the response says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Uncached {
            $($(#[$doc])+ $name,)+
        }

        impl Uncached {
            /// All reasons, for example to export a metric of each.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// The tokens of [`ALL`](Self::ALL).
            pub(crate) const TOKENS: &'static [&'static str] = &[$($token,)+];

            /// Returns the token in `Cache-Status`, for example `set-cookie`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                Self::TOKENS[self as usize]
            }

            /// Returns what an operator can do about a reason that says something about the route. All other reasons
            /// are about one request, the origin or the store.
            pub(crate) fn way_out(self) -> Option<&'static str> {
                match self {
                    $($(Self::$name => Some($way_out),)?)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// The method is neither GET nor HEAD.
    Method = "method", "none: only GET and HEAD are cached";
    /// The request has a body, which is not a part of the key.
    RequestBody = "request-body", "send the data in the path or the query";
    /// The request says `no-store`.
    RequestNoStore = "request-no-store", "do not set `HttpOptions::honour_request_directives`";
    /// The request asks for another protocol, for example a WebSocket, and nothing suitable is stored.
    Upgrade = "upgrade", "take the route out of the layer";
    /// The request asks for a range of a page that is not stored, because it is too large or may not be shared.
    Range = "range", "see `StampedeGuard::max_payload`, or let the handler say `max-age`";
    /// The request target is no http or https URI with a path.
    InvalidTarget = "invalid-target", "none: it has no cache key";
    /// The request has several `Host` fields, or one that contradicts its target.
    AmbiguousHost = "ambiguous-host", "set `HttpOptions::ignore_host` if all hosts get the same pages";
    /// Path and query of the request exceed 8,000 bytes.
    TargetTooLong = "target-too-long", "use shorter URLs";
    /// The request has fields that are not harmless, and a response to others holds the place of its response.
    OtherFields = "other-fields", "name the fields in `HttpOptions::harmless_fields` or `HttpOptions::selecting_fields`";
    /// The request says `only-if-cached`, and nothing suitable is stored.
    OnlyIfCached = "only-if-cached";
    /// The request shared the fetch of another request, whose response may not be shared.
    NotShared = "not-shared", "see the other reasons";
    /// The request runs inside a fetch of the same key, or of a key that waits for it.
    Nested = "nested";
    /// The guard is set to [`bypass`](crate::StampedeGuard::bypass) the cache.
    Disabled = "disabled", "do not set `StampedeGuard::bypass`";
    /// The response may not be stored now: see [`CacheStatus::FailOpen`](crate::CacheStatus::FailOpen).
    FailOpen = "fail-open";
    /// The request was rejected: see [`CacheStatus::Rejected`](crate::CacheStatus::Rejected).
    Failed = "failed";
    /// The method is unsafe, and the store has not acknowledged the invalidation yet.
    InvalidationPending = "invalidation-pending", "see `Stats::store_errors`";
    /// The request has `Authorization`, and the response says neither `public` nor `s-maxage`, nor `must-revalidate`
    /// with `max-age`.
    Authorization = "authorization", "let the handler say `public` or `s-maxage` if all users get the same page";
    /// The request has a cookie, and the response says neither `public` nor `s-maxage`.
    Cookie = "cookie", "let the handler say `public` or `s-maxage` if all users get the same page";
    /// Likewise with `Proxy-Authorization`, or a field of
    /// [`credential_fields`](crate::http::HttpOptions::credential_fields).
    CredentialField = "credential-field", "let the handler say `public` or `s-maxage` if all users get the same page";
    /// Likewise with a request that [`private_if`](crate::http::HttpOptions::private_if) recognises.
    PrivateIf = "private-if", "let the handler say `public` or `s-maxage` if all users get the same page";
    /// The response says `no-store`.
    NoStore = "no-store", "let the handler say `max-age` if all users get the same page, or take the route out of the layer";
    /// The response says `private`.
    Private = "private", "let the handler say `max-age` if all users get the same page, or take the route out of the layer";
    /// The response sets a cookie.
    SetCookie = "set-cookie", "let the handler set no cookie";
    /// The response states no freshness lifetime, and has a field that is made for one client, such as `X-CSRF-Token`.
    UserField = "user-field", "let the handler say `max-age` if all clients get the same field";
    /// No other request selects the response: its `Vary` has a `*`, an invalid name, or too many fields.
    Vary = "vary", "let `Vary` name the few fields that the response depends on";
    /// The response is an event stream, which has no end.
    EventStream = "event-stream", "take the route out of the layer";
    /// The response is a part, is not final, or describes another response.
    Partial = "partial", "let the handler answer with the whole page; the layer selects the range";
    /// Responses with this status are stored only if they state a freshness lifetime or `public`.
    Status = "status", "let the handler say `max-age`";
    /// The response states no freshness lifetime, and a default one is not permitted or not known.
    NoFreshness = "no-freshness", "let the handler say `max-age`";
    /// The response is stale when it arrives, or says `no-cache`, and has no validator.
    Expired = "expired", "let the handler say a longer `max-age`, or send an `ETag`";
    /// A client error that is not stored: it states neither a freshness lifetime nor `public` (404, 405, 410 and 414 need
    /// neither), is about a field of one request (412, 416, 417, 428, 431), or would replace a good response.
    ClientError = "client-error", "let the handler say `max-age` if all clients get this error (no help for the statuses about one request)";
    /// The origin fails: a server error, or 408, 425 or 429.
    OriginFailure = "origin-failure";
    /// The origin answered 304 about another response than the stored one.
    UnrelatedNotModified = "unrelated-304";
    /// The response is larger than [`max_payload`](crate::StampedeGuard::max_payload).
    TooLarge = "too-large", "raise `StampedeGuard::max_payload`";
    /// The response does not state its length. It is stored if it ends in time and is not too large; the counter has
    /// the ones that did not end within 5 s, and the requests that did not wait for their end.
    UnknownLength = "unknown-length", "send a body that knows its length, or take an endless response out of the layer";
    /// The body of the response broke off, or did not end within the fetch timeout.
    Truncated = "truncated";
    /// The store has no room for a response of this size.
    StoreTooSmall = "store-too-small", "give the `MemoryStore` more bytes";
}

impl fmt::Display for Uncached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9651 §3.3.4.
    #[test]
    fn reasons_are_distinct_tokens() {
        let mut tokens: Vec<_> = Uncached::ALL.iter().map(|reason| reason.as_str()).collect();
        let is_token = |token: &&str| {
            token.starts_with(|first: char| first.is_ascii_lowercase())
                && token.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        };
        assert!(tokens.iter().all(is_token), "{tokens:?}");
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), Uncached::ALL.len());
    }
}
