//! The child's side of [`processes`](super::processes): a test that runs in a process of its own.
//!
//! ```ignore
//! #[tokio::test]
//! async fn herd_child() {
//!     let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
//!     let guard = ..;
//!     child::ready_and_wait().await;
//!     child::report(&herd(task.callers, ..).await);
//! }
//! ```

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    env,
    io::{self, Write},
    process, thread,
};
use tokio::sync::Semaphore;

/// What a child knows of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Env<T> {
    /// Which of its parent's children it is, counted from 0.
    pub(crate) index: usize,
    /// What the parent wants done.
    pub(crate) task: T,
}

/// What this process is to do; `None` if no parent started it, and then the test has to return at once.
///
/// A child ends when its parent is gone.
pub(crate) fn enabled<T: DeserializeOwned>() -> Option<Env<T>> {
    let env = env::var(VARIABLE).ok()?;
    thread::spawn(follow_parent);
    Some(serde_json::from_str(&env).expect("parent and child agree on the type of the task"))
}

/// Tells the parent that everything is set up, and waits for its `go`; once for each phase of a test.
pub(crate) async fn ready_and_wait() {
    say("ready", "");
    GO.acquire().await.expect("the semaphore is never closed").forget();
}

/// Hands an answer to the parent, which takes one with each [`result`](super::processes::Child::result).
pub(crate) fn report(result: &impl Serialize) {
    say("result", &serde_json::to_string(result).expect("a result that JSON can hold"));
}

static GO: Semaphore = Semaphore::const_new(0);

/// A thread of its own, because a read of standard input can be neither awaited nor given up.
fn follow_parent() {
    for line in io::stdin().lines() {
        match line.as_deref() {
            Ok("go") => GO.add_permits(1),
            _ => break,
        }
    }
    process::exit(1);
}

/// On a line of its own: libtest may have begun one.
fn say(word: &str, payload: &str) {
    let mut stdout = io::stdout().lock();
    write!(stdout, "\n{MARK}{word} {payload}\n").and_then(|()| stdout.flush()).expect("the parent listens");
}

/// Holds an [`Env`] as JSON.
pub(super) const VARIABLE: &str = "STAMPEDE_GUARD_CHILD";
/// Begins the lines that are for the parent; all others are libtest's or the test's.
pub(super) const MARK: &str = "@stampede-guard ";
