//! The rules of a shared cache, as pure functions of heads and times. Each stands beside the clause that requires it.

#[cfg(test)]
mod differential;
pub(super) mod forwarded;
pub(super) mod freshness;
pub(super) mod ranges;
pub(super) mod request;
pub(super) mod request_fields;
pub(super) mod storing;
pub(super) mod validation;

/// Helpers for the tests of the HTTP layer.
#[cfg(test)]
pub(super) mod kit {
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    pub(in crate::http) fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
        fields.collect()
    }

    pub(in crate::http) fn status(code: u16) -> StatusCode {
        StatusCode::from_u16(code).expect("a status")
    }

    /// Returns Sun, 06 Nov 1994 08:49:37 GMT plus `seconds`.
    pub(in crate::http) fn at(seconds: i64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(784_111_777_u64.saturating_add_signed(seconds))
    }

    pub(in crate::http) fn date(seconds: i64) -> String {
        httpdate::fmt_http_date(at(seconds))
    }
}
