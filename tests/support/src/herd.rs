//! Many concurrent callers.

use std::{panic, sync::Arc};
use tokio::{sync::Barrier, task::JoinSet};

/// Runs `caller(0)` to `caller(n - 1)` as tasks that start together, and returns their results in that order.
///
/// A panic of a caller becomes a panic of the herd. Dropping the herd aborts every caller.
pub async fn herd<F>(n: usize, caller: impl Fn(usize) -> F) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let start = Arc::new(Barrier::new(n));
    let mut callers = JoinSet::new();
    for i in 0..n {
        let (start, call) = (start.clone(), caller(i));
        callers.spawn(async move {
            start.wait().await;
            (i, call.await)
        });
    }

    let mut answers = Vec::with_capacity(n);
    while let Some(joined) = callers.join_next().await {
        answers.push(joined.unwrap_or_else(|error| panic::resume_unwind(error.into_panic())));
    }
    answers.sort_by_key(|(i, _)| *i);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
