//! Storing and sharing: which requests may get a response, and for how long (RFC 9111 §3).

use super::{
    freshness::{self, Times},
    request::{AuthSharing, Credentials},
    validation,
};
use crate::{
    config::http::{DefaultFreshness, HttpOptions},
    http::{directives::Directives, vary::SelectingFields},
    uncached::Uncached,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::time::Duration;

/// The requests that may get a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Storable {
    /// All requests that its [`AuthSharing`] admits and that select it.
    Shared(StorageTerms),
    /// Only the client that requested it, for this reason.
    Private(Uncached),
    /// Likewise, if they are made at the same time, because it is an error that is not stored.
    WaitersOnly(StorageTerms),
}

/// The terms on which a response is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct StorageTerms {
    /// Freshness lifetime that is left on arrival. `None`: not stated, so the policy decides.
    pub(in crate::http) lifetime: Option<Duration>,
    /// Stale window from the end of freshness, or from arrival if that was later. `None`: the policy decides.
    pub(in crate::http) stale_while_revalidate: Option<Duration>,
    /// Likewise.
    pub(in crate::http) stale_if_error: Option<Duration>,
    /// Time after its freshness lifetime for which it is kept for validation.
    pub(in crate::http) retain_for: Duration,
    /// Age on arrival (RFC 9111 §4.2.3).
    pub(in crate::http) age: Duration,
    /// Whether the origin states a freshness lifetime.
    pub(in crate::http) is_stated: bool,
    pub(in crate::http) sharing: Sharing,
}

/// The requests that a stored response may serve, derived from its head when it is stored. Readers use it, so that
/// processes with different settings agree, and a hit parses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Sharing {
    pub(in crate::http) auth_sharing: AuthSharing,
    /// The origin says that it is for all clients, whatever the fields of a request.
    pub(in crate::http) for_everyone: bool,
    /// Each request validates it for itself: `no-cache` (RFC 9111 §5.2.2.4) or a lifetime of zero, without `public`.
    pub(in crate::http) always_validated: bool,
}

impl Sharing {
    /// Creates the sharing of a response with these directives and this [explicit](freshness::explicit) lifetime.
    fn new(directives: &Directives, lifetime: Option<Duration>, options: &HttpOptions) -> Self {
        let auth_sharing = AuthSharing::of_directives(directives);
        let is_stated = lifetime.is_some() && (directives.are_targeted || options.explicit_is_shared);
        let is_zero = directives.no_cache || lifetime.is_some_and(|lifetime| lifetime.is_zero());
        Self {
            auth_sharing,
            for_everyone: auth_sharing == AuthSharing::Public || is_stated,
            always_validated: is_zero && !directives.public,
        }
    }

    /// Derives the sharing of a head that is [`dated`](validation::dated), as every stored head is.
    #[cfg(any(test, feature = "_fuzz"))]
    pub(in crate::http) fn of(headers: &HeaderMap, options: &HttpOptions) -> Self {
        let directives = Directives::for_cache(headers, &options.targeted_fields);
        let lifetime = freshness::explicit(&directives, headers, std::time::UNIX_EPOCH);
        Self::new(&directives, lifetime, options)
    }
}

impl StorageTerms {
    /// Reports whether the response would be stored for nothing: it is not fresh, and may not be used afterwards.
    fn are_useless(&self) -> bool {
        let uses = [self.lifetime, self.stale_while_revalidate, self.stale_if_error, Some(self.retain_for)];
        self.lifetime.is_some() && uses.into_iter().flatten().all(|span| span.is_zero())
    }

    /// Returns the terms of a server error: it is used while it is fresh, and afterwards for as long as it states. The
    /// windows of the policy are for good responses.
    fn for_error(self) -> Self {
        let stated = |window: Option<Duration>| Some(window.unwrap_or_default());
        Self {
            stale_while_revalidate: stated(self.stale_while_revalidate),
            stale_if_error: stated(self.stale_if_error),
            // Only a 200 is validated.
            retain_for: Duration::ZERO,
            ..self
        }
    }
}

/// Decides, at the head of a response to a GET or HEAD with such credentials, which requests may get it.
pub(in crate::http) fn storable(
    status: StatusCode,
    headers: &HeaderMap,
    credentials: Credentials,
    times: Times,
    options: &HttpOptions,
) -> Storable {
    let directives = Directives::for_cache(headers, &options.targeted_fields);
    let explicit = freshness::explicit(&directives, headers, times.response_time);
    let sharing = Sharing::new(&directives, explicit, options);
    let head = ResponseHead { status, headers, directives, explicit, sharing, times, options };
    head.storable(credentials).unwrap_or_else(Storable::Private)
}

/// The head of a response, with what it states.
struct ResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    directives: Directives,
    /// Its [explicit](freshness::explicit) freshness lifetime.
    explicit: Option<Duration>,
    sharing: Sharing,
    times: Times,
    options: &'a HttpOptions,
}

impl ResponseHead<'_> {
    fn storable(&self, credentials: Credentials) -> Result<Storable, Uncached> {
        if let Some(reason) = self.private() {
            return Err(reason);
        }
        let (status, directives, auth_sharing) = (self.status, &self.directives, self.sharing.auth_sharing);
        let is_server_error = status.is_server_error();
        // A rate limit has fields about one client.
        let is_waiters_error = is_server_error || status.is_client_error() && !is_origin_failure(status);
        let is_for_waiters = is_waiters_error && !self.sharing.always_validated;
        // RFC 9111 §3: storing needs an explicit lifetime, `public`, or a heuristically cacheable status.
        let may_be_silent = is_heuristically_cacheable(status) || directives.public && !is_server_error;
        let may_be_stored = !is_about_one_request(status) && (self.explicit.is_some() || may_be_silent);
        if !may_be_stored && !is_for_waiters {
            return Err(Uncached::Status);
        }
        // §5.2.2.4: it is validated before each use.
        let stated = if directives.no_cache { Some(Duration::ZERO) } else { self.explicit };
        if stated.is_none() && auth_sharing < AuthSharing::Public && is_for_one_client(self.headers) {
            return Err(Uncached::UserField);
        }
        // §3.5.
        if let Some(reason) = credentials.uncached().filter(|_| !auth_sharing.admits(credentials)) {
            return Err(reason);
        }
        let terms = match stated.map(Some).or_else(|| self.default_lifetime()) {
            Some(lifetime) if is_server_error => self.terms(lifetime).for_error(),
            Some(lifetime) => self.terms(lifetime),
            None if is_for_waiters && self.options.default_freshness != DefaultFreshness::Stale => {
                return Ok(Storable::WaitersOnly(self.terms(None)));
            }
            None => return Err(Uncached::NoFreshness),
        };
        let is_over = is_server_error && terms.lifetime.is_some_and(|lifetime| lifetime.is_zero());
        match may_be_stored && !is_over && !terms.are_useless() {
            true => Ok(Storable::Shared(terms)),
            false if is_for_waiters => Ok(Storable::WaitersOnly(terms)),
            false => Err(Uncached::Expired),
        }
    }

    /// Returns the terms of a response with this freshness lifetime at the origin.
    fn terms(&self, lifetime: Option<Duration>) -> StorageTerms {
        let Self { headers, directives, .. } = self;
        let age = self.times.initial_age(headers);
        let forbidden = directives.forbid_stale().then_some(Duration::ZERO);
        // RFC 5861 counts stale windows from the end of freshness, which may have been before arrival.
        let stale_for = lifetime.map_or(Duration::ZERO, |lifetime| age.saturating_sub(lifetime));
        // A lifetime of zero asks for validation before each use, so the stale window of the policy does not apply.
        let never_fresh = lifetime.filter(Duration::is_zero);
        let window = |stated: Option<Duration>| forbidden.or(stated.map(|window| window.saturating_sub(stale_for)));
        let retain_for = self.options.retain_for_revalidation;
        StorageTerms {
            lifetime: lifetime.map(|lifetime| lifetime.saturating_sub(age)),
            stale_while_revalidate: window(directives.stale_while_revalidate.or(never_fresh)),
            stale_if_error: window(directives.stale_if_error),
            retain_for: if validation::conditions(headers).is_empty() { Duration::ZERO } else { retain_for },
            age,
            is_stated: self.explicit.is_some(),
            sharing: self.sharing,
        }
    }

    /// Returns the lifetime of a response that states none: `Some(None)` if the policy decides. `None` if it has no
    /// lifetime.
    fn default_lifetime(&self) -> Option<Option<Duration>> {
        match self.options.default_freshness {
            DefaultFreshness::Policy => Some(None),
            DefaultFreshness::Heuristic(part) => {
                freshness::heuristic(self.headers, self.times.response_time, part).map(Some)
            }
            DefaultFreshness::Stale => None,
        }
    }

    /// Returns why the response is for one client only, whatever its lifetime.
    fn private(&self) -> Option<Uncached> {
        let Self { status, headers, directives, .. } = self;
        // RFC 9111 §5.2.2.3: a cache that implements must-understand ignores a no-store beside it.
        if directives.must_understand && !is_understood(*status) {
            Some(Uncached::Status)
        } else if directives.no_store && !directives.must_understand {
            Some(Uncached::NoStore)
        } else if directives.private {
            Some(Uncached::Private)
        } else if headers.contains_key(header::SET_COOKIE) {
            // RFC 9111 §7.3 leaves cookies to the origin's directives, but few origins consider them.
            Some(Uncached::SetCookie)
        } else if SelectingFields::of(headers, true).is_none() {
            Some(Uncached::Vary) // §4.1: a `*` never matches.
        } else if is_partial(*status, headers) {
            Some(Uncached::Partial)
        } else {
            is_event_stream(headers).then_some(Uncached::EventStream)
        }
    }
}

/// Reports whether the response has a field that is made for one client.
fn is_for_one_client(headers: &HeaderMap) -> bool {
    let is_policy = |name: &HeaderName| name.as_str().starts_with("content-security-policy");
    let has_nonce = |value: &HeaderValue| value.as_bytes().windows(7).any(|part| part == b"'nonce-");
    headers.iter().any(|(name, value)| {
        FOR_ONE_CLIENT.iter().any(|end| name.as_str().ends_with(end)) || is_policy(name) && has_nonce(value)
    })
}

/// Reports whether the response is an event stream, which has no end.
fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        value.as_bytes().get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// Reports whether the response is not final, or describes another response (RFC 9111 §3), or is a part, which this
/// cache does not combine (§3.3).
fn is_partial(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status.as_u16(), 100..=199 | 206 | 226 | 304) || headers.contains_key(header::CONTENT_RANGE)
}

/// Reports whether this cache implements all caching rules of the status (RFC 9110 §15).
fn is_understood(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200..=205 | 300..=303 | 305 | 307 | 308 | 400..=417 | 421 | 422 | 426)
}

/// Reports whether the origin fails: a server error, or a client error by which an origin in trouble defends itself.
pub(in crate::http) fn is_origin_failure(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

/// Reports whether the status is heuristically cacheable (RFC 9110 §15.1). 206 is not stored.
pub(in crate::http) fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Reports whether the response is never stored, whatever its directives: the status is about a field of one request
/// (RFC 6585 §3 to §5, RFC 9110 §15.5.13, §15.5.17 and §15.5.18), or asks for the same request once more (RFC 9110 §15.5.9,
/// RFC 8470 §5.2).
fn is_about_one_request(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 412 | 416 | 417 | 425 | 428 | 429 | 431)
}

/// The ends of names of fields that are made for one client.
const FOR_ONE_CLIENT: [&str; 4] = [
    "authentication-info", // of a client's `Authorization` or `Proxy-Authorization` (RFC 9110 §11.6.3, §11.7.3)
    "csrf-token",          // proves that a form was served to the client that sends it
    "nonce",               // is valid once
    "mcp-session-id",      // names the session that begins (Model Context Protocol)
];

#[cfg(test)]
mod tests;
