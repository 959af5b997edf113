//! For how long a response is fresh, and how old it is: RFC 9111 §4.2.

use crate::http::directives::{Directives, Source};
use http::{HeaderMap, HeaderName, header};
use std::time::{Duration, SystemTime};

/// When a response was asked for, and when its head was there.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct Times {
    pub(in crate::http) asked: SystemTime,
    pub(in crate::http) answered: SystemTime,
}

impl Times {
    /// RFC 9111 §4.2.3: the age with which a response arrives.
    ///
    /// A `Date` says in which second a response was made, not when in it: its age counts from the end of that second, so
    /// that the answer of this very moment is new. What is too little by this is less than a second.
    pub(in crate::http) fn initial_age(&self, headers: &HeaderMap) -> Duration {
        let second = Duration::from_secs(1);
        let since = |date| self.answered.duration_since(date).unwrap_or_default();
        let apparent = date(headers, &header::DATE).map(since).unwrap_or_default().saturating_sub(second);
        let delay = self.answered.duration_since(self.asked).unwrap_or_default();
        apparent.max(Duration::from_secs(super::age(headers).into()) + delay)
    }
}

/// RFC 9111 §4.2.1: what the response itself says; `s-maxage` before `max-age` before `Expires`.
pub(super) fn explicit(
    directives: &Directives,
    source: Source,
    headers: &HeaderMap,
    answered: SystemTime,
) -> Option<Duration> {
    let expires = || {
        let said = source != Source::Targeted && headers.contains_key(header::EXPIRES);
        // RFC 9111 §5.3: what is not a date, or more than one, is a time in the past.
        let expires = || date(headers, &header::EXPIRES)?.duration_since(made(headers, answered)).ok();
        said.then(|| expires().unwrap_or_default())
    };
    directives.s_maxage.or(directives.max_age).or_else(expires)
}

/// RFC 9111 §4.2.2: a part of the time since it was modified, at most a day.
pub(super) fn heuristic(headers: &HeaderMap, answered: SystemTime, part: f64) -> Option<Duration> {
    let unchanged = made(headers, answered).duration_since(date(headers, &header::LAST_MODIFIED)?).ok()?;
    Some(unchanged.mul_f64(part).min(DAY))
}

/// RFC 9110 §6.6.1: what has no date was made when it came.
fn made(headers: &HeaderMap, answered: SystemTime) -> SystemTime {
    date(headers, &header::DATE).unwrap_or(answered)
}

/// The one date in that field.
pub(super) fn date(headers: &HeaderMap, field: &HeaderName) -> Option<SystemTime> {
    let mut lines = headers.get_all(field).iter();
    let date = httpdate::parse_http_date(lines.next()?.to_str().ok()?).ok()?;
    lines.next().is_none().then_some(date)
}

const DAY: Duration = Duration::from_secs(24 * 3600);
