//! Freshness lifetime and age of a response (RFC 9111 §4.2).

use crate::http::directives::{Directives, seconds};
use http::{HeaderMap, HeaderName, header};
use std::time::{Duration, SystemTime};

/// The times at which a request was sent and the head of its response arrived.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct Times {
    pub(in crate::http) request_time: SystemTime,
    pub(in crate::http) response_time: SystemTime,
}

impl Times {
    /// Returns the age with which a response arrives (RFC 9111 §4.2.3).
    ///
    /// A `Date` counts in whole if its second had ended when the request was sent: the response existed before.
    /// Otherwise the response was made for this request, at an unknown time of that second, and the age counts from the
    /// end of the second. A response with `max-age=1` would else be stale as soon as it was made.
    ///
    /// The response delay is added to an `Age`, which was set on the way. Without an `Age` the response comes from the
    /// origin itself, and `Date` says when it was made. Adding the delay there would make a response useless if its
    /// computation takes longer than its lifetime.
    pub(in crate::http) fn initial_age(&self, headers: &HeaderMap) -> Duration {
        let second = Duration::from_secs(1);
        let apparent = date(headers, &header::DATE).map_or(Duration::ZERO, |date| {
            let since = self.response_time.duration_since(date).unwrap_or_default();
            let made_before = self.request_time.duration_since(date).is_ok_and(|ago| ago >= second);
            if made_before { since } else { since.saturating_sub(second) }
        });
        let delay = self.response_time.duration_since(self.request_time).unwrap_or_default();
        let stated = || age(headers) + delay;
        apparent.max(if headers.contains_key(header::AGE) { stated() } else { Duration::ZERO })
    }
}

/// Returns the age with which a response arrived (RFC 9111 §5.1): the first of a list, 0 if it is not a
/// number.
pub(in crate::http) fn age(headers: &HeaderMap) -> Duration {
    let first = headers.get(header::AGE).and_then(|ages| ages.as_bytes().split(|byte| *byte == b',').next());
    first.and_then(|age| seconds(age.trim_ascii())).unwrap_or_default()
}

/// Returns the freshness lifetime that the response states: `s-maxage` before `max-age` before `Expires`
/// (RFC 9111 §4.2.1).
pub(super) fn explicit(directives: &Directives, headers: &HeaderMap, response_time: SystemTime) -> Option<Duration> {
    let expires = || {
        let stated = !directives.are_targeted && headers.contains_key(header::EXPIRES);
        // RFC 9111 §5.3: an invalid date, or more than one, is in the past.
        let expires = || date(headers, &header::EXPIRES)?.duration_since(date_value(headers, response_time)).ok();
        stated.then(|| expires().unwrap_or_default())
    };
    directives.s_maxage.or(directives.max_age).or_else(expires)
}

/// Returns the heuristic lifetime: this fraction of the time since `Last-Modified`, at most one day (RFC 9111 §4.2.2).
pub(super) fn heuristic(headers: &HeaderMap, response_time: SystemTime, part: f64) -> Option<Duration> {
    let unchanged = date_value(headers, response_time).duration_since(date(headers, &header::LAST_MODIFIED)?).ok()?;
    Some(unchanged.mul_f64(part).min(DAY))
}

/// Returns the `Date` of a response, or its arrival if it has none (RFC 9110 §6.6.1).
fn date_value(headers: &HeaderMap, response_time: SystemTime) -> SystemTime {
    date(headers, &header::DATE).unwrap_or(response_time)
}

/// Returns the date of a field that contains exactly one date.
pub(super) fn date(headers: &HeaderMap, field: &HeaderName) -> Option<SystemTime> {
    let mut lines = headers.get_all(field).iter();
    // No date has 64 bytes. A longer text is not parsed, because clients send texts of any length.
    let text = lines.next().filter(|text| text.len() < 64)?.to_str().ok()?;
    let date = httpdate::parse_http_date(text).ok().or_else(|| in_another_spelling(text))?;
    lines.next().is_none().then_some(date)
}

/// Parses a date in any case (RFC 9111 §4.2), and with the name of another day of the week, which adds nothing to it.
/// The parser takes both into account.
fn in_another_spelling(date: &str) -> Option<SystemTime> {
    let words = date.split_inclusive(|letter: char| !letter.is_ascii_alphabetic());
    let usual = words.map(|word| word[..1].to_ascii_uppercase() + &word[1..].to_ascii_lowercase());
    let date = usual.collect::<String>().replace("Gmt", "GMT");
    let rest = date.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    DAYS.split(' ').find_map(|day| httpdate::parse_http_date(&format!("{day}{rest}")).ok())
}

const DAYS: &str = "Mon Tue Wed Thu Fri Sat Sun Monday Tuesday Wednesday Thursday Friday Saturday Sunday";
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
        let directives = Directives::for_cache(&headers, &[HeaderName::from_static("cdn-cache-control")]);
        explicit(&directives, &headers, at(0))
    }

    /// RFC 9111 §4.2.1, §5.3, RFC 9213 §2.2.
    #[test]
    fn lifetime_prefers_s_maxage_then_max_age_then_expires() {
        let (targeted, both) = (("cdn-cache-control", "max-age=1"), ("cache-control", "max-age=3, s-maxage=2"));
        let (max_age, public) = (("cache-control", "max-age=3"), ("cache-control", "public"));
        let (now, later) = (date_at(-6), date_at(4));
        let (expires, date_value) = (("expires", later.as_str()), ("date", now.as_str()));
        for (fields, expected) in [
            (&[targeted, both, expires, date_value][..], Some(1)),
            (&[both, expires, date_value], Some(2)),
            (&[max_age, expires, date_value], Some(3)),
            (&[public, expires, date_value], Some(10)),
            (&[expires], Some(4)),
            (&[public], None),
            (&[("cdn-cache-control", "public"), max_age, expires, date_value], None),
        ] {
            assert_eq!(lifetime(fields), expected.map(s), "{fields:?}");
        }
    }

    /// RFC 9111 §5.3.
    #[test]
    fn invalid_expires_is_in_the_past() {
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
    fn dates_ignore_case_and_day_and_require_gmt() {
        // Seen to fail with a parser that takes the case, or the day of the week, into account.
        for value in ["sun, 06 nov 1994 08:49:47 gmt", "SUNDAY, 06-NOV-94 08:49:47 GMT", "sun NOV  6 08:49:47 1994"] {
            assert_eq!(lifetime(&[("expires", value)]), Some(s(10)), "{value}");
        }
        for value in ["Mon, 06 Nov 1994 08:49:47 GMT", "Friday, 06-Nov-94 08:49:47 GMT", "Tue Nov  6 08:49:47 1994"] {
            assert_eq!(lifetime(&[("expires", value)]), Some(s(10)), "{value}");
        }
        for zone in ["UTC", "EST", "+0000", ""] {
            assert_eq!(lifetime(&[("expires", &format!("Sun, 06 Nov 1994 08:49:47 {zone}"))]), Some(s(0)), "{zone}");
        }
    }

    /// RFC 9111 §4.2.2.
    #[test]
    fn heuristic_lifetime_is_a_part_of_time_since_last_modified() {
        let of = |modified, part| heuristic(&headers(&[("last-modified", &date_at(modified))]), at(0), part);
        assert_eq!([of(-100, 0.1), of(-100, 0.0), of(1, 0.1)], [Some(s(10)), Some(s(0)), None]);
        assert_eq!(of(-100 * 24 * 3600, 0.1), Some(DAY));
        assert_eq!(heuristic(&HeaderMap::new(), at(0), 0.1), None);
    }

    /// Seen to fail: a text of 380 kB was searched for its words, which took 140 ms.
    #[test]
    fn long_text_is_no_date() {
        let of = |text: &str| date(&headers(&[("expires", text)]), &header::EXPIRES);
        let weekday = "sunday, 06-nov-94 08:49:47 gmt";
        assert_eq!((of(weekday), of(&format!("{}{weekday}", "x".repeat(64)))), (Some(at(10)), None));
    }

    /// RFC 9111 §4.2.3.
    #[test]
    fn initial_age_is_the_greater_of_age_and_date() {
        let ms = Duration::from_millis;
        let response_time = at(0) + ms(700);
        let of = |fields: &[(&'static str, &str)]| {
            Times { request_time: response_time - ms(200), response_time }.initial_age(&headers(fields))
        };
        let (now, last, past, future) = (date_at(0), date_at(-1), date_at(-60), date_at(60));
        for (fields, expected) in [
            (&[][..], 0),
            (&[("date", now.as_str())], 0),
            (&[("date", &last)], 1700),
            (&[("date", &past)], 60_700),
            (&[("date", &future)], 0),
            (&[("date", &past), ("age", "5")], 60_700),
            (&[("date", &now), ("age", "5")], 5200),
            (&[("age", "5, 90")], 5200),
            (&[("age", "x")], 200),
            (&[("date", "x")], 0),
        ] {
            assert_eq!(of(fields), ms(expected), "{fields:?}");
        }
    }

    /// RFC 9111 §4.2.3, for a response that was made in this second or during its request. The first one would never be
    /// fresh with `max-age=1` if its `Date` counted in whole.
    #[test]
    fn response_made_for_its_request_is_not_a_second_old() {
        let ms = |span| at(0) + Duration::from_millis(span);
        for (request_time, date, response_time, expected) in [
            (950, 0, 1_040, 40),
            (10, 0, 990, 0),
            (0, 0, 0, 0),
            (100, 3, 3_900, 0),
            (100, 0, 3_100, 2_100),
            (1_000, 0, 1_040, 1_040),
            (1_500, 0, 1_600, 1_600),
        ] {
            let times = Times { request_time: ms(request_time), response_time: ms(response_time) };
            let age = times.initial_age(&headers(&[("date", &date_at(date))]));
            assert_eq!(age.as_millis(), expected, "{request_time} {date} {response_time}");
        }
    }

    proptest! {
        #[test]
        fn initial_age_covers_the_date_and_never_panics(
            age in "[0-9+-]{0,24}", date_value in -200_i64..200, request_time in -9_i64..9, expires in "[ -~]{0,30}", part in 0.0_f64..1.0,
        ) {
            let head = headers(&[("age", &age), ("date", &date_at(date_value)), ("expires", &expires), ("last-modified", &expires)]);
            let times = Times { request_time: at(request_time), response_time: at(0) };
            prop_assert!(times.initial_age(&head) + s(1) >= s((-date_value).max(0).cast_unsigned()));
            let _ = (lifetime(&[("expires", &expires)]), heuristic(&head, at(0), part));
        }
    }
}
