//! What a shared cache may do with a request and a response: pure functions of their heads.
//!
//! This is the safe part of RFC 9111: what is not handled yet is not stored, rather than stored wrongly.

#[cfg(test)]
mod differential;
mod etag;
pub(super) mod fields;
pub(super) mod freshness;
pub(super) mod invalidation;
#[cfg(test)]
mod kit;
pub(super) mod ranges;
pub(super) mod request;
pub(super) mod reuse;
pub(super) mod storing;
pub(super) mod validation;

pub(super) use fields::end_to_end;

use super::directives::{self, Directives};
use http::{HeaderMap, Method, StatusCode, header};
use std::time::{Duration, SystemTime};

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It may be answered by the cache, from an entry of at most that age.
    Cache { max_age: Option<Duration> },
    /// It goes to the origin as it is, for this reason (RFC 9211 §2.2).
    Bypass(&'static str),
}

pub(super) fn asked(method: &Method, headers: &HeaderMap, has_body: bool) -> Asked {
    if method != Method::GET {
        return Asked::Bypass("method");
    }
    // RFC 9111 §3.5 would allow more for Authorization; a cookie is no less a credential. A body on GET (RFC 9110
    // §9.3.1) would be unkeyed. Ranges and the preconditions that guard them are the origin's (§13, §14). An upgrade
    // is not a response to share.
    let not_shared = [
        header::AUTHORIZATION,
        header::COOKIE,
        header::RANGE,
        header::IF_RANGE,
        header::IF_MATCH,
        header::IF_UNMODIFIED_SINCE,
        header::UPGRADE,
    ];
    let directives = Directives::of(headers);
    if has_body || directives.no_store || not_shared.iter().any(|name| headers.contains_key(name)) {
        return Asked::Bypass("request");
    }
    // RFC 9111 §5.2.1.4; §5.4: Pragma counts where there is no Cache-Control.
    let pragma = !headers.contains_key(header::CACHE_CONTROL) && contains(headers, &header::PRAGMA, "no-cache");
    let max_age = if directives.no_cache || pragma { Some(Duration::ZERO) } else { directives.max_age };
    Asked::Cache { max_age }
}

/// Who may have a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// Everybody. The lifetime is the response's own, or the policy's where it is silent.
    Everybody { lifetime: Option<Duration>, stale: bool },
    /// The client that asked.
    Nobody,
    /// Those who asked for it at the same time: it says that the origin is in trouble. Whether they may have all of it,
    /// or only its status.
    Failure { whole: bool },
}

pub(super) fn shared(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Shared {
    let directives = Directives::of(headers);
    // RFC 9111 §3: no-store, private. no-cache (§5.2.2.4) would need validation before each use. §4.1: Vary needs
    // variants. Set-Cookie is for one client; an event stream has no end.
    let event_stream = headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        value.as_bytes().get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    });
    let not_shared = [header::SET_COOKIE, header::VARY, header::CONTENT_RANGE];
    let silent = !headers.contains_key(header::CACHE_CONTROL);
    let private = directives.no_store
        || directives.private
        || directives.no_cache
        || event_stream
        || not_shared.iter().any(|name| headers.contains_key(name))
        || (silent && contains(headers, &header::PRAGMA, "no-cache"));
    if status.is_server_error() {
        return Shared::Failure { whole: !private };
    }
    if private {
        return Shared::Nobody;
    }
    let given = lifetime(&directives, headers, now);
    let storable = match given {
        Some(lifetime) => !lifetime.is_zero() && explicitly_storable(status),
        None => SILENTLY_STORABLE.contains(&status),
    };
    match storable {
        // RFC 9111 §4.2.4: these forbid to serve it stale.
        true => {
            let stale = !directives.forbid_stale();
            Shared::Everybody { lifetime: given, stale }
        }
        false => Shared::Nobody,
    }
}

/// RFC 9111 §4.2.1: what the response itself says, less the age with which it came (§4.2.3).
fn lifetime(directives: &Directives, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let expires = || {
        let expires = headers.get(header::EXPIRES)?;
        // §5.3: what is not a date is a time in the past.
        let expires = expires.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok());
        let date = headers.get(header::DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        Some(expires.and_then(|expires| expires.duration_since(date.unwrap_or(now)).ok()).unwrap_or_default())
    };
    let lifetime = directives.s_maxage.or(directives.max_age).or_else(expires)?;
    Some(lifetime.saturating_sub(Duration::from_secs(age(headers).into())))
}

/// RFC 9111 §5.1: the age that a response came with, the first of a list. What is not a number is ignored.
pub(super) fn age(headers: &HeaderMap) -> u32 {
    let first = headers.get(header::AGE).and_then(|ages| ages.as_bytes().split(|byte| *byte == b',').next());
    first.and_then(|age| directives::seconds(age.trim_ascii())).unwrap_or(0)
}

/// RFC 9112 §8: a body of another length is incomplete, and RFC 9111 §3.3 lets no cache store it as if it were not.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.trim().parse().ok())
}

/// RFC 9111 §3: final, understood, and complete. 304 and 206 say something about another response.
fn explicitly_storable(status: StatusCode) -> bool {
    !status.is_informational() && status != StatusCode::PARTIAL_CONTENT && status != StatusCode::NOT_MODIFIED
}

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

fn contains(headers: &HeaderMap, name: &header::HeaderName, token: &str) -> bool {
    let in_line = |line: &http::HeaderValue| {
        line.as_bytes().split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    };
    headers.get_all(name).iter().any(in_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
            })
            .collect()
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(784_111_777) // Sun, 06 Nov 1994 08:49:37 GMT
    }

    fn of(status: u16, fields: &[(&'static str, &str)]) -> Shared {
        shared(StatusCode::from_u16(status).expect("a status"), &headers(fields), now())
    }

    fn everybody(lifetime: Option<u64>) -> Shared {
        Shared::Everybody { lifetime: lifetime.map(Duration::from_secs), stale: true }
    }

    #[test]
    fn what_may_not_be_shared_is_not() {
        for field in [
            ("cache-control", "no-store, max-age=60"),
            ("cache-control", "Private"),
            ("cache-control", "private=\"x\""),
            ("cache-control", "no-cache"),
            ("cache-control", "max-age=0"),
            ("cache-control", "max-age=60, s-maxage=0"),
            ("pragma", "no-cache"),
            ("set-cookie", "a=b"),
            ("vary", "accept"),
            ("vary", "*"),
            ("content-type", "text/event-stream; charset=utf-8"),
            ("content-range", "bytes 0-1/2"),
            ("expires", "0"),
            ("expires", "Sun, 06 Nov 1994 08:49:36 GMT"),
        ] {
            assert_eq!(of(200, &[field]), Shared::Nobody, "{field:?}");
        }
        for status in [206, 302, 304, 307, 400, 401, 403, 429] {
            assert_eq!(of(status, &[]), Shared::Nobody, "{status}");
        }
    }

    #[test]
    fn the_responses_own_words_win() {
        assert_eq!(of(200, &[]), everybody(None));
        assert_eq!(of(404, &[]), everybody(None));
        assert_eq!(of(302, &[("cache-control", "max-age=60")]), everybody(Some(60)));
        assert_eq!(of(200, &[("cache-control", "max-age=60"), ("age", "20")]), everybody(Some(40)));
        assert_eq!(of(200, &[("cache-control", "max-age=60"), ("age", "20, 5")]), everybody(Some(40)));
        for age in ["61", "99999999999999999999"] {
            assert_eq!(of(200, &[("cache-control", "max-age=60"), ("age", age)]), Shared::Nobody, "{age}");
        }
        for age in ["+61", "-1", "61.5", ""] {
            assert_eq!(of(200, &[("cache-control", "max-age=60"), ("age", age)]), everybody(Some(60)), "{age}");
        }
        assert_eq!(of(200, &[("cache-control", "max-age=60"), ("expires", "0")]), everybody(Some(60)));
        assert_eq!(of(200, &[("expires", "Sun, 06 Nov 1994 08:50:37 GMT")]), everybody(Some(60)));
        let later = [("expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("date", "Sun, 06 Nov 1994 08:50:27 GMT")];
        assert_eq!(of(200, &later), everybody(Some(10)));
    }

    #[test]
    fn some_forbid_to_serve_them_stale() {
        for value in ["max-age=60, must-revalidate", "max-age=60, proxy-revalidate", "s-maxage=60"] {
            let lifetime = Some(Duration::from_secs(60));
            assert_eq!(of(200, &[("cache-control", value)]), Shared::Everybody { lifetime, stale: false }, "{value}");
        }
    }

    #[test]
    fn server_errors_are_never_stored() {
        for status in 500..600 {
            assert_eq!(of(status, &[("cache-control", "max-age=60")]), Shared::Failure { whole: true });
            assert_eq!(of(status, &[("cache-control", "private")]), Shared::Failure { whole: false });
        }
    }

    #[test]
    fn requests_with_credentials_or_conditions_bypass() {
        let ask = |fields: &[(&'static str, &str)]| asked(&Method::GET, &headers(fields), false);
        for name in ["authorization", "cookie", "range", "if-range", "if-match", "if-unmodified-since", "upgrade"] {
            assert_eq!(ask(&[(name, "x")]), Asked::Bypass("request"), "{name}");
        }
        assert_eq!(ask(&[("cache-control", "no-store")]), Asked::Bypass("request"));
        assert_eq!(asked(&Method::GET, &HeaderMap::new(), true), Asked::Bypass("request"));
        assert_eq!(asked(&Method::HEAD, &HeaderMap::new(), false), Asked::Bypass("method"));
        assert_eq!(ask(&[]), Asked::Cache { max_age: None });
        for field in [("cache-control", "no-cache"), ("cache-control", "max-age=0"), ("pragma", "no-cache")] {
            assert_eq!(ask(&[field]), Asked::Cache { max_age: Some(Duration::ZERO) }, "{field:?}");
        }
        let both = [("pragma", "no-cache"), ("cache-control", "max-age=5")];
        assert_eq!(ask(&both), Asked::Cache { max_age: Some(Duration::from_secs(5)) });
    }

    proptest! {
        #[test]
        fn no_combination_makes_a_private_response_shared(
            status in 100_u16..600, control in "[ -~]{0,40}", age in "[ -~]{0,12}", expires in "[ -~]{0,30}",
            cookie: bool,
        ) {
            let mut fields = headers(&[("cache-control", &control), ("age", &age), ("expires", &expires)]);
            let status = StatusCode::from_u16(status).expect("a status");
            let _ = shared(status, &fields, now());
            match cookie {
                true => _ = fields.append("set-cookie", HeaderValue::from_static("a=b")),
                false => _ = fields.append("cache-control", HeaderValue::from_static("private")),
            }
            let nobody = [Shared::Nobody, Shared::Failure { whole: false }];
            prop_assert!(nobody.contains(&shared(status, &fields, now())));
        }
    }
}
