//! Helpers for the tests of these modules.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let fields = fields
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
    fields.collect()
}

pub(super) fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).expect("a status")
}

/// Returns Sun, 06 Nov 1994 08:49:37 GMT plus `seconds`.
pub(super) fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(784_111_777_u64.saturating_add_signed(seconds))
}

pub(super) fn date(seconds: i64) -> String {
    httpdate::fmt_http_date(at(seconds))
}
