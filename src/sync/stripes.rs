//! Stripes: copies of a value, so that threads that change it seldom write to the same cache line.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Returns the stripe of this thread, a number below [`STRIPES`].
pub(crate) fn of_this_thread() -> usize {
    STRIPE.with(usize::clone)
}

thread_local! {
    /// Threads take the stripes in turn.
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Relaxed) % STRIPES
    };
}

/// More than most machines have cores.
pub(crate) const STRIPES: usize = 32;
