//! HTTP settings for what the RFCs leave to the operator of a cache.

use http::HeaderName;
use std::{sync::Arc, time::Duration};

/// The settings of the HTTP layer for what the RFCs leave to a cache. Passed to
/// [`StampedeGuard::http`](crate::StampedeGuard::http).
///
/// ```
/// use stampede_guard::{StampedeGuard, http::HttpOptions};
///
/// let options = HttpOptions::default().ignore_request_directives().vary_key_on(http::HeaderName::from_static("x-tenant"));
/// let guard = StampedeGuard::in_memory().http(options);
/// ```
///
/// # Defaults
///
/// Responses without an explicit freshness lifetime get that of the [`Policy`](crate::Policy). Request directives are
/// honoured. `CDN-Cache-Control` takes precedence over `Cache-Control`. A key consists of the method (GET or HEAD),
/// scheme, authority, path and query.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOptions {
    pub(crate) honor_request_directives: bool,
    pub(crate) default_freshness: DefaultFreshness,
    pub(crate) targeted_fields: Arc<[HeaderName]>,
    pub(crate) vary_key_on: Arc<[HeaderName]>,
    pub(crate) credential_fields: Arc<[HeaderName]>,
    pub(crate) ignore_host: bool,
    pub(crate) normalize_vary: Arc<[HeaderName]>,
    pub(crate) share_set_cookie: bool,
    pub(crate) retain_for_revalidation: Duration,
    pub(crate) expose_key: bool,
}

/// The freshness lifetime of a response that states none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DefaultFreshness {
    /// The lifetime of the policy.
    Policy,
    /// Zero: the response is not stored.
    Stale,
    /// This fraction of the time since the last modification.
    Heuristic(f64),
}

impl HttpOptions {
    /// Ignores `Cache-Control` and `Pragma` of requests, `no-store` included, as RFC 9111 §5.2.1 permits. For
    /// applications that face the public, where every browser reload would otherwise cause a request to the origin.
    /// Default: they are honoured.
    #[must_use]
    pub fn ignore_request_directives(mut self) -> Self {
        self.honor_request_directives = false;
        self
    }

    /// Does not store responses without an explicit freshness lifetime. Default: they have the lifetime of the
    /// [`Policy`](crate::Policy). Replaces [`heuristic_freshness`](Self::heuristic_freshness).
    #[must_use]
    pub fn require_explicit_freshness(mut self) -> Self {
        self.default_freshness = DefaultFreshness::Stale;
        self
    }

    /// Gives responses without an explicit freshness lifetime this fraction of the time since their `Last-Modified`, at
    /// most one day (RFC 9111 §4.2.2 suggests 0.1). Without a `Last-Modified` they are not stored. Default: off.
    /// Replaces [`require_explicit_freshness`](Self::require_explicit_freshness).
    ///
    /// # Panics
    ///
    /// Panics if `part` is not from 0 to 1.
    #[must_use]
    #[track_caller]
    pub fn heuristic_freshness(mut self, part: f64) -> Self {
        assert!((0.0..=1.0).contains(&part), "heuristic_freshness must be from 0 to 1");
        self.default_freshness = DefaultFreshness::Heuristic(part);
        self
    }

    /// Sets the fields that take precedence over `Cache-Control`, the most specific first (RFC 9213 §2.2).
    /// Default: `CDN-Cache-Control`.
    #[must_use]
    pub fn targeted_fields(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        self.targeted_fields = fields.into_iter().collect();
        self
    }

    /// Adds the value of this request field to every key, for responses that depend on it without a `Vary`. An unsafe
    /// request then invalidates only entries with its own value, so use fields that separate clients, such as a tenant
    /// id. Default: none.
    #[must_use]
    pub fn vary_key_on(mut self, field: HeaderName) -> Self {
        self.vary_key_on = self.vary_key_on.iter().cloned().chain([field]).collect();
        self
    }

    /// Treats this request field as a credential, for example `X-Api-Key`. As with a `Cookie`, requests that have it
    /// share only responses that say `public` or `s-maxage`. Default: `Cookie` and `Authorization` (RFC 9111 §3.5).
    #[must_use]
    pub fn credential_fields(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        self.credential_fields = self.credential_fields.iter().cloned().chain(fields).collect();
        self
    }

    /// Leaves the authority out of the keys, for applications that answer every `Host` alike. A client can then neither
    /// cause misses nor poison entries through `Host`, and [`invalidate_url`](crate::StampedeGuard::invalidate_url)
    /// takes paths. Default: off.
    #[must_use]
    pub fn ignore_host(mut self) -> Self {
        self.ignore_host = true;
        self
    }

    /// Compares these list-valued fields for a `Vary` without regard to order and case of their members (RFC 9111 §4.1
    /// permits it). For fields like `Accept-Encoding`, which browsers spell in many ways. Default: none.
    #[must_use]
    pub fn normalize_vary(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        self.normalize_vary = fields.into_iter().collect();
        self
    }

    /// Stores responses with `Set-Cookie` if they say `public` or `s-maxage`, and sends their cookies to every client.
    /// Default: such a response goes only to the client that requested it (RFC 9111 §7.3 leaves the choice to
    /// directives of the origin).
    #[must_use]
    pub fn share_set_cookie(mut self) -> Self {
        self.share_set_cookie = true;
        self
    }

    /// Sets how long a response with a validator is kept after its freshness lifetime, for validation (RFC 9111 §4.3).
    /// Default: 60 s.
    #[must_use]
    pub fn retain_for_revalidation(mut self, span: Duration) -> Self {
        self.retain_for_revalidation = span;
        self
    }

    /// Adds the key to `Cache-Status` (RFC 9211 §2.7). Default: off, because the key repeats the URL.
    #[must_use]
    pub fn expose_key(mut self) -> Self {
        self.expose_key = true;
        self
    }
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            honor_request_directives: true,
            default_freshness: DefaultFreshness::Policy,
            targeted_fields: Arc::new([HeaderName::from_static("cdn-cache-control")]),
            vary_key_on: Arc::default(),
            credential_fields: Arc::default(),
            ignore_host: false,
            normalize_vary: Arc::default(),
            share_set_cookie: false,
            retain_for_revalidation: Duration::from_secs(60),
            expose_key: false,
        }
    }
}
