//! What a failed fetch means for the other callers of its key: a table.

use std::time::Duration;

/// What a failure says about the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// The origin fails, whatever the request.
    Origin,
    /// Perhaps the request itself is the reason, and another request would succeed.
    Inconclusive,
    /// A client error: perhaps the request itself is the reason.
    ClientError,
    /// The origin works. The error is its answer, which no stale entry replaces.
    Answer,
}

/// What a front end knows of the circumstances of a failed fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Circumstances {
    /// The stored entry that the fetch was to replace, if it is a good one.
    pub(crate) seen: Option<Seen>,
    /// Whether the request demands a new response although the stored one may be fresh.
    pub(crate) is_reload: bool,
    /// The maximum time for which a failure blocks callers that get no stored response.
    pub(crate) max_block: Duration,
}

/// A stored entry that a fetch was to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_fresh: bool,
    /// Whether it was fresh a moment ago.
    pub(crate) was_fresh: bool,
    /// For how long other callers may get it in place of a failure.
    pub(crate) servable_for: Duration,
}

/// The effect of a failed fetch on other callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether a waiter leads again. Otherwise all waiters get the failure.
    pub(crate) repeat: bool,
    /// For how long the failure marker blocks other callers, at most. `None`: no marker. Zero: the marker only counts.
    pub(crate) block: Option<Duration>,
}

/// Returns the effect of a failure after this number of failures in a row.
///
/// A failure that may be due to its request lets one more request try, if it is the first in a row, if the stored entry
/// was fresh a moment ago, or if it is a client error and the entry can be served. Otherwise clients that provoke
/// failures would take the entry from all clients each time when it expires.
pub(crate) fn effect(cause: FailureCause, circumstances: Circumstances, earlier_failures: u32) -> Effect {
    let Circumstances { seen, is_reload, max_block } = circumstances;
    let servable_for = seen.map_or(Duration::ZERO, |seen| seen.servable_for);
    let (is_first, is_servable) = (earlier_failures == 0, !servable_for.is_zero());
    let may_repeat = match cause {
        FailureCause::Origin => false,
        FailureCause::Answer => return Effect { repeat: false, block: None },
        FailureCause::Inconclusive => is_first,
        FailureCause::ClientError => is_first || is_servable,
    };
    let was_fresh = cause != FailureCause::Origin && seen.is_some_and(|seen| seen.was_fresh);
    let repeat = may_repeat || was_fresh;
    let block = match seen {
        Some(Seen { is_fresh: true, .. }) if is_reload => None, // other requests are hits
        _ if repeat => Some(Duration::ZERO),
        Some(_) if is_servable => Some(servable_for.max(max_block)), // other requests get the stored entry
        Some(_) if is_first => Some(Duration::ZERO),
        None if is_first && is_reload => Some(Duration::ZERO),
        _ => Some(max_block),
    };
    Effect { repeat, block }
}

#[cfg(test)]
mod tests {
    use super::{FailureCause::*, *};

    const MAX: Duration = Duration::from_millis(100);
    const MINUTE: Duration = Duration::from_secs(60);
    const NOTHING: Option<Seen> = None;
    const EXPIRED: Option<Seen> = Some(Seen { is_fresh: false, was_fresh: false, servable_for: Duration::ZERO });
    const STALE: Option<Seen> = Some(Seen { is_fresh: false, was_fresh: false, servable_for: MINUTE });
    const LATELY: Option<Seen> = Some(Seen { is_fresh: false, was_fresh: true, servable_for: Duration::ZERO });
    const FRESH: Option<Seen> = Some(Seen { is_fresh: true, was_fresh: true, servable_for: MINUTE });
    const COUNTS: Option<Duration> = Some(Duration::ZERO);

    /// Cause, stored entry, whether the request is a reload, earlier failures; whether a waiter leads again, block. Seen
    /// to fail without the arm of client errors, without that of an expired entry, and with reloads that repeat.
    #[test]
    fn effect_of_a_failure_follows_the_table() {
        for (cause, seen, is_reload, earlier_failures, repeat, block) in [
            (Origin, NOTHING, false, 0, false, Some(MAX)),
            (Origin, NOTHING, false, 3, false, Some(MAX)),
            (Origin, NOTHING, true, 0, false, COUNTS),
            (Origin, NOTHING, true, 1, false, Some(MAX)),
            (Origin, EXPIRED, false, 0, false, COUNTS),
            (Origin, EXPIRED, false, 1, false, Some(MAX)),
            (Origin, STALE, false, 0, false, Some(MINUTE)),
            (Origin, STALE, true, 2, false, Some(MINUTE)),
            (Origin, LATELY, false, 0, false, COUNTS),
            (Origin, LATELY, false, 1, false, Some(MAX)),
            (Origin, FRESH, true, 1, false, None),
            (Origin, FRESH, false, 1, false, Some(MINUTE)),
            (Inconclusive, NOTHING, false, 0, true, COUNTS),
            (Inconclusive, NOTHING, false, 1, false, Some(MAX)),
            (Inconclusive, STALE, false, 1, false, Some(MINUTE)),
            (Inconclusive, LATELY, false, 1, true, COUNTS),
            (Inconclusive, FRESH, true, 1, true, None),
            (ClientError, NOTHING, false, 0, true, COUNTS),
            (ClientError, NOTHING, false, 1, false, Some(MAX)),
            (ClientError, EXPIRED, false, 1, false, Some(MAX)),
            (ClientError, STALE, false, 1, true, COUNTS),
            (ClientError, FRESH, true, 1, true, None),
            (Answer, NOTHING, false, 0, false, None),
            (Answer, STALE, true, 2, false, None),
        ] {
            let circumstances = Circumstances { seen, is_reload, max_block: MAX };
            let expected = Effect { repeat, block };
            assert_eq!(
                effect(cause, circumstances, earlier_failures),
                expected,
                "{cause:?} {circumstances:?} {earlier_failures}"
            );
        }
    }
}
