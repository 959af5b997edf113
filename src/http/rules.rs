//! What an operator decides where the standards leave it open.

use http::HeaderName;
use std::{sync::Arc, time::Duration};

/// How the layer treats what HTTP leaves to a cache. [`StampedeGuard::http`](crate::StampedeGuard::http) takes it.
///
/// ```
/// use stampede_guard::{StampedeGuard, http::Rules};
///
/// let rules = Rules::default().ignore_request_directives().key_header(http::HeaderName::from_static("x-tenant"));
/// let guard = StampedeGuard::in_memory().http(rules);
/// ```
///
/// # Defaults
///
/// Responses that say nothing of their freshness have the lifetime of the [`Policy`](crate::Policy); requests may ask
/// for fresher answers; `CDN-Cache-Control` comes before `Cache-Control`; keys are of scheme, authority, path and query.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub(super) heed_requests: bool,
    pub(super) silent: Silent,
    pub(super) targets: Arc<[HeaderName]>,
    pub(super) key_headers: Arc<[HeaderName]>,
    pub(super) credentials: Arc<[HeaderName]>,
    pub(super) any_host: bool,
    pub(super) normalized: Arc<[HeaderName]>,
    pub(super) share_set_cookie: bool,
    pub(super) keep: Duration,
    pub(super) show_key: bool,
}

/// How long a response is fresh that does not say so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Silent {
    /// As the policy says.
    Policy,
    /// Not at all.
    Stale,
    /// For that part of the time since it was modified last.
    Heuristic(f64),
}

impl Rules {
    /// `Cache-Control` and `Pragma` of requests count for nothing (RFC 9111 §5.2.1 lets a cache do so): for an app in
    /// front of the public, where every reload would else be an origin call. Default: they are honoured.
    #[must_use]
    pub fn ignore_request_directives(mut self) -> Self {
        self.heed_requests = false;
        self
    }

    /// What does not say for how long it is fresh is not stored. Default: it has the lifetime of the
    /// [`Policy`](crate::Policy).
    #[must_use]
    pub fn respect_origin_only(mut self) -> Self {
        self.silent = Silent::Stale;
        self
    }

    /// What does not say for how long it is fresh is so for this part of the time since its `Last-Modified`, at most a
    /// day (RFC 9111 §4.2.2 proposes 0.1); without a `Last-Modified` it is not stored. From 0 to 1, values outside are
    /// clamped. Default: off.
    #[must_use]
    pub fn heuristic(mut self, part: f64) -> Self {
        self.silent = Silent::Heuristic(if part > 0.0 { part.min(1.0) } else { 0.0 });
        self
    }

    /// The fields that come before `Cache-Control`, the most specific first (RFC 9213). Default: `CDN-Cache-Control`.
    #[must_use]
    pub fn targets(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        self.targets = fields.into_iter().collect();
        self
    }

    /// Adds the value of this request field to every key: for what the origin's answers depend on without a `Vary`. A
    /// change by an unsafe method then drops what is stored for its own value alone: for fields that divide clients, as
    /// those of tenants do.
    #[must_use]
    pub fn key_header(mut self, field: HeaderName) -> Self {
        self.key_headers = self.key_headers.iter().cloned().chain([field]).collect();
        self
    }

    /// Takes this request field for one that says who asks, like `X-Api-Key`: as those with a `Cookie`, such requests share
    /// nothing but what says `public` or `s-maxage`. Default: `Cookie` and `Authorization` (RFC 9111 §3.5).
    #[must_use]
    pub fn credential(mut self, field: HeaderName) -> Self {
        self.credentials = self.credentials.iter().cloned().chain([field]).collect();
        self
    }

    /// Leaves the authority out of the keys, for an app that answers alike whatever `Host` it is asked by: what a client
    /// sends there can then neither miss nor poison, and [`invalidate_url`](crate::StampedeGuard::invalidate_url) takes
    /// paths. Default: off.
    #[must_use]
    pub fn any_host(mut self) -> Self {
        self.any_host = true;
        self
    }

    /// Takes the members of these list-valued fields in any order and case, when it compares them for a `Vary` (RFC 9111
    /// §4.1 allows it): for `Accept-Encoding` and the like, of which browsers have many spellings. Default: none.
    #[must_use]
    pub fn normalize(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        self.normalized = fields.into_iter().collect();
        self
    }

    /// Stores responses with `Set-Cookie` that say `public` or `s-maxage`, and gives their cookies to everybody.
    /// Default: they are for the client that asked.
    #[must_use]
    pub fn share_set_cookie(mut self) -> Self {
        self.share_set_cookie = true;
        self
    }

    /// For how long, beyond its freshness, a response with a validator is kept, so that the origin can be asked whether
    /// it has changed. Default: 60 s; at most a year.
    #[must_use]
    pub fn keep(mut self, span: Duration) -> Self {
        self.keep = span.min(YEAR);
        self
    }

    /// Says the key in `Cache-Status` (RFC 9211 §2.7). Default: off, as it is the URL again.
    #[must_use]
    pub fn show_key(mut self) -> Self {
        self.show_key = true;
        self
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            heed_requests: true,
            silent: Silent::Policy,
            targets: Arc::new([HeaderName::from_static("cdn-cache-control")]),
            key_headers: Arc::default(),
            credentials: Arc::default(),
            any_host: false,
            normalized: Arc::default(),
            share_set_cookie: false,
            keep: Duration::from_secs(60),
            show_key: false,
        }
    }
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
