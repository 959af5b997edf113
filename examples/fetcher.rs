//! A thousand callers want one value at the same time, and the database is asked once.
//!
//! ```console
//! cargo run --release --example fetcher                                     # embedded store
//! cargo run --release --example fetcher -- --redis redis://127.0.0.1:6379   # shared with other processes
//! ```

use serde::{Deserialize, Serialize};
use stampede_guard::{HotKey, Policy, StampedeGuard};
use std::{
    env, io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Barrier, task::JoinSet};

#[derive(Debug, Serialize, Deserialize)]
struct User {
    id: u32,
    name: String,
}

/// An expensive origin that counts its calls.
#[derive(Default)]
struct Database(AtomicU32);

impl Database {
    async fn load_user(&self, id: u32) -> Result<User, io::Error> {
        self.0.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(User { id, name: "Ada".to_owned() })
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    example_support::log();
    let guard = match env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => StampedeGuard::in_memory(),
        [flag, url] if flag == "--redis" => StampedeGuard::new(redis::Client::open(url.as_str())?),
        _ => {
            eprintln!("usage: fetcher [--redis URL]");
            return Ok(ExitCode::from(2));
        }
    };
    let guard =
        guard.namespace("example-fetcher").policy(Policy::fresh_for(Duration::from_secs(60))).track_hot_keys(10);
    guard.invalidate("user:42").await?; // removes what an earlier run has left in Redis

    let (database, start) = (Arc::new(Database::default()), Arc::new(Barrier::new(CALLERS)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (guard, database, start) = (guard.clone(), database.clone(), start.clone());
        callers.spawn(async move {
            start.wait().await;
            guard.fetch("user:42", async move || database.load_user(42).await).await
        });
    }
    let users: Vec<User> = callers.join_all().await.into_iter().collect::<Result<_, _>>()?;
    guard.drain().await;

    let (calls, report) = (database.0.load(Relaxed), guard.stats());
    println!("{} callers got {:?}", users.len(), users[0]);
    println!("database calls: {calls}");
    println!("filled {}, coalesced {}, hits {}", report.misses, report.coalesced, report.hits);
    println!(
        "\n{:20} {:>9} {:>12} {:>13} {:>11}",
        "busiest keys", "requests", "calls saved", "longest wait", "call takes"
    );
    for HotKey { key, requests, saved_calls, fetches, longest_wait, fetch_time, .. } in &report.hot_keys {
        let (wait, call) = (longest_wait.as_millis(), fetch_time.as_millis() / u128::from(*fetches).max(1));
        println!("{key:20} {requests:>9} {saved_calls:>12} {wait:>10} ms {call:>8} ms");
    }
    Ok(if calls == 1 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const CALLERS: usize = 1000;
