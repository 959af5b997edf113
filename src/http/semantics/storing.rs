//! Who may have a response, and for how long: RFC 9111 §3.

use super::{
    freshness::{self, Times},
    request::Credentials,
    validation,
};
use crate::http::{
    directives::Directives,
    rules::{Rules, Silent},
    vary::Selecting,
};
use http::{HeaderMap, StatusCode, header};
use std::time::Duration;

/// Who may have a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Shared {
    /// Everybody to whom it is [`Open`], whose request selects it.
    Everybody(Terms),
    /// The client that asked.
    Nobody,
    /// Those who asked for it at the same time: it says that the origin is in trouble. Whether they may have all of it,
    /// or only its status.
    Failure { whole: bool },
}

/// How a response is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Terms {
    /// What is left of its freshness when it arrives; `None`: it does not say, and the policy does.
    pub(in crate::http) lifetime: Option<Duration>,
    /// From the end of its freshness, or from its arrival if it was stale by then; `None`: the policy says.
    pub(in crate::http) stale_while_revalidate: Option<Duration>,
    /// Likewise.
    pub(in crate::http) stale_if_error: Option<Duration>,
    /// For how long beyond its freshness it is worth to be asked about.
    pub(in crate::http) keep: Duration,
    /// The age with which it arrived (RFC 9111 §4.2.3).
    pub(in crate::http) age: Duration,
    pub(in crate::http) open: Open,
}

/// What a response says of requests with credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) enum Open {
    /// Nothing: it is for requests without.
    Default,
    /// `must-revalidate` beside a `max-age`. RFC 9111 §3.5 takes it alone for a permission; but whoever means it says for
    /// how long, and no default lifetime opens what one client was shown.
    Authorization,
    /// `public` or `s-maxage`.
    Public,
}

impl Open {
    /// Derived from the head alone, so that it need not be stored with it.
    pub(in crate::http) fn of(headers: &HeaderMap, rules: &Rules) -> Self {
        Self::said(&Directives::for_cache(headers, &rules.targets).0)
    }

    pub(super) fn said(directives: &Directives) -> Self {
        if directives.public || directives.s_maxage.is_some() {
            Self::Public
        } else if directives.must_revalidate && directives.max_age.is_some() {
            Self::Authorization
        } else {
            Self::Default
        }
    }

    /// Whether the answer to one request with such credentials may be given to another.
    pub(in crate::http) fn admits(self, credentials: Credentials) -> bool {
        match credentials {
            Credentials::None => true,
            Credentials::Authorization => self >= Self::Authorization,
            Credentials::Cookie => self >= Self::Public,
        }
    }
}

/// Decides at the head of a response to a GET or HEAD that had such credentials.
pub(in crate::http) fn shared(
    status: StatusCode,
    headers: &HeaderMap,
    credentials: Credentials,
    times: Times,
    rules: &Rules,
) -> Shared {
    let (directives, source) = Directives::for_cache(headers, &rules.targets);
    let open = Open::said(&directives);
    let private = is_private(status, headers, &directives, open, rules);
    if status.is_server_error() {
        // It is not stored, so there are no variants of it either.
        let whole = !private && !directives.no_cache && !headers.contains_key(header::VARY) && open.admits(credentials);
        return Shared::Failure { whole };
    }
    if private || is_partial(status, headers) || ABOUT_ONE_REQUEST.contains(&status) {
        return Shared::Nobody;
    }
    // RFC 9111 §3: an explicit lifetime, `public`, or a status of which a lifetime may be assumed.
    let explicit = freshness::explicit(&directives, source, headers, times.answered);
    if explicit.is_none() && !directives.public && !SILENTLY_STORABLE.contains(&status) {
        return Shared::Nobody;
    }
    let lifetime = match (explicit, rules.silent) {
        // §5.2.2.4: it is validated before each use.
        _ if directives.no_cache => Some(Duration::ZERO),
        (Some(lifetime), _) => Some(lifetime),
        (None, Silent::Policy) => None,
        (None, Silent::Heuristic(part)) => match freshness::heuristic(headers, times.answered, part) {
            Some(lifetime) => Some(lifetime),
            None => return Shared::Nobody,
        },
        (None, Silent::Stale) => return Shared::Nobody,
    };
    let age = times.initial_age(headers);
    let forbidden = directives.forbid_stale().then_some(Duration::ZERO);
    // RFC 5861 counts these from the end of freshness, which may have been before it arrived.
    let stale_for = lifetime.map_or(Duration::ZERO, |lifetime| age.saturating_sub(lifetime));
    // Who says that it is never fresh wants to be asked before each use, whatever the policy has for others.
    let never_fresh = lifetime.filter(Duration::is_zero);
    let window = |said: Option<Duration>| forbidden.or(said.map(|window| window.saturating_sub(stale_for)));
    let terms = Terms {
        lifetime: lifetime.map(|lifetime| lifetime.saturating_sub(age)),
        stale_while_revalidate: window(directives.stale_while_revalidate.or(never_fresh)),
        stale_if_error: window(directives.stale_if_error),
        keep: if validation::has_validator(headers) { rules.keep } else { Duration::ZERO },
        age,
        open,
    };
    let uses = [terms.lifetime, terms.stale_while_revalidate, terms.stale_if_error, Some(terms.keep)];
    let useless = terms.lifetime.is_some() && uses.into_iter().flatten().all(|span| span.is_zero());
    // §3.5.
    if useless || !open.admits(credentials) { Shared::Nobody } else { Shared::Everybody(terms) }
}

/// What is for one client only, whatever its status.
fn is_private(status: StatusCode, headers: &HeaderMap, directives: &Directives, open: Open, rules: &Rules) -> bool {
    // RFC 9111 §5.2.2.3: where must-understand is obeyed, a no-store beside it is for caches that do not know it.
    let no_store = match directives.must_understand {
        true => !is_understood(status),
        false => directives.no_store,
    };
    // RFC 9111 §7.3 leaves cookies to the origin's directives; few origins think of them.
    let shares_cookies = rules.share_set_cookie && open == Open::Public;
    no_store
        || directives.private
        || (headers.contains_key(header::SET_COOKIE) && !shares_cookies)
        // §4.1: a `*` never matches.
        || Selecting::of(headers).is_none()
        || is_event_stream(headers)
}

/// It has no end.
fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        value.as_bytes().get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// RFC 9111 §3: it is not final, or says something of another response. §3.3: parts are not combined here.
fn is_partial(status: StatusCode, headers: &HeaderMap) -> bool {
    status.is_informational()
        || status == StatusCode::PARTIAL_CONTENT
        || status == StatusCode::IM_USED
        || status == StatusCode::NOT_MODIFIED
        || headers.contains_key(header::CONTENT_RANGE)
}

/// The statuses of RFC 9110 §15 of which this cache knows all that concerns a cache.
fn is_understood(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200..=205 | 300..=303 | 305 | 307 | 308 | 400..=417 | 421 | 422 | 426)
}

/// RFC 6585 §3 to §5: never stored, whatever they say.
const ABOUT_ONE_REQUEST: [StatusCode; 3] =
    [StatusCode::PRECONDITION_REQUIRED, StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE];

/// RFC 9110 §15.1, less 206 and the server errors.
const SILENTLY_STORABLE: [StatusCode; 10] = [
    StatusCode::OK,
    StatusCode::NON_AUTHORITATIVE_INFORMATION,
    StatusCode::NO_CONTENT,
    StatusCode::MULTIPLE_CHOICES,
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::PERMANENT_REDIRECT,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::GONE,
    StatusCode::URI_TOO_LONG,
];

#[cfg(test)]
mod tests;
