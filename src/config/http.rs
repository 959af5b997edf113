//! HTTP settings for what the RFCs leave to the operator of a cache.

use http::{
    Extensions, HeaderName, Uri,
    header::{AUTHORIZATION, FORWARDED},
    request,
};
use std::{fmt, ptr, sync::Arc, time::Duration};

/// The settings of the HTTP layer for what the RFCs leave to a cache. Passed to
/// [`StampedeGuard::http`](crate::StampedeGuard::http).
///
/// How long a response is used, and what a client may demand:
///
/// ```
/// use http::HeaderName;
/// use stampede_guard::{StampedeGuard, http::HttpOptions};
/// use std::time::Duration;
///
/// let options = HttpOptions::default()
///     .heuristic_freshness(0.1) // without `max-age`: a page that has not changed for 10 days is fresh for one
///     .retain_for_revalidation(Duration::from_secs(3600)) // then the origin may answer 304, for an hour
///     .targeted_fields([HeaderName::from_static("shop-cache-control")]) // read before `Cache-Control`
///     .honour_request_directives(); // our own clients: a reload reaches the origin
/// let guard = StampedeGuard::in_memory().http(options);
/// ```
///
/// Which requests share a response:
///
/// ```
/// use http::HeaderName;
/// use stampede_guard::http::HttpOptions;
///
/// let options = HttpOptions::default()
///     .vary_key_on(HeaderName::from_static("x-tenant"))           // each tenant has entries of its own
///     .credential_fields([HeaderName::from_static("x-session")])  // as `Cookie`: only `public` pages are shared
///     .harmless_fields([HeaderName::from_static("x-mesh-node")])  // no handler reads it
///     .selecting_fields([HeaderName::from_static("x-api-version")]); // two versions, each with pages of its own
///
/// // An origin whose `Vary` names all fields that it reads, as RFC 9111 expects.
/// let strict = HttpOptions::default().explicit_is_shared(true).require_explicit_freshness();
/// ```
///
/// # Defaults
///
/// Responses without an explicit freshness lifetime get that of the [`Policy`](crate::Policy). Unless they are for
/// all clients, responses are shared by requests without [credentials](Self::credential_fields) that agree in all
/// fields but [harmless](Self::harmless_fields) ones. A reload costs at most [one call a
/// second](Self::honour_request_directives). `CDN-Cache-Control` takes precedence over `Cache-Control`. A key consists of
/// the scheme (that of `X-Forwarded-Proto`, if there is one), authority, path and query. Other fields that [repeat the
/// target](Self::trust_forwarded) select the response if they contradict it.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOptions {
    pub(crate) honour_request_directives: bool,
    pub(crate) default_freshness: DefaultFreshness,
    pub(crate) targeted_fields: Arc<[HeaderName]>,
    pub(crate) vary_key_on: Arc<[HeaderName]>,
    pub(crate) credential_fields: Arc<[HeaderName]>,
    pub(crate) harmless_fields: Arc<[HeaderName]>,
    pub(crate) selecting_fields: Arc<[HeaderName]>,
    pub(crate) explicit_is_shared: bool,
    pub(crate) private_if: Option<Hook<PrivateIf>>,
    pub(crate) trusted_forwarded: Arc<[HeaderName]>,
    pub(crate) original_uri: Option<Hook<OriginalUri>>,
    pub(crate) ignore_host: bool,
    pub(crate) retain_for_revalidation: Duration,
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
    /// Follows `Cache-Control` and `Pragma` of requests to the letter, for clients that are known: every reload reaches
    /// the origin.
    ///
    /// Default: `no-cache`, `no-store`, `max-age` and `min-fresh` are met by a response that arrived less than a second
    /// ago, so that no client costs more than a call a second for a page (RFC 9111 §5.2.1 makes these directives
    /// advisory). A response to a request with `no-store` is stored.
    #[must_use]
    pub fn honour_request_directives(mut self) -> Self {
        self.honour_request_directives = true;
        self
    }

    /// Neither stores nor shares responses without an explicit freshness lifetime. Default: they have the lifetime of the
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

    /// Treats these request fields as credentials. As with a `Cookie`, requests that have one of them share only
    /// responses that say `public` or `s-maxage`.
    ///
    /// Default: `Cookie`, `Proxy-Authorization`, and `Authorization` (RFC 9111 §3.5). Other fields that are not
    /// [harmless](Self::harmless_fields) need not be named. Undoes `harmless_fields`, and the other way round.
    #[must_use]
    pub fn credential_fields(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        let added: Vec<_> = fields.into_iter().collect();
        self.harmless_fields = self.harmless_fields.iter().filter(|field| !added.contains(field)).cloned().collect();
        self.credential_fields = self.credential_fields.iter().cloned().chain(added).collect();
        self
    }

    /// Adds request fields to the harmless ones, which may differ between requests that share a response. For fields
    /// that handlers do not choose their page by, such as one that a service mesh adds to each request; `Cookie` for a
    /// site whose cookies no handler reads.
    ///
    /// Responses that say `public`, `s-maxage`, or a lifetime in a [targeted field](Self::targeted_fields) are for
    /// all clients. All others are shared only by requests that agree in all fields that are not harmless, because
    /// handlers know their users from fields with any name. Clients choose such fields, so a page has at most 64 of
    /// these responses at a time. A response to a request with such a field is stored for at most one second if it has
    /// no freshness lifetime, and may be replaced after one second if it has one.
    ///
    /// Default: the fields that browsers, proxies, content delivery networks and tracers send
    /// (`src/http/semantics/request_fields.txt`). Addresses of clients are among them: see
    /// [`private_if`](Self::private_if).
    ///
    /// # Panics
    ///
    /// Panics for `Authorization`, because RFC 9111 §3.5 says which responses a shared cache may reuse.
    #[must_use]
    #[track_caller]
    pub fn harmless_fields(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        let added: Vec<_> = fields.into_iter().collect();
        assert!(!added.contains(&AUTHORIZATION), "harmless_fields must not name authorization");
        self.credential_fields =
            self.credential_fields.iter().filter(|field| !added.contains(field)).cloned().collect();
        self.harmless_fields = self.harmless_fields.iter().cloned().chain(added).collect();
        self
    }

    /// Names request fields that are meant to select responses that are not for all clients, such as a tenant or the
    /// version of an API. Each value has responses of its own, beyond the 64 of unknown fields, and they are stored for
    /// their whole lifetime. Name only fields whose values clients cannot choose, or few of them. Default: none.
    #[must_use]
    pub fn selecting_fields(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        self.selecting_fields = self.selecting_fields.iter().cloned().chain(fields).collect();
        self
    }

    /// Sets whether a response with a freshness lifetime is for all clients, as RFC 9111 has it, without a `public`.
    /// For origins whose `Vary` names each field that they go by. Default: `false`.
    #[must_use]
    pub fn explicit_is_shared(mut self, is_shared: bool) -> Self {
        self.explicit_is_shared = is_shared;
        self
    }

    /// Reports whether the field may differ between requests that share a response, because it is harmless or in the key.
    pub(crate) fn is_harmless(&self, field: &HeaderName) -> bool {
        self.harmless_fields.contains(field) || self.vary_key_on.contains(field)
    }

    /// Treats a request as one with credentials if this function returns `true` for it. For handlers that know the user
    /// from something else than a field: an extension of middleware outside the layer, a client certificate, an address.
    /// It is called for each GET and HEAD, also for hits, and must not panic. Default: none.
    ///
    /// Also for middleware that rewrites the URI for some visitors only, to a suffix of it: see
    /// [`original_uri`](Self::original_uri).
    ///
    /// ```
    /// # #[derive(Clone)] struct User;
    /// use stampede_guard::http::HttpOptions;
    ///
    /// let options = HttpOptions::default().private_if(|parts| parts.extensions.get::<User>().is_some());
    /// ```
    #[must_use]
    pub fn private_if(mut self, is_private: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.private_if = Some(Hook(Arc::new(is_private)));
        self
    }

    /// Puts these fields, in which a proxy repeats the target of the client's request, into every key. For a proxy that
    /// changes the target and sets the fields itself. Default: none.
    ///
    /// The host of `X-Forwarded-Host` or `Forwarded` becomes the authority of the key, and the `proto` of `Forwarded`
    /// its scheme. [`invalidate_url`](crate::StampedeGuard::invalidate_url) then takes the public host. `Host` is no part
    /// of such a key, so every request of one public host must have the same `Host`: if a gateway tells two applications
    /// apart by `Host` alone, give each a guard with a namespace of its own.
    ///
    /// Another field, such as `X-Forwarded-Prefix`, is added as [`vary_key_on`](Self::vary_key_on) does. `invalidate_url`
    /// cannot name an entry whose key has such a field; an unsafe request with the same value can. `X-Forwarded-Proto`
    /// always is the scheme of the key.
    ///
    /// A field that is not trusted must agree with the request: an `X-Forwarded-Host` that differs from its `Host`, an
    /// `X-Original-URL` that differs from its path, an `X-HTTP-Method-Override` that differs from its method. Otherwise
    /// all these fields select the response, which is stored for at most one second, because applications build links
    /// and redirects from them, and clients can send them too. The [guide](crate::guide::proxies) lists the fields.
    ///
    /// ```
    /// use http::HeaderName;
    /// use stampede_guard::http::HttpOptions;
    ///
    /// // The gateway overwrites both fields in each request, and removes the prefix from the path.
    /// let set_by_gateway = ["x-forwarded-host", "x-forwarded-prefix"].map(HeaderName::from_static);
    /// let options = HttpOptions::default().trust_forwarded(set_by_gateway);
    /// ```
    #[must_use]
    pub fn trust_forwarded(mut self, fields: impl IntoIterator<Item = HeaderName>) -> Self {
        for field in fields {
            self.trusted_forwarded = self.trusted_forwarded.iter().cloned().chain([field.clone()]).collect();
            if field != FORWARDED && field != "x-forwarded-host" && field != "x-forwarded-proto" {
                self = self.vary_key_on(field);
            }
        }
        self
    }

    /// Sets how to find the URI as the client sent it, if a router has removed a prefix from the request's URI. Without
    /// it, `/v1/users` and `/v2/users` are one resource to a layer within a nested router. If more than a prefix has
    /// changed, the key has both URIs.
    ///
    /// Middleware below a router that rewrites the URI for some visitors only, to a suffix of it (`/beta/home` to
    /// `/home`), looks like `nest`: all visitors of `/beta/home` share one key. Then name in [`vary_key_on`](Self::vary_key_on) the field
    /// that the middleware goes by, or tell the visitors apart with [`private_if`](Self::private_if).
    ///
    /// Default: with the feature `axum`, the `OriginalUri` of axum 0.8. Another version of axum has an `OriginalUri` of
    /// its own, which has to be named here:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::extract::OriginalUri;
    /// use stampede_guard::http::HttpOptions;
    ///
    /// let options = HttpOptions::default().original_uri(|extensions| extensions.get::<OriginalUri>().map(|uri| &uri.0));
    /// # }
    /// ```
    #[must_use]
    pub fn original_uri(mut self, find: impl Fn(&Extensions) -> Option<&Uri> + Send + Sync + 'static) -> Self {
        self.original_uri = Some(Hook(Arc::new(find)));
        self
    }

    /// Leaves the authority out of the keys, for applications that answer every `Host` alike, and ignores
    /// `X-Forwarded-Host` and the other fields that name a host. A client can then neither cause misses nor poison
    /// entries through them, and [`invalidate_url`](crate::StampedeGuard::invalidate_url) takes paths. Default: off.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use stampede_guard::{StampedeGuard, http::HttpOptions};
    ///
    /// let guard = StampedeGuard::in_memory().http(HttpOptions::default().ignore_host());
    /// guard.invalidate_url(&"/products/7".parse()?).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn ignore_host(mut self) -> Self {
        self.ignore_host = true;
        self
    }

    /// Sets how long a response with a validator is kept after its freshness lifetime, for validation (RFC 9111 §4.3).
    /// Default: 60 s.
    #[must_use]
    pub fn retain_for_revalidation(mut self, span: Duration) -> Self {
        self.retain_for_revalidation = span;
        self
    }
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            honour_request_directives: false,
            default_freshness: DefaultFreshness::Policy,
            targeted_fields: Arc::new([HeaderName::from_static("cdn-cache-control")]),
            vary_key_on: Arc::default(),
            credential_fields: Arc::default(),
            harmless_fields: Arc::default(),
            selecting_fields: Arc::default(),
            explicit_is_shared: false,
            private_if: None,
            trusted_forwarded: Arc::default(),
            original_uri: None,
            ignore_host: false,
            retain_for_revalidation: Duration::from_secs(60),
        }
    }
}

/// A function that an application provides, compared by identity.
pub(crate) struct Hook<F: ?Sized>(pub(crate) Arc<F>);

pub(crate) type PrivateIf = dyn Fn(&request::Parts) -> bool + Send + Sync;
pub(crate) type OriginalUri = dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync;

impl<F: ?Sized> Clone for Hook<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: ?Sized> PartialEq for Hook<F> {
    fn eq(&self, other: &Self) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl<F: ?Sized> fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
