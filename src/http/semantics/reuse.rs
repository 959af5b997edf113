//! Whether a stored response answers a request as it is: RFC 9111 §4.2, §5.2.1.

use super::{freshness, request::Demand, storing::Open};
use crate::http::{directives::Directives, rules::Rules};
use http::HeaderMap;
use std::time::{Duration, UNIX_EPOCH};

/// What is derived once from a stored head, by whoever stores it: readers go by that, so that processes with different
/// rules agree, and nothing is parsed for a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Facts {
    pub(in crate::http) open: Open,
    /// RFC 9111 §4.2.4: whether it must not be served stale, whoever would accept it.
    pub(in crate::http) never_stale: bool,
    /// RFC 8246: while it is fresh, it does not change.
    pub(in crate::http) immutable: bool,
    /// What it says of its whole lifetime: it may have been stale when it arrived.
    pub(in crate::http) lifetime: Option<Duration>,
}

impl Facts {
    /// The head is [`dated`](super::fields::dated), as all are that are stored.
    pub(in crate::http) fn of(headers: &HeaderMap, rules: &Rules) -> Self {
        let (directives, source) = Directives::for_cache(headers, &rules.targets);
        Self {
            open: Open::said(&directives),
            never_stale: directives.forbid_stale(),
            immutable: directives.immutable,
            lifetime: freshness::explicit(&directives, source, headers, UNIX_EPOCH),
        }
    }
}

/// How old a stored response is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Ages {
    /// RFC 9111 §4.2.3: with the age that it arrived with.
    pub(in crate::http) age: Duration,
    /// Since it arrived.
    pub(in crate::http) here: Duration,
    /// For how long after its arrival it is fresh.
    pub(in crate::http) fresh_for: Duration,
}

/// What a stored response is to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Reuse {
    /// Fresh enough: served as it is.
    Fresh,
    /// Not fresh, and served as it is: the client has said that it accepts this (RFC 9111 §5.2.1.2).
    Stale,
    /// Not fresh. Whether it is served while it is refreshed, or when that fails, is for its stale windows to say.
    Expired,
    /// Whatever its freshness, this client wants it validated, and no stale window stands against that.
    TooOld,
}

pub(in crate::http) fn reuse(stored: &Facts, demand: &Demand, ages: Ages) -> Reuse {
    let Ages { age, here, fresh_for } = ages;
    // RFC 9111 §5.2.1.1: of no greater age. One that is just as old as is accepted is validated, since that is what
    // those who send a 0 want.
    let too_old = demand.max_age.is_some_and(|most| age >= most);
    match fresh_for.checked_sub(here).filter(|left| !left.is_zero()) {
        // §5.2.1.4.
        _ if demand.no_cache => Reuse::TooOld,
        // §5.2.1.3: fresh for at least that long.
        Some(left) if left < demand.min_fresh => Reuse::TooOld,
        // RFC 8246 §2: a reload, which asks for no age at all, is no sign that it has changed.
        Some(_) if too_old && !stored.immutable => Reuse::TooOld,
        Some(_) => Reuse::Fresh,
        // §5.2.1.1: who says max-age and no max-stale wants nothing stale, and nor does who says min-fresh.
        None if too_old || !demand.min_fresh.is_zero() => Reuse::TooOld,
        None => {
            let before = stored.lifetime.map_or(Duration::ZERO, |lifetime| age.saturating_sub(lifetime));
            let stale_for = here.saturating_sub(fresh_for).max(before);
            match demand.max_stale {
                Some(most) if stale_for <= most && !stored.never_stale => Reuse::Stale,
                None if demand.max_age.is_some() => Reuse::TooOld,
                _ => Reuse::Expired,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::kit::headers, *};
    use proptest::prelude::*;

    const ANYTHING: Demand = Demand {
        no_cache: false,
        max_age: None,
        min_fresh: Duration::ZERO,
        max_stale: None,
        stale_if_error: Duration::ZERO,
    };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Of a response that arrived new and is fresh for ten seconds.
    fn after(seconds: u64, control: &str, demand: Demand) -> Reuse {
        let facts = Facts::of(&headers(&[("cache-control", control)]), &Rules::default());
        reuse(&facts, &demand, Ages { age: s(seconds), here: s(seconds), fresh_for: s(10) })
    }

    /// RFC 9111 §4.2.
    #[test]
    fn a_response_is_fresh_while_its_lifetime_exceeds_its_age() {
        let of = |seconds| after(seconds, "max-age=10", ANYTHING);
        assert_eq!([of(0), of(9), of(10), of(99)], [Reuse::Fresh, Reuse::Fresh, Reuse::Expired, Reuse::Expired]);
    }

    /// RFC 9111 §5.2.1.1.
    #[test]
    fn a_max_age_refuses_what_is_older_and_all_that_is_stale() {
        let of = |seconds, most| after(seconds, "max-age=10", Demand { max_age: Some(s(most)), ..ANYTHING });
        assert_eq!([of(4, 5), of(5, 5), of(0, 0)], [Reuse::Fresh, Reuse::TooOld, Reuse::TooOld]);
        assert_eq!(of(11, 99), Reuse::TooOld);
        let stale = Demand { max_age: Some(s(99)), max_stale: Some(s(5)), ..ANYTHING };
        assert_eq!(after(11, "max-age=10", stale), Reuse::Stale);
        let older = Demand { max_age: Some(s(9)), max_stale: Some(Duration::MAX), ..ANYTHING };
        assert_eq!(after(11, "max-age=10", older), Reuse::TooOld);
    }

    /// RFC 9111 §5.2.1.2, §4.2.4.
    #[test]
    fn a_max_stale_accepts_what_nothing_forbids() {
        let of = |seconds, control, most| after(seconds, control, Demand { max_stale: Some(most), ..ANYTHING });
        assert_eq!([of(15, "max-age=10", s(5)), of(16, "max-age=10", s(5))], [Reuse::Stale, Reuse::Expired]);
        assert_eq!(of(9999, "max-age=10", Duration::MAX), Reuse::Stale);
        assert_eq!(of(9, "max-age=10", s(5)), Reuse::Fresh);
        for control in ["must-revalidate", "proxy-revalidate", "s-maxage=10", "no-cache"] {
            assert_eq!(of(11, control, Duration::MAX), Reuse::Expired, "{control}");
        }
        let pragma = Facts::of(&headers(&[("pragma", "no-cache")]), &Rules::default());
        assert!(pragma.never_stale);
    }

    #[test]
    fn what_arrived_stale_is_as_stale_as_it_says() {
        let accepts = |most| Demand { max_stale: Some(s(most)), ..ANYTHING };
        let facts = Facts::of(&headers(&[("cache-control", "max-age=10")]), &Rules::default());
        let ages = Ages { age: s(25), here: s(5), fresh_for: s(0) };
        assert_eq!(reuse(&facts, &accepts(14), ages), Reuse::Expired);
        assert_eq!(reuse(&facts, &accepts(15), ages), Reuse::Stale);
    }

    /// RFC 9111 §5.2.1.3.
    #[test]
    fn a_min_fresh_refuses_what_is_stale_before() {
        let of = |seconds| after(seconds, "max-age=10", Demand { min_fresh: s(3), ..ANYTHING });
        assert_eq!([of(7), of(8), of(11)], [Reuse::Fresh, Reuse::TooOld, Reuse::TooOld]);
    }

    /// RFC 9111 §5.2.1.4.
    #[test]
    fn a_no_cache_is_answered_by_nothing_that_is_not_validated() {
        let demand = Demand { no_cache: true, max_stale: Some(Duration::MAX), ..ANYTHING };
        for (seconds, control) in [(0, "max-age=10"), (11, "max-age=10"), (0, "immutable")] {
            assert_eq!(after(seconds, control, demand), Reuse::TooOld, "{control}");
        }
    }

    /// RFC 8246 §2.
    #[test]
    fn a_reload_does_not_validate_what_is_immutable_while_it_is_fresh() {
        let reload = Demand { max_age: Some(s(0)), ..ANYTHING };
        assert_eq!(after(9, "max-age=10, immutable", reload), Reuse::Fresh);
        assert_eq!(after(10, "max-age=10, immutable", reload), Reuse::TooOld);
    }

    #[test]
    fn facts_are_those_of_the_fields_that_decide() {
        let head = headers(&[("cache-control", "max-age=1, must-revalidate"), ("cdn-cache-control", "public")]);
        let facts = Facts::of(&head, &Rules::default());
        assert_eq!((facts.open, facts.never_stale), (Open::Public, false));
        let facts = Facts::of(&head, &Rules::default().targets([]));
        assert_eq!((facts.open, facts.never_stale), (Open::Authorization, true));
    }

    proptest! {
        #[test]
        fn time_and_demands_only_make_it_worse(
            age in 0_u64..40, more in 0_u64..40, most in proptest::option::of(0_u64..40), min_fresh in 0_u64..10,
            no_cache: bool, control in "(max-age=10|s-maxage=10|immutable|must-revalidate)",
        ) {
            let demand = Demand { no_cache, max_age: most.map(s), min_fresh: s(min_fresh), max_stale: None, ..ANYTHING };
            let is_fresh = |age, demand| after(age, &control, demand) == Reuse::Fresh;
            prop_assert!(!is_fresh(age + more, demand) || is_fresh(age, demand));
            prop_assert!(!is_fresh(age, demand) || is_fresh(age, ANYTHING));
            prop_assert!(after(age, &control, demand) != Reuse::Stale);
        }
    }
}
