//! How long to wait before asking again. Pure: draws from `[0, 1)` are handed in.

use std::time::Duration;

/// Before the `asked`-th repetition of the question. A process that will be woken asks seldom, in case the wake-up is
/// lost; one that will not, asks often at first.
pub(crate) fn poll(asked: u32, registered: bool, draw: f64) -> Duration {
    let most = if registered { IN_CASE } else { FASTEST.mul_f64(GROWTH.powi(asked.min(16) as i32)).min(SLOWEST) };
    most.mul_f64(0.5 + 0.5 * draw)
}

/// After a lease has run out: the more processes wait for it, the wider they spread.
pub(crate) fn after_expiry(waiting: usize, draw: f64) -> Duration {
    let spread = Duration::from_millis(1 + waiting as u64 / 4).min(Duration::from_millis(250));
    Duration::from_millis(1) + spread.mul_f64(draw)
}

/// A wait budget, 20 % more or less, so that those who began to wait together do not give up together.
pub(crate) fn budget(wait: Duration, draw: f64) -> Duration {
    wait.mul_f64(0.8 + 0.4 * draw)
}

/// What a lost wake-up costs at most. Long enough that a fetch of half a second is not asked for twice.
const IN_CASE: Duration = Duration::from_secs(1);
const FASTEST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn polls_are_bounded(asked: u32, registered: bool, draw in 0.0_f64..1.0) {
            let wait = poll(asked, registered, draw);
            prop_assert!(wait >= FASTEST / 2 && wait <= IN_CASE);
            let within = if registered { wait >= IN_CASE / 2 } else { wait <= SLOWEST };
            prop_assert!(within);
        }

        #[test]
        fn spreads_are_bounded(waiting: usize, draw in 0.0_f64..1.0) {
            prop_assert!(after_expiry(waiting, draw) <= Duration::from_millis(251));
        }
    }

    #[test]
    fn those_who_are_not_woken_ask_soon_and_then_less_often() {
        let waits: Vec<_> = (0..8).map(|n| poll(n, false, 0.999).as_millis()).collect();
        assert!(waits[0] <= 50 && waits.is_sorted() && waits[7] >= 490, "{waits:?}");
    }
}
