//! Decides whether a stored response may be used without validation (RFC 9111 §4.2, §5.2.1).

use super::{freshness, request::RequestDirectives, storing::AuthSharing};
use crate::{config::http::HttpOptions, http::directives::cache_control::Directives};
use http::HeaderMap;
use std::time::{Duration, UNIX_EPOCH};

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
}

impl StoredFreshness {
    /// Derives the freshness of a head that is [`dated`](super::fields::dated), as every stored head is.
    pub(in crate::http) fn of(headers: &HeaderMap, options: &HttpOptions) -> Self {
        let (directives, source) = Directives::for_cache(headers, &options.targeted_fields);
        Self {
            auth_sharing: AuthSharing::of_directives(&directives),
            never_stale: directives.forbid_stale(),
            immutable: directives.immutable,
            lifetime: freshness::explicit(&directives, source, headers, UNIX_EPOCH),
        }
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

#[cfg(test)]
mod tests {
    use super::{super::kit::headers, *};
    use proptest::prelude::*;

    const ANYTHING: RequestDirectives = RequestDirectives {
        no_cache: false,
        max_age: None,
        min_fresh: Duration::ZERO,
        max_stale: None,
        stale_if_error: Duration::ZERO,
    };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

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
