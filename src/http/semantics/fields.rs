//! Selects and completes the fields of a response that are stored and sent on.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::time::SystemTime;

/// Returns the end-to-end fields. Fields of one connection are neither stored nor sent on (RFC 9110 §7.6.1,
/// RFC 9111 §3.1). `Age` and `Cache-Status` are removed too, because each reply sets them.
pub(in crate::http) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for line in headers.get_all(header::CONNECTION) {
        for name in line.as_bytes().split(|byte| *byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                kept.remove(name);
            }
        }
    }
    for name in NOT_STORED {
        kept.remove(name);
    }
    kept
}

/// Returns the stated length of the body. A body of another length is incomplete (RFC 9112 §8), and RFC 9111 §3.3
/// forbids storing it as complete.
pub(in crate::http) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.trim().parse().ok())
}

/// Adds a `Date` if it is missing or invalid, as RFC 9110 §6.6.1 requires of a recipient with a clock.
pub(in crate::http) fn dated(headers: &mut HeaderMap, response_time: SystemTime) {
    if super::freshness::date(headers, &header::DATE).is_none()
        && let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(response_time))
    {
        headers.insert(header::DATE, date);
    }
}

const NOT_STORED: [&str; 12] = [
    "age",
    "cache-status",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

#[cfg(test)]
mod tests {
    use super::{
        super::kit::{at, date, headers},
        *,
    };

    /// RFC 9110 §7.6.1.
    #[test]
    fn connection_fields_are_not_stored() {
        let kept = end_to_end(&headers(&[
            ("connection", "close, X-Hop"),
            ("connection", ",x-other ,\u{e9}, X-Third"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("x-third", "1"),
            ("keep-alive", "1"),
            ("transfer-encoding", "chunked"),
            ("age", "3"),
            ("etag", "e"),
        ]));
        assert_eq!(kept, headers(&[("etag", "e")]));
    }

    /// RFC 9110 §6.6.1.
    #[test]
    fn missing_or_invalid_date_is_added() {
        let now = date(0);
        for fields in [&[][..], &[("date", "today")], &[("date", "0"), ("date", "1")]] {
            let mut head = headers(fields);
            dated(&mut head, at(0));
            assert_eq!(head, headers(&[("date", &now)]), "{fields:?}");
        }
        let (earlier, mut head) = (headers(&[("date", &date(-9))]), headers(&[("date", &date(-9))]));
        dated(&mut head, at(0));
        assert_eq!(head, earlier);
    }
}
