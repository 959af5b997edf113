//! Whether a stored response answers a request as it is: RFC 9111 §4.2, §5.2.1.

use super::{freshness, request::Demand, storing::Open, validation};
use crate::http::{directives::Directives, rules::Rules};
use http::HeaderMap;
use std::time::{Duration, SystemTime};

/// What is derived once from a stored head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Facts {
    pub(in crate::http) open: Open,
    /// Whether the origin can be asked if it has changed.
    pub(in crate::http) validator: bool,
    /// RFC 9111 §4.2.4: whether it must not be served stale, whoever would accept it.
    never_stale: bool,
    /// RFC 8246: while it is fresh, it does not change.
    immutable: bool,
    /// What it says of its whole lifetime: it may have been stale when it arrived.
    lifetime: Option<Duration>,
}

impl Facts {
    /// `answered` takes the place of a `Date` that is missing.
    pub(in crate::http) fn of(headers: &HeaderMap, answered: SystemTime, rules: &Rules) -> Self {
        let (directives, source) = Directives::for_cache(headers, &rules.targets);
        Self {
            open: Open::said(&directives),
            validator: validation::has_validator(headers),
            never_stale: directives.forbid_stale(),
            immutable: directives.immutable,
            lifetime: freshness::explicit(&directives, source, headers, answered),
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
    let left = fresh_for.checked_sub(here).filter(|left| !left.is_zero());
    // RFC 9111 §5.2.1.4.
    if demand.no_cache {
        return Reuse::TooOld;
    }
    if let Some(left) = left {
        // §5.2.1.1: of no greater age; the reload that RFC 8246 §2 is about asks for none at all, so one that is exactly
        // as old as is accepted is too old. §5.2.1.3: fresh for at least that long.
        let too_old = demand.max_age.is_some_and(|most| age >= most) && !stored.immutable;
        return if too_old || left < demand.min_fresh { Reuse::TooOld } else { Reuse::Fresh };
    }
    let lifetime_over = stored.lifetime.map_or(Duration::ZERO, |lifetime| age.saturating_sub(lifetime));
    let stale_for = here.saturating_sub(fresh_for).max(lifetime_over);
    let accepted = demand.max_stale.is_some_and(|most| stale_for <= most) && !stored.never_stale;
    // §5.2.1.1: max-age refuses staleness too, unless there is a max-stale.
    let refused = demand.max_age.is_some_and(|most| age >= most) && demand.max_stale.is_none();
    if refused || !demand.min_fresh.is_zero() {
        Reuse::TooOld
    } else if accepted && demand.max_age.is_none_or(|most| age < most.saturating_add(stale_for)) {
        Reuse::Stale
    } else {
        Reuse::Expired
    }
}
