//! The child's side of [`processes`](super::processes): a test that runs in its own process.
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

/// The environment of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Env<T> {
    /// Index among the parent's children, from 0.
    pub index: usize,
    /// The task from the parent.
    pub task: T,
}

/// Returns the task of this process, or `None` if no parent started it. In that case the test has to return at once.
///
/// A child ends when its parent has ended.
pub fn enabled<T: DeserializeOwned>() -> Option<Env<T>> {
    let env = env::var(VARIABLE).ok()?;
    thread::spawn(follow_parent);
    Some(serde_json::from_str(&env).expect("parent and child agree on the type of the task"))
}

/// Tells the parent that everything is set up, and waits for its `go`; once for each phase of a test.
pub async fn ready_and_wait() {
    say("ready", "");
    GO.acquire().await.expect("the semaphore is never closed").forget();
}

/// Sends a result to the parent, which takes one with each [`result`](super::processes::Child::result).
pub fn report(result: &impl Serialize) {
    say("result", &serde_json::to_string(result).expect("a result that JSON can hold"));
}

static GO: Semaphore = Semaphore::const_new(0);

/// Reads the parent's messages, and ends the process when the parent has ended. It runs on its own thread, because a
/// read of standard input can be neither awaited nor cancelled.
fn follow_parent() {
    for line in io::stdin().lines() {
        match line.as_deref() {
            Ok("go") => GO.add_permits(1),
            _ => break,
        }
    }
    process::exit(1);
}

/// Prints a message on its own line, because libtest may have begun a line.
fn say(word: &str, payload: &str) {
    let mut stdout = io::stdout().lock();
    write!(stdout, "\n{MARK}{word} {payload}\n").and_then(|()| stdout.flush()).expect("the parent listens");
}

/// Name of the environment variable that holds an [`Env`] as JSON.
pub(super) const VARIABLE: &str = "STAMPEDE_GUARD_CHILD";
/// Prefix of the lines that are for the parent; all other lines are from libtest or the test.
pub(super) const MARK: &str = "@stampede-guard ";
