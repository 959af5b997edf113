//! For how long what was fetched is used. Pure: the clock and the draw are handed in.

use crate::{
    clock::Timestamp,
    entry::{Entry, Lifetimes, Meta},
};
use std::time::Duration;

/// For how long an entry is fresh, and what may be done with it afterwards.
///
/// The lifetimes travel with the entry: readers go by what held when it was filled, so that all processes agree.
///
/// ```
/// use stampede_guard::{Policy, StampedeGuard};
/// use std::time::Duration;
///
/// let policy = Policy::fresh_for(Duration::from_secs(60))
///     .stale_while_revalidate(Duration::from_secs(30))
///     .stale_if_error(Duration::from_secs(3600));
/// let guard = StampedeGuard::in_memory().policy(policy);
/// ```
///
/// # Defaults
///
/// Fresh for 10 s, no stale windows, 10 % jitter, no early refresh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    lifetimes: Lifetimes,
    jitter: f64,
    /// The beta of XFetch; 0 for off.
    early: f64,
}

impl Policy {
    /// Entries are fresh for this long, unless the fetch says otherwise (a response's own `Cache-Control`,
    /// [`Fetched::fresh_for`](crate::Fetched::fresh_for)). Default: 10 s; at most a century.
    #[must_use]
    pub const fn fresh_for(lifetime: Duration) -> Self {
        let (lifetime, none) = (at_most_a_century(lifetime), Duration::ZERO);
        let lifetimes =
            Lifetimes { fresh_for: lifetime, stale_while_revalidate: none, stale_if_error: none, kept: none };
        Self { lifetimes, jitter: 0.1, early: 0.0 }
    }

    /// For this long after its freshness an entry is still served at once, while one request in the fleet refreshes
    /// it behind (RFC 5861 §3). Default: 0; at most a century.
    #[must_use]
    pub const fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.lifetimes.stale_while_revalidate = at_most_a_century(window);
        self
    }

    /// For this long after its freshness an entry is served if the fetch for a newer one failed (RFC 5861 §4).
    /// Default: 0; at most a century.
    #[must_use]
    pub const fn stale_if_error(mut self, window: Duration) -> Self {
        self.lifetimes.stale_if_error = at_most_a_century(window);
        self
    }

    /// Up to this part of the lifetime is taken off at random, so that entries filled together do not expire
    /// together. From 0 to 1, values outside are clamped. Default: 0.1. A lifetime that the fetch itself gave is
    /// kept to the letter.
    #[must_use]
    pub const fn jitter(mut self, part: f64) -> Self {
        self.jitter = if part > 0.0 { part.min(1.0) } else { 0.0 };
        self
    }

    /// Refreshes an entry behind before it ends, the likelier the nearer its end and the costlier its computation:
    /// XFetch (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede Prevention, VLDB 2015). A key that
    /// is read all the time is then never cold, and one process refreshes it, as it takes the lease first. `beta` scales
    /// how early: 1 is the paper's optimum, more is earlier. Default: 0, off; at most 100.
    ///
    /// Nothing is refreshed in the first half of its lifetime, or if the lifetime is shorter than ten times `beta` times
    /// the cost: refreshing would then never end.
    #[must_use]
    pub const fn early_refresh(mut self, beta: f64) -> Self {
        self.early = if beta > 0.0 { beta.min(100.0) } else { 0.0 };
        self
    }

    /// For one request, which draws once: whoever looks twice must not need luck twice. Draws only if that is on at all.
    pub(crate) fn early(&self, draw: impl FnOnce() -> f64) -> Early {
        let beta = self.early;
        Early { beta, draw: if beta > 0.0 { draw() } else { 0.0 } }
    }

    /// The lifetimes of an entry that is filled now.
    pub(crate) fn lifetimes(&self, given: Option<Duration>, draw: f64) -> Lifetimes {
        let whole = self.lifetimes.fresh_for;
        let jittered = || whole.saturating_sub(whole.mul_f64(self.jitter * draw));
        Lifetimes { fresh_for: given.unwrap_or_else(jittered), ..self.lifetimes }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::fresh_for(Duration::from_secs(10))
    }
}

/// What is longer can be neither multiplied nor given to Redis.
const fn at_most_a_century(span: Duration) -> Duration {
    let century = 100 * 365 * 24 * 3600;
    if span.as_secs() < century { span } else { Duration::from_secs(century) }
}

/// Whether a fresh entry is refreshed already.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Early {
    beta: f64,
    draw: f64,
}

impl Early {
    /// Whether whoever reads the entry now is to refresh it.
    pub(crate) fn is_due(self, entry: &Entry, now: Timestamp) -> bool {
        if self.beta == 0.0 {
            return false;
        }
        let Meta { cost, lifetimes, .. } = entry.meta();
        let (lifetime, scale) = (lifetimes.fresh_for, cost.mul_f64(self.beta));
        let Some(left) = lifetime.checked_sub(entry.age(now)) else { return false };
        // The draw is from [0, 1), so the logarithm is finite.
        let gap = || scale.mul_f64(-(1.0 - self.draw).ln());
        left <= lifetime / 2 && scale.saturating_mul(10) <= lifetime && left <= gap()
    }
}

/// What an entry's age allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// Stale, but may be served while it is refreshed.
    Revalidate,
    /// Stale, and of use only to the fetch for a newer one: to ask whether it has changed, perhaps to stand in.
    Grace,
    Dead,
}

/// What the entry's age allows now.
pub(crate) fn freshness(entry: &Entry, now: Timestamp) -> Freshness {
    let lifetimes = &entry.meta().lifetimes;
    match entry.age(now).checked_sub(lifetimes.fresh_for) {
        None => Freshness::Fresh,
        Some(stale_for) if stale_for < lifetimes.stale_while_revalidate => Freshness::Revalidate,
        Some(stale_for) if stale_for < lifetimes.stale_if_error.max(lifetimes.kept) => Freshness::Grace,
        Some(_) => Freshness::Dead,
    }
}

/// Whether the entry may stand in for a fetch that failed.
pub(crate) fn forgives(entry: &Entry, now: Timestamp) -> bool {
    let lifetimes = &entry.meta().lifetimes;
    entry.age(now) < lifetimes.fresh_for.saturating_add(lifetimes.stale_if_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        entry::{Kind, Meta},
        lease::{Inbox, Token},
    };
    use bytes::Bytes;
    use proptest::prelude::*;

    fn entry(policy: &Policy, draw: f64) -> Entry {
        entry_at_cost(policy, draw, Duration::ZERO)
    }

    fn entry_at_cost(policy: &Policy, draw: f64, cost: Duration) -> Entry {
        let id = Token::unique(Inbox::unique());
        let (lifetimes, answered) = (policy.lifetimes(None, draw), Timestamp::from_micros(0));
        let meta = Meta { kind: Kind::Value, id, answered, cost, lifetimes, codec: 0 };
        Entry::new(meta, Bytes::new())
    }

    #[test]
    fn one_age_after_the_other() {
        let s = Duration::from_secs;
        let policy = Policy::fresh_for(s(10)).stale_while_revalidate(s(5)).stale_if_error(s(20)).jitter(0.0);
        let entry = entry(&policy, 0.5);
        let at = |secs: u64| freshness(&entry, Timestamp::from_micros(0).after(s(secs)));
        use Freshness::{Dead, Fresh, Grace, Revalidate};
        assert_eq!(
            [at(0), at(9), at(10), at(14), at(15), at(29), at(30)],
            [Fresh, Fresh, Revalidate, Revalidate, Grace, Grace, Dead]
        );
    }

    #[test]
    fn what_the_fetch_says_is_not_jittered() {
        let given = Some(Duration::from_secs(60));
        assert_eq!(Policy::default().jitter(1.0).lifetimes(given, 0.9).fresh_for, Duration::from_secs(60));
    }

    /// How early the first of many readers refreshes, over many lives of an entry. The mean of XFetch is
    /// beta * cost * (ln(reads in beta * cost) + 0.577).
    #[test]
    fn early_refreshes_come_as_early_as_xfetch_says() {
        let (second, mut dice) = (Duration::from_secs(1), fastrand::Rng::with_seed(7));
        for beta in [0.5, 1.0, 2.0] {
            let policy = Policy::fresh_for(60 * second).jitter(0.0).early_refresh(beta);
            let entry = entry_at_cost(&policy, 0.0, second);
            let (lives, reads_per_second) = (400, 100);
            let gaps: Vec<f64> = (0..lives)
                .map(|_| {
                    let read = |n: u64| Duration::from_micros(n * 1_000_000 / reads_per_second);
                    let due = |n: &u64| {
                        let now = Timestamp::from_micros(0).after(read(*n));
                        policy.early(|| dice.f64()).is_due(&entry, now)
                    };
                    let first = (0..60 * reads_per_second).find(due).expect("somebody refreshes");
                    60.0 - read(first).as_secs_f64()
                })
                .collect();
            let mean = gaps.iter().sum::<f64>() / f64::from(lives);
            let expected = beta * ((reads_per_second as f64 * beta).ln() + 0.577);
            assert!((mean / expected - 1.0).abs() < 0.1, "beta {beta}: {mean} s early, expected {expected}");
        }
    }

    #[test]
    fn a_computation_that_takes_as_long_as_its_lifetime_is_not_refreshed_early() {
        let s = Duration::from_secs;
        let due = |cost, age: u64| {
            let policy = Policy::fresh_for(s(10)).jitter(0.0).early_refresh(1.0);
            let now = Timestamp::from_micros(0).after(s(age));
            policy.early(|| 0.999_999).is_due(&entry_at_cost(&policy, 0.0, cost), now)
        };
        assert!(due(s(1), 9));
        assert!(!due(s(1), 4), "in the first half");
        assert!(!due(s(2), 9), "too costly");
        assert!(!due(s(1), 11), "not fresh any more");
    }

    proptest! {
        #[test]
        fn jitter_only_shortens(ms in 0_u64..1 << 40, part in -1.0_f64..2.0, draw in 0.0_f64..1.0) {
            let lifetime = Duration::from_millis(ms);
            let jittered = Policy::fresh_for(lifetime).jitter(part).lifetimes(None, draw).fresh_for;
            prop_assert!(jittered <= lifetime);
            let most = lifetime.mul_f64(part.clamp(0.0, 1.0)) + Duration::from_millis(1);
            prop_assert!(lifetime - jittered <= most);
        }

        #[test]
        fn nothing_is_used_beyond_its_retention(
            fresh in 0_u64..1000, revalidate in 0_u64..1000, error in 0_u64..1000, age in 0_u64..4000,
        ) {
            let ms = Duration::from_millis;
            let policy = Policy::fresh_for(ms(fresh)).stale_while_revalidate(ms(revalidate)).stale_if_error(ms(error));
            let entry = entry(&policy, 0.0);
            let now = Timestamp::from_micros(0).after(ms(age));
            let usable = freshness(&entry, now) != Freshness::Dead || forgives(&entry, now);
            prop_assert!(!usable || entry.is_retained(now));
        }

        #[test]
        fn an_entry_only_gets_worse(
            fresh in 0_u64..1000, revalidate in 0_u64..1000, error in 0_u64..1000, a in 0_u64..4000, b in 0_u64..4000,
        ) {
            let ms = Duration::from_millis;
            let policy = Policy::fresh_for(ms(fresh)).stale_while_revalidate(ms(revalidate)).stale_if_error(ms(error));
            let entry = entry(&policy, 0.3);
            let at = |age: u64| freshness(&entry, Timestamp::from_micros(0).after(ms(age))) as u8;
            prop_assert!(at(a.min(b)) <= at(a.max(b)));
        }
    }
}
