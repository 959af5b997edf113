//! Pauses before a request is repeated. Pure: random numbers from `[0, 1)` are parameters.

use std::time::Duration;

/// Returns the pause after this number of polls. A process that will be notified polls seldom, in case the wake-up is
/// lost. A process that will not be notified polls often at first.
pub(crate) fn poll(polls: u32, registered: bool, random: f64) -> Duration {
    let max = if registered { LOST_WAKE_UP } else { FASTEST.mul_f64(GROWTH.powi(polls.min(16) as i32)).min(SLOWEST) };
    max.mul_f64(0.5 + 0.5 * random)
}

/// Returns the pause after a lease has expired: the more processes wait for it, the wider they spread.
pub(crate) fn after_expiry(waiting: usize, random: f64) -> Duration {
    let spread = Duration::from_millis(1 + waiting as u64 / 4).min(Duration::from_millis(250));
    Duration::from_millis(1) + spread.mul_f64(random)
}

/// Returns the wait timeout with 20 % jitter, so that waiters that began together do not give up together. Saturates.
pub(crate) fn budget(wait: Duration, random: f64) -> Duration {
    let jittered = wait.as_secs_f64() * (0.8 + 0.4 * random);
    Duration::try_from_secs_f64(jittered).unwrap_or(Duration::MAX)
}

/// Pause of a process that will be notified: the cost of a lost wake-up. Longer than most fetches, which are then not
/// polled for.
const LOST_WAKE_UP: Duration = Duration::from_secs(1);
const FASTEST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn polls_are_bounded(polls: u32, registered: bool, random in 0.0_f64..1.0) {
            let wait = poll(polls, registered, random);
            prop_assert!(wait >= FASTEST / 2 && wait <= LOST_WAKE_UP);
            let is_in_range = if registered { wait >= LOST_WAKE_UP / 2 } else { wait <= SLOWEST };
            prop_assert!(is_in_range);
        }

        #[test]
        fn spreads_are_bounded(waiting: usize, random in 0.0_f64..1.0) {
            prop_assert!(after_expiry(waiting, random) <= Duration::from_millis(251));
        }

        #[test]
        fn budget_of_any_wait_timeout_does_not_panic(wait: u64, draw in 0.0_f64..1.0) {
            let budget = budget(Duration::from_secs(wait), draw);
            prop_assert!(budget >= Duration::from_secs(wait / 2));
        }
    }

    #[test]
    fn unregistered_waiter_polls_soon_and_then_less_often() {
        let waits: Vec<_> = (0..8).map(|n| poll(n, false, 0.999).as_millis()).collect();
        assert!(waits[0] <= 50 && waits.is_sorted() && waits[7] >= 490, "{waits:?}");
    }
}
