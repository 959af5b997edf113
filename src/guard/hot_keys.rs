//! The setting that shows which keys are busy.

use super::StampedeGuard;
use crate::hot_keys::HotKeys;
use std::sync::Arc;

impl StampedeGuard {
    /// Tracks the busiest keys: how often each is requested, how many calls of the origin the guard has saved, and what
    /// a call takes. [`Stats::hot_keys`](crate::Stats::hot_keys) has them. Zero turns it off. Default: off.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory().track_hot_keys(100);
    /// for _ in 0..3 {
    ///     guard.fetch("user:42", async || Ok::<_, std::io::Error>("Ada".to_owned())).await?;
    /// }
    /// let busiest = &guard.stats().hot_keys[0];
    /// assert_eq!((busiest.key.as_str(), busiest.requests, busiest.saved_calls), ("user:42", 3, 2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All variants of a key count together. A key with more than 1/`keys` of all requests is always
    /// found; [`HotKey::max_uncounted`](crate::HotKey::max_uncounted) bounds the error of the count. Keys are shown as
    /// text, and may contain what must not be public.
    ///
    /// The memory is bounded: up to 1 KiB per key in each of the first 32 threads that serve requests. It belongs to
    /// this clone and to clones made from it afterwards.
    #[must_use]
    pub fn track_hot_keys(self, keys: usize) -> Self {
        let hot_keys = (keys > 0).then(|| Arc::new(HotKeys::new(keys)));
        self.set(|config| config.meter.hot_keys = hot_keys)
    }
}
