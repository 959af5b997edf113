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
    ///
    /// How long the answer took is added to an `Age`, which was said on the way. Without one the response comes from the
    /// origin itself, and its `Date` says when it was made: a computation that takes as long as its result is fresh would
    /// else be of use to nobody.
    pub(in crate::http) fn initial_age(&self, headers: &HeaderMap) -> Duration {
        let second = Duration::from_secs(1);
        let since = |date| self.answered.duration_since(date).unwrap_or_default();
        let apparent = date(headers, &header::DATE).map(since).unwrap_or_default().saturating_sub(second);
        let delay = self.answered.duration_since(self.asked).unwrap_or_default();
        let said = || Duration::from_secs(super::age(headers).into()) + delay;
        apparent.max(if headers.contains_key(header::AGE) { said() } else { Duration::ZERO })
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
    let text = lines.next()?.to_str().ok()?;
    let date = httpdate::parse_http_date(text).or_else(|_| httpdate::parse_http_date(&spelled(text))).ok()?;
    lines.next().is_none().then_some(date)
}

/// RFC 9111 §4.2: dates are taken in any case. This is the one in which they are written.
fn spelled(date: &str) -> String {
    let mut before = ' ';
    let spelled = date.chars().map(|letter| {
        let first = !std::mem::replace(&mut before, letter).is_ascii_alphabetic();
        if first { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() }
    });
    spelled.collect::<String>().replace("Gmt", "GMT")
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::{
        super::kit::{at, date as date_at, headers},
        *,
    };
    use proptest::prelude::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lifetime(fields: &[(&'static str, &str)]) -> Option<Duration> {
        let headers = headers(fields);
        let (directives, source) = Directives::for_cache(&headers, &[HeaderName::from_static("cdn-cache-control")]);
        explicit(&directives, source, &headers, at(0))
    }

    /// RFC 9111 §4.2.1, §5.3, RFC 9213 §2.2.
    #[test]
    fn the_strongest_word_on_freshness_counts() {
        let (targeted, both) = (("cdn-cache-control", "max-age=1"), ("cache-control", "max-age=3, s-maxage=2"));
        let (max_age, public) = (("cache-control", "max-age=3"), ("cache-control", "public"));
        let (now, later) = (date_at(-6), date_at(4));
        let (expires, made) = (("expires", later.as_str()), ("date", now.as_str()));
        for (fields, expected) in [
            (&[targeted, both, expires, made][..], Some(1)),
            (&[both, expires, made], Some(2)),
            (&[max_age, expires, made], Some(3)),
            (&[public, expires, made], Some(10)),
            (&[expires], Some(4)),
            (&[public], None),
            (&[("cdn-cache-control", "public"), max_age, expires, made], None),
        ] {
            assert_eq!(lifetime(fields), expected.map(s), "{fields:?}");
        }
    }

    /// RFC 9111 §5.3.
    #[test]
    fn what_is_no_date_has_expired() {
        let (earlier, later) = (date_at(-1), date_at(9));
        for value in ["0", "-1", "", "tomorrow", &earlier] {
            assert_eq!(lifetime(&[("expires", value)]), Some(s(0)), "{value}");
        }
        assert_eq!(lifetime(&[("expires", &later), ("expires", &later)]), Some(s(0)), "two of them");
        // RFC 9110 §5.6.7: all three forms.
        for value in ["Sun, 06 Nov 1994 08:49:47 GMT", "Sunday, 06-Nov-94 08:49:47 GMT", "Sun Nov  6 08:49:47 1994"] {
            assert_eq!(lifetime(&[("expires", value)]), Some(s(10)), "{value}");
        }
    }

    /// RFC 9111 §4.2.
    #[test]
    fn dates_are_taken_in_any_case_but_of_no_other_zone() {
        for value in ["sun, 06 nov 1994 08:49:47 gmt", "SUNDAY, 06-NOV-94 08:49:47 GMT", "sun NOV  6 08:49:47 1994"] {
            assert_eq!(lifetime(&[("expires", value)]), Some(s(10)), "{value}");
        }
        for zone in ["UTC", "EST", "+0000", ""] {
            assert_eq!(lifetime(&[("expires", &format!("Sun, 06 Nov 1994 08:49:47 {zone}"))]), Some(s(0)), "{zone}");
        }
    }

    /// RFC 9111 §4.2.2.
    #[test]
    fn a_heuristic_is_a_part_of_the_time_since_it_was_modified() {
        let of = |modified, part| heuristic(&headers(&[("last-modified", &date_at(modified))]), at(0), part);
        assert_eq!([of(-100, 0.1), of(-100, 0.0), of(1, 0.1)], [Some(s(10)), Some(s(0)), None]);
        assert_eq!(of(-100 * 24 * 3600, 0.1), Some(DAY));
        assert_eq!(heuristic(&HeaderMap::new(), at(0), 0.1), None);
    }

    /// RFC 9111 §4.2.3.
    #[test]
    fn the_age_of_a_response_is_the_greater_of_what_it_says_and_what_its_date_says() {
        let ms = Duration::from_millis;
        let answered = at(0) + ms(700);
        let of = |fields: &[(&'static str, &str)]| {
            Times { asked: answered - ms(200), answered }.initial_age(&headers(fields))
        };
        let (now, past, future) = (date_at(0), date_at(-60), date_at(60));
        for (fields, expected) in [
            (&[][..], 200),
            (&[("date", now.as_str())], 200),
            (&[("date", &past)], 59_700),
            (&[("date", &future)], 200),
            (&[("date", &past), ("age", "5")], 59_700),
            (&[("date", &now), ("age", "5")], 5200),
            (&[("age", "5, 90")], 5200),
            (&[("age", "x")], 200),
            (&[("date", "x")], 200),
        ] {
            assert_eq!(of(fields), ms(expected), "{fields:?}");
        }
    }

    proptest! {
        #[test]
        fn no_age_is_negative_and_none_panics(
            age in "[0-9+-]{0,24}", made in -200_i64..200, asked in -9_i64..9, expires in "[ -~]{0,30}", part in 0.0_f64..1.0,
        ) {
            let head = headers(&[("age", &age), ("date", &date_at(made)), ("expires", &expires), ("last-modified", &expires)]);
            let times = Times { asked: at(asked), answered: at(0) };
            prop_assert!(times.initial_age(&head) + s(1) >= s((-made).max(0).cast_unsigned()));
            let _ = (lifetime(&[("expires", &expires)]), heuristic(&head, at(0), part));
        }
    }
}
