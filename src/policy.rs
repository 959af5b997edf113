//! How long entries are used. Pure: the time and random numbers are parameters.

use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    store::entry::{Entry, Kind, Lifetimes, Meta},
};
use std::{num::NonZeroU64, time::Duration};

/// A policy: how long an entry is fresh, and how it may be used afterwards.
///
/// The lifetimes are stored with the entry. Readers use the stored ones, so that all processes agree.
///
/// ```
/// # use stampede_guard::testing::advance;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::{Policy, StampedeGuard};
/// use std::{io, time::Duration};
///
/// const MINUTE: Duration = Duration::from_secs(60);
///
/// let policy = Policy::fresh_for(5 * MINUTE)  // answered from the cache
///     .jitter(0.2)                            // up to a fifth shorter, so that pages do not expire together
///     .early_refresh(1.0)                     // a page that is read constantly is refreshed before its end
///     .stale_while_revalidate(MINUTE)         // then at once as well, while one request refreshes it
///     .stale_if_error(60 * MINUTE)            // then only if the origin fails
///     .soft_timeout(MINUTE / 60)              // or takes longer than a second
///     .keep_for_validation(24 * 60 * MINUTE); // then only to ask the origin whether it has changed
/// let pages = StampedeGuard::in_memory().cache::<String>("page").policy(policy);
/// pages.put("tea", "<h1>Tea</h1>".to_owned()).await?;
///
/// advance(30 * MINUTE).await; // on the paused clock of a test
/// let down = async || Err(io::Error::other("the database is down"));
/// assert_eq!(pages.fetch("tea", down).await?, "<h1>Tea</h1>");
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// Fresh for 10 s, no stale windows except that of an HTTP layer on errors, 10 % jitter, no early refresh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    lifetimes: Lifetimes,
    keep_for_validation: Duration,
    pub(crate) soft_timeout: Option<Duration>,
    absent_for: Option<Duration>,
    /// Whether the window for errors is set.
    pub(crate) has_stale_if_error: bool,
    jitter: f64,
    /// The beta of XFetch (see [`early_refresh`](Self::early_refresh)); 0 turns it off.
    xfetch_beta: f64,
}

impl Policy {
    /// Creates a policy with this freshness lifetime and the default stale windows. A lifetime stated by the fetch takes
    /// precedence: the `Cache-Control` of a response, or [`FetchOutcome::fresh_for`](crate::FetchOutcome::fresh_for).
    /// [`Policy::default`] has 10 s.
    #[must_use]
    pub const fn fresh_for(lifetime: Duration) -> Self {
        let lifetimes = Lifetimes::fresh_for(lifetime);
        Self {
            lifetimes,
            keep_for_validation: Duration::ZERO,
            soft_timeout: None,
            absent_for: None,
            has_stale_if_error: false,
            jitter: 0.1,
            xfetch_beta: 0.0,
        }
    }

    /// Replaces the freshness lifetime.
    pub(crate) fn lifetime(mut self, fresh_for: Duration) -> Self {
        self.lifetimes.fresh_for = fresh_for;
        self
    }

    /// Sets the window after the freshness lifetime in which an entry is still served at once (RFC 5861 §3). Meanwhile
    /// one request in the fleet refreshes it in the background. Default: 0.
    #[must_use]
    pub const fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.lifetimes.stale_while_revalidate = window;
        self
    }

    /// Sets the window after the freshness lifetime in which an entry is served if the next fetch fails (RFC 5861 §4).
    /// It is also served to a request that may not wait longer. Default: 60 s for the responses of an HTTP layer, and 0
    /// for values.
    #[must_use]
    pub const fn stale_if_error(mut self, window: Duration) -> Self {
        (self.lifetimes.stale_if_error, self.has_stale_if_error) = (window, true);
        self
    }

    /// Keeps a value for this long after its freshness lifetime and its stale windows, so that the next fetch can ask the
    /// origin whether it has changed. That fetch gets its [validator](crate::FetchContext::validator) and the
    /// [value](crate::FetchContext::stale). Without a fetch the value is not served any more. It takes memory of the store
    /// meanwhile. Default: 0. For the responses of an HTTP layer there is `HttpOptions::retain_for_revalidation`.
    #[must_use]
    pub const fn keep_for_validation(mut self, span: Duration) -> Self {
        self.keep_for_validation = span;
        self
    }

    /// Sets how long a caller waits for a refresh while a stale value may replace a failed one: see
    /// [`stale_if_error`](Self::stale_if_error), whose window it needs. The caller then gets the stale value, and the fetch
    /// goes on and is stored, within the limit of [`max_detached`](crate::StampedeGuard::max_detached). Without such a value
    /// the caller waits as without this setting. In the window of
    /// [`stale_while_revalidate`](Self::stale_while_revalidate) no caller waits. Default: none.
    ///
    /// A value is served only if the store has confirmed it when the fetch asked for its lease, and if no invalidation was
    /// heard of since. So a caller waits for at least that round trip. A call of
    /// [`fetch_scoped`](crate::CacheEntry::fetch_scoped) has no soft timeout, because its fetch would end with it.
    #[must_use]
    pub const fn soft_timeout(mut self, limit: Duration) -> Self {
        self.soft_timeout = Some(limit);
        self
    }

    /// Sets the freshness lifetime of what is absent: of a value that is `None`, and of a response with status 404 or 410
    /// that states no lifetime. A lifetime stated by the fetch takes precedence. The jitter applies, and the stale windows
    /// follow. Default: that of other values.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use stampede_guard::Policy;
    /// use std::time::Duration;
    ///
    /// let policy = Policy::fresh_for(Duration::from_secs(3600)).absent_for(Duration::from_secs(30));
    /// let users = guard.cache::<Option<String>>("user").policy(policy);
    /// let user = users.entry(42).answer(async |_| Ok::<_, std::io::Error>(None.into())).await?;
    /// assert!(user.is_none() && user.fresh_for() <= Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A value is `None` if its type is an `Option`, or deserializes as one, and a [`Codec`](crate::Codec) encodes it. The
    /// `None` of another [`ValueCodec`](crate::ValueCodec) is a value like others, and so is each one without the
    /// [fingerprint](crate::StampedeGuard::fingerprint) of its type.
    #[must_use]
    pub const fn absent_for(mut self, lifetime: Duration) -> Self {
        self.absent_for = Some(lifetime);
        self
    }

    /// Returns the policy of a result that is absent, or is not.
    pub(crate) fn of_result(self, is_absent: bool) -> Self {
        self.absent_for.filter(|_| is_absent).map_or(self, |lifetime| self.lifetime(lifetime))
    }

    /// Shortens each lifetime by a random part, at most this fraction, so that entries filled together do not expire
    /// together. One that a response states is not shortened. Default: 0.1.
    ///
    /// # Panics
    ///
    /// Panics if `part` is not from 0 to 1.
    #[must_use]
    #[track_caller]
    pub const fn jitter(mut self, part: f64) -> Self {
        assert!(part >= 0.0 && part <= 1.0, "jitter must be from 0 to 1");
        self.jitter = part;
        self
    }

    /// Refreshes an entry in the background before it expires: the likelier, the nearer its end and the costlier its
    /// fetch. This is XFetch (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede Prevention, VLDB
    /// 2015). A key that is read constantly is then never cold. One process refreshes it, because a refresh takes the
    /// lease first. `beta` scales how early: 1 is the paper's optimum, more is earlier. Default: 0, off.
    ///
    /// An entry is not refreshed in the first half of its lifetime. It is never refreshed early if its lifetime is
    /// shorter than ten times `beta` times the cost, because refreshes would then never end.
    ///
    /// # Panics
    ///
    /// Panics if `beta` is negative, infinite or not a number.
    #[must_use]
    #[track_caller]
    pub const fn early_refresh(mut self, beta: f64) -> Self {
        assert!(beta >= 0.0 && beta.is_finite(), "early_refresh must be finite and not negative");
        self.xfetch_beta = beta;
        self
    }

    /// Decides by chance for one request, once, so that a second lookup of the same request decides alike. Takes a
    /// random number only if early refresh is on.
    pub(crate) fn sample_early_refresh(&self, random_unit: impl FnOnce() -> f64) -> Option<EarlyRefresh> {
        NonZeroU64::new(self.xfetch_beta.to_bits()).map(|beta| EarlyRefresh { beta, random_unit: random_unit() })
    }

    /// Returns the lifetimes of an entry that is filled now. A lifetime that a response states is not shortened.
    pub(crate) fn lifetimes(&self, given: Option<Duration>, random_unit: f64) -> Lifetimes {
        let whole = self.lifetimes.fresh_for;
        let jittered = || whole.saturating_sub(whole.mul_f64(self.jitter * random_unit));
        let window = self.lifetimes.stale_while_revalidate.max(self.lifetimes.stale_if_error);
        let retain_for = match self.keep_for_validation {
            Duration::ZERO => Duration::ZERO,
            span => window.saturating_add(span),
        };
        Lifetimes { fresh_for: given.unwrap_or_else(jittered), retain_for, ..self.lifetimes }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::fresh_for(Duration::from_secs(10))
    }
}

/// Multiplies a span, saturating.
fn multiply(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// The random decision of one request whether to refresh an entry early.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EarlyRefresh {
    /// The bits of a number that is not zero, so that an option takes no more memory.
    beta: NonZeroU64,
    random_unit: f64,
}

impl EarlyRefresh {
    /// Reports whether this reader must refresh the entry now.
    pub(crate) fn is_due(self, entry: &Entry, now: Timestamp) -> bool {
        let Meta { cost, lifetimes, .. } = entry.meta();
        let (lifetime, scale) = (lifetimes.fresh_for, multiply(*cost, f64::from_bits(self.beta.get())));
        let Some(left) = lifetime.checked_sub(entry.age(now)) else { return false };
        // The random number is from [0, 1), so the logarithm is finite.
        let gap = || multiply(scale, -(1.0 - self.random_unit).ln());
        left <= lifetime / 2 && scale.saturating_mul(10) <= lifetime && left <= gap()
    }
}

/// The use that an entry's age permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// Stale, but may be served while it is refreshed.
    Revalidate,
    /// Stale: given to the next fetch, for validation or as a substitute if that fails.
    Grace,
    Dead,
}

/// Returns the use that the entry's age permits now.
#[inline]
pub(crate) fn freshness(entry: &Entry, now: Timestamp) -> Freshness {
    let lifetimes = &entry.meta().lifetimes;
    match entry.age(now).checked_sub(lifetimes.fresh_for) {
        None => Freshness::Fresh,
        Some(stale_for) if stale_for < lifetimes.stale_while_revalidate => Freshness::Revalidate,
        Some(stale_for) if stale_for < lifetimes.stale_if_error.max(lifetimes.retain_for) => Freshness::Grace,
        Some(_) => Freshness::Dead,
    }
}

/// Returns the status of an answer from this entry.
pub(crate) fn status_of(entry: &Entry, now: Timestamp) -> CacheStatus {
    if freshness(entry, now) == Freshness::Fresh { CacheStatus::Hit } else { CacheStatus::Stale }
}

/// Reports whether the entry may be served in place of a failed fetch.
pub(crate) fn allows_stale_on_error(entry: &Entry, now: Timestamp) -> bool {
    let lifetimes = &entry.meta().lifetimes;
    entry.age(now) < lifetimes.fresh_for.saturating_add(lifetimes.stale_if_error)
}

/// Returns how long the entry is still fresh or within one of its stale windows.
pub(crate) fn servable_for(entry: &Entry, now: Timestamp) -> Duration {
    let Lifetimes { fresh_for, stale_while_revalidate, stale_if_error, .. } = entry.meta().lifetimes;
    let window = stale_while_revalidate.max(stale_if_error);
    fresh_for.saturating_add(window).saturating_sub(entry.age(now))
}

/// Reports whether the entry is a hit-for-pass or do-not-store marker that is still in force.
#[inline]
pub(crate) fn is_uncacheable_marker(entry: &Entry, now: Timestamp) -> bool {
    entry.meta().kind != Kind::Value && freshness(entry, now) == Freshness::Fresh
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        entry::{Audience, Kind, Meta},
        token::{Inbox, Token},
    };
    use bytes::Bytes;
    use proptest::prelude::*;

    fn entry(policy: &Policy, random_unit: f64) -> Entry {
        entry_at_cost(policy, random_unit, Duration::ZERO)
    }

    fn entry_at_cost(policy: &Policy, random_unit: f64, cost: Duration) -> Entry {
        let id = Token::unique(Inbox::unique());
        let (lifetimes, response_time) = (policy.lifetimes(None, random_unit), Timestamp::from_micros(0));
        let (kind, audience) = (Kind::Value, Audience::Everyone);
        let meta = Meta { kind, id, stamp: 0, response_time, cost, lifetimes, codec: 0, audience };
        Entry::new(meta, Bytes::new())
    }

    #[test]
    fn freshness_passes_through_all_stages_in_order() {
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
    fn lifetime_stated_by_the_fetch_is_not_jittered() {
        let given = Some(Duration::from_secs(60));
        assert_eq!(Policy::default().jitter(1.0).lifetimes(given, 0.9).fresh_for, Duration::from_secs(60));
    }

    /// Measures how early the first of many readers refreshes, over many lives of an entry. XFetch predicts a mean of
    /// `beta * cost * (ln(reads in beta * cost) + 0.577)`.
    #[test]
    fn early_refresh_starts_as_early_as_xfetch_predicts() {
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
                        policy.sample_early_refresh(|| dice.f64()).is_some_and(|early| early.is_due(&entry, now))
                    };
                    let first = (0..60 * reads_per_second).find(due).expect("one reader refreshes");
                    60.0 - read(first).as_secs_f64()
                })
                .collect();
            let mean = gaps.iter().sum::<f64>() / f64::from(lives);
            let expected = beta * ((reads_per_second as f64 * beta).ln() + 0.577);
            assert!((mean / expected - 1.0).abs() < 0.1, "beta {beta}: {mean} s early, expected {expected}");
        }
    }

    #[test]
    fn early_refresh_skips_young_and_costly_entries() {
        let s = Duration::from_secs;
        let due = |cost, age: u64| {
            let policy = Policy::fresh_for(s(10)).jitter(0.0).early_refresh(1.0);
            let now = Timestamp::from_micros(0).after(s(age));
            let (early, entry) = (policy.sample_early_refresh(|| 0.999_999), entry_at_cost(&policy, 0.0, cost));
            early.is_some_and(|early| early.is_due(&entry, now))
        };
        assert!(due(s(1), 9));
        assert!(!due(s(1), 4), "in the first half");
        assert!(!due(s(2), 9), "too costly");
        assert!(!due(s(1), 11), "not fresh any more");
    }

    proptest! {
        #[test]
        fn jitter_only_shortens(ms: u64, part in 0.0_f64..=1.0, random_unit in 0.0_f64..1.0) {
            let lifetime = Duration::from_millis(ms);
            let jittered = Policy::fresh_for(lifetime).jitter(part).lifetimes(None, random_unit).fresh_for;
            prop_assert!(jittered <= lifetime);
            let most = lifetime.mul_f64(part) + Duration::from_millis(1);
            prop_assert!(lifetime - jittered <= most);
        }

        #[test]
        fn entry_is_never_used_beyond_its_retention(
            fresh in 0_u64..1000, revalidate in 0_u64..1000, error in 0_u64..1000, age in 0_u64..4000,
        ) {
            let ms = Duration::from_millis;
            let policy = Policy::fresh_for(ms(fresh)).stale_while_revalidate(ms(revalidate)).stale_if_error(ms(error));
            let entry = entry(&policy, 0.0);
            let now = Timestamp::from_micros(0).after(ms(age));
            let usable = freshness(&entry, now) != Freshness::Dead || allows_stale_on_error(&entry, now);
            prop_assert!(!usable || entry.is_retained(now));
        }

        #[test]
        fn freshness_never_improves_with_age(
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
