//! Pauses before a request is repeated. Pure: random numbers from `[0, 1)` are parameters.

use std::time::Duration;

/// Returns the pause after this number of polls: short at first, then longer.
pub(crate) fn poll(polls: u32, random: f64) -> Duration {
    let max = FASTEST.mul_f64(GROWTH.powi(polls.min(16) as i32)).min(SLOWEST);
    max.mul_f64(0.5 + 0.5 * random)
}

/// Returns the pause after a lease has expired: the more processes wait for it, the wider they spread.
pub(crate) fn after_expiry(waiting: usize, random: f64) -> Duration {
    let spread = Duration::from_millis(1 + waiting as u64 / 4).min(Duration::from_millis(250));
    Duration::from_millis(1) + spread.mul_f64(random)
}

/// Returns the pause from the begin of the failed attempt with this number to the next one. It doubles from 100 ms to 5 s.
#[cfg(feature = "redis")]
pub(crate) fn reconnect(attempts: u32, random: f64) -> Duration {
    let max = Duration::from_millis(50).saturating_mul(1 << attempts.min(7)).min(Duration::from_secs(5));
    max.mul_f64(0.8 + 0.2 * random)
}

const FASTEST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn polls_are_bounded(polls: u32, random in 0.0_f64..1.0) {
            let wait = poll(polls, random);
            prop_assert!(wait >= FASTEST / 2 && wait <= SLOWEST);
        }

        #[test]
        fn spreads_are_bounded(waiting: usize, random in 0.0_f64..1.0) {
            prop_assert!(after_expiry(waiting, random) <= Duration::from_millis(251));
        }
    }

    #[test]
    fn polls_come_soon_and_then_less_often() {
        let waits: Vec<_> = (0..8).map(|n| poll(n, 0.999).as_millis()).collect();
        assert!(waits[0] <= 50 && waits.is_sorted() && waits[7] >= 490, "{waits:?}");
    }
}
