//! Freshness lifetime and age of a response, and whether a stored one may be used without validation (RFC 9111 §4.2,
//! §5.2.1).

use super::request::{AuthSharing, RequestDirectives};
use crate::{
    config::http::HttpOptions,
    http::directives::{Directives, Source, seconds},
};
use http::{HeaderMap, HeaderName, header};
use std::time::{Duration, SystemTime};

/// The freshness that a head states, derived once when the response is stored. Readers use it, so that processes with
/// different settings agree, and a hit parses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct StoredFreshness {
    pub(in crate::http) auth_sharing: AuthSharing,
    /// It must not be served stale, even to a client that accepts it (RFC 9111 §4.2.4).
    pub(in crate::http) never_stale: bool,
    /// It does not change while it is fresh (RFC 8246).
    pub(in crate::http) immutable: bool,
    /// Its freshness lifetime as stated by the origin. It may have been stale on arrival.
    pub(in crate::http) lifetime: Option<Duration>,
    /// The origin says that it is for everybody, whatever the fields of a request.
    pub(in crate::http) for_everyone: bool,
    /// Each request validates it for itself: `no-cache` (RFC 9111 §5.2.2.4) or a lifetime of zero, without `public`.
    pub(in crate::http) always_validated: bool,
}

impl StoredFreshness {
    /// Creates the freshness of a response with these directives and this [explicit] lifetime.
    pub(super) fn new(
        directives: &Directives,
        source: Source,
        lifetime: Option<Duration>,
        options: &HttpOptions,
    ) -> Self {
        let auth_sharing = AuthSharing::of_directives(directives);
        let is_stated = lifetime.is_some() && (source == Source::Targeted || options.explicit_is_shared);
        let is_zero = directives.no_cache || lifetime.is_some_and(|lifetime| lifetime.is_zero());
        Self {
            auth_sharing,
            for_everyone: auth_sharing == AuthSharing::Public || is_stated,
            always_validated: is_zero && !directives.public,
            never_stale: directives.forbid_stale(),
            immutable: directives.immutable,
            lifetime,
        }
    }

    /// Derives the freshness of a head that is [`dated`](super::fields::dated), as every stored head is.
    #[cfg(any(test, feature = "_fuzz"))]
    pub(in crate::http) fn of(headers: &HeaderMap, options: &HttpOptions) -> Self {
        let (directives, source) = Directives::for_cache(headers, &options.targeted_fields);
        let lifetime = explicit(&directives, source, headers, std::time::UNIX_EPOCH);
        Self::new(&directives, source, lifetime, options)
    }
}

/// The age of a stored response now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Ages {
    /// Current age, including the age at arrival (RFC 9111 §4.2.3).
    pub(in crate::http) age: Duration,
    /// Time since it arrived.
    pub(in crate::http) resident_time: Duration,
    /// Freshness lifetime, counted from its arrival.
    pub(in crate::http) fresh_for: Duration,
}

/// The freshness of a stored response, as one request sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum FreshnessCheck {
    /// Fresh enough: served without validation.
    Fresh,
    /// Stale, but served: the client accepts this staleness (RFC 9111 §5.2.1.2).
    Stale,
    /// Stale. Its stale windows decide whether it is served while it is refreshed, or if the refresh fails.
    Expired,
    /// The client demands validation, whatever the freshness. Stale windows do not apply.
    TooOld,
}

/// Compares the age of a stored response with its lifetime and with the demands of a request.
pub(in crate::http) fn check_freshness(
    stored: &StoredFreshness,
    directives: &RequestDirectives,
    ages: Ages,
) -> FreshnessCheck {
    let Ages { age, resident_time, fresh_for } = ages;
    let directives = directives.for_age(resident_time);
    // RFC 9111 §5.2.1.1 permits an age equal to max-age. It is validated here, which is what a client with max-age=0
    // wants.
    let too_old = directives.max_age.is_some_and(|most| age >= most);
    match fresh_for.checked_sub(resident_time).filter(|remaining| !remaining.is_zero()) {
        // §5.2.1.4: not without validation.
        _ if directives.no_cache => FreshnessCheck::TooOld,
        // §5.2.1.3: it must stay fresh for at least this long.
        Some(left) if left < directives.min_fresh => FreshnessCheck::TooOld,
        // RFC 8246 §2: a reload (max-age=0) does not validate an immutable response that is fresh.
        Some(_) if too_old && !stored.immutable => FreshnessCheck::TooOld,
        Some(_) => FreshnessCheck::Fresh,
        // §5.2.1.1: max-age without max-stale accepts nothing stale, and neither does min-fresh.
        None if too_old || !directives.min_fresh.is_zero() => FreshnessCheck::TooOld,
        None => {
            let before = stored.lifetime.map_or(Duration::ZERO, |lifetime| age.saturating_sub(lifetime));
            let stale_for = resident_time.saturating_sub(fresh_for).max(before);
            match directives.max_stale {
                Some(most) if stale_for <= most && !stored.never_stale => FreshnessCheck::Stale,
                None if directives.max_age.is_some() => FreshnessCheck::TooOld,
                _ => FreshnessCheck::Expired,
            }
        }
    }
}

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
pub(super) fn explicit(
    directives: &Directives,
    source: Source,
    headers: &HeaderMap,
    response_time: SystemTime,
) -> Option<Duration> {
    let expires = || {
        let stated = source != Source::Targeted && headers.contains_key(header::EXPIRES);
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
    let text = lines.next()?.to_str().ok()?;
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
    use crate::config::http::HttpOptions;
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

    const ANYTHING: RequestDirectives = RequestDirectives {
        no_cache: false,
        max_age: None,
        min_fresh: Duration::ZERO,
        max_stale: None,
        stale_if_error: Duration::ZERO,
        honoured: true,
    };

    /// Evaluates a response that arrived with age 0 and is fresh for ten seconds.
    fn after(seconds: u64, control: &str, directives: RequestDirectives) -> FreshnessCheck {
        let freshness = StoredFreshness::of(&headers(&[("cache-control", control)]), &HttpOptions::default());
        check_freshness(&freshness, &directives, Ages { age: s(seconds), resident_time: s(seconds), fresh_for: s(10) })
    }

    /// RFC 9111 §4.2.
    #[test]
    fn a_response_is_fresh_while_its_lifetime_exceeds_its_age() {
        let of = |seconds| after(seconds, "max-age=10", ANYTHING);
        assert_eq!(
            [of(0), of(9), of(10), of(99)],
            [FreshnessCheck::Fresh, FreshnessCheck::Fresh, FreshnessCheck::Expired, FreshnessCheck::Expired]
        );
    }

    /// RFC 9111 §5.2.1.1.
    #[test]
    fn request_max_age_rejects_older_and_stale_responses() {
        let of = |seconds, most| after(seconds, "max-age=10", RequestDirectives { max_age: Some(s(most)), ..ANYTHING });
        assert_eq!(
            [of(4, 5), of(5, 5), of(0, 0)],
            [FreshnessCheck::Fresh, FreshnessCheck::TooOld, FreshnessCheck::TooOld]
        );
        assert_eq!(of(11, 99), FreshnessCheck::TooOld);
        let stale = RequestDirectives { max_age: Some(s(99)), max_stale: Some(s(5)), ..ANYTHING };
        assert_eq!(after(11, "max-age=10", stale), FreshnessCheck::Stale);
        let older = RequestDirectives { max_age: Some(s(9)), max_stale: Some(Duration::MAX), ..ANYTHING };
        assert_eq!(after(11, "max-age=10", older), FreshnessCheck::TooOld);
    }

    /// RFC 9111 §5.2.1.2, §4.2.4.
    #[test]
    fn max_stale_accepts_stale_responses_unless_forbidden() {
        let of =
            |seconds, control, most| after(seconds, control, RequestDirectives { max_stale: Some(most), ..ANYTHING });
        assert_eq!(
            [of(15, "max-age=10", s(5)), of(16, "max-age=10", s(5))],
            [FreshnessCheck::Stale, FreshnessCheck::Expired]
        );
        assert_eq!(of(9999, "max-age=10", Duration::MAX), FreshnessCheck::Stale);
        assert_eq!(of(9, "max-age=10", s(5)), FreshnessCheck::Fresh);
        for control in ["must-revalidate", "proxy-revalidate", "s-maxage=10", "no-cache"] {
            assert_eq!(of(11, control, Duration::MAX), FreshnessCheck::Expired, "{control}");
        }
        let pragma = StoredFreshness::of(&headers(&[("pragma", "no-cache")]), &HttpOptions::default());
        assert!(pragma.never_stale);
    }

    #[test]
    fn max_stale_counts_staleness_before_arrival() {
        let accepts = |most| RequestDirectives { max_stale: Some(s(most)), ..ANYTHING };
        let freshness = StoredFreshness::of(&headers(&[("cache-control", "max-age=10")]), &HttpOptions::default());
        let ages = Ages { age: s(25), resident_time: s(5), fresh_for: s(0) };
        assert_eq!(check_freshness(&freshness, &accepts(14), ages), FreshnessCheck::Expired);
        assert_eq!(check_freshness(&freshness, &accepts(15), ages), FreshnessCheck::Stale);
    }

    /// RFC 9111 §5.2.1.3.
    #[test]
    fn min_fresh_rejects_responses_that_expire_earlier() {
        let of = |seconds| after(seconds, "max-age=10", RequestDirectives { min_fresh: s(3), ..ANYTHING });
        assert_eq!([of(7), of(8), of(11)], [FreshnessCheck::Fresh, FreshnessCheck::TooOld, FreshnessCheck::TooOld]);
    }

    /// RFC 9111 §5.2.1.4.
    #[test]
    fn request_no_cache_always_validates() {
        let directives = RequestDirectives { no_cache: true, max_stale: Some(Duration::MAX), ..ANYTHING };
        for (seconds, control) in [(0, "max-age=10"), (11, "max-age=10"), (0, "immutable")] {
            assert_eq!(after(seconds, control, directives), FreshnessCheck::TooOld, "{control}");
        }
    }

    /// RFC 8246 §2.
    #[test]
    fn reload_does_not_validate_a_fresh_immutable_response() {
        let reload = RequestDirectives { max_age: Some(s(0)), ..ANYTHING };
        assert_eq!(after(9, "max-age=10, immutable", reload), FreshnessCheck::Fresh);
        assert_eq!(after(10, "max-age=10, immutable", reload), FreshnessCheck::TooOld);
    }

    #[test]
    fn stored_freshness_comes_from_the_deciding_field() {
        let head = headers(&[("cache-control", "max-age=1, must-revalidate"), ("cdn-cache-control", "public")]);
        let freshness = StoredFreshness::of(&head, &HttpOptions::default());
        assert_eq!((freshness.auth_sharing, freshness.never_stale), (AuthSharing::Public, false));
        let freshness = StoredFreshness::of(&head, &HttpOptions::default().targeted_fields([]));
        assert_eq!((freshness.auth_sharing, freshness.never_stale), (AuthSharing::Authorization, true));
    }

    proptest! {
        #[test]
        fn freshness_never_improves_with_age_or_directives(
            age in 0_u64..40, more in 0_u64..40, most in proptest::option::of(0_u64..40), min_fresh in 0_u64..10,
            no_cache: bool, control in "(max-age=10|s-maxage=10|immutable|must-revalidate)",
        ) {
            let directives = RequestDirectives { no_cache, max_age: most.map(s), min_fresh: s(min_fresh), max_stale: None, ..ANYTHING };
            let is_fresh = |age, directives| after(age, &control, directives) == FreshnessCheck::Fresh;
            prop_assert!(!is_fresh(age + more, directives) || is_fresh(age, directives));
            prop_assert!(!is_fresh(age, directives) || is_fresh(age, ANYTHING));
            prop_assert!(after(age, &control, directives) != FreshnessCheck::Stale);
        }
    }
}
