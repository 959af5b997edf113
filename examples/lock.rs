//! A lock on its own: acquired, queued for, extended, lost and released.
//!
//! ```console
//! cargo run --release --example lock                                     # a redis-server of its own
//! cargo run --release --example lock -- --redis redis://127.0.0.1:6379
//! ```

use example_support::RedisServer;
use stampede_guard::{
    Lock,
    lock::{FencedLock, LockErrorKind, held_locks},
};
use std::{env, error::Error, process::ExitCode, time::Duration};
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    example_support::log();
    let args: Vec<_> = env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let own = match args[..] {
        [] => Some(RedisServer::start().await?),
        ["--redis", _] => None,
        _ => {
            eprintln!("usage: lock [--redis URL]");
            return Ok(ExitCode::from(2));
        }
    };
    let url = own.as_ref().map_or_else(|| args[1], |own| &own.url);
    let lock = Lock::new(redis::Client::open(url)?).recipe(FencedLock).ttl(Duration::from_secs(2));
    tries_once(&lock).await?;
    waits_in_turn(&lock).await?;
    outlives_its_ttl(&lock).await?;
    is_lost(&lock).await?;
    lock.drain().await;
    Ok(ExitCode::SUCCESS)
}

async fn tries_once(lock: &Lock) -> Result<()> {
    let guard = lock.acquire("report").await?;
    println!("acquired {:?}, fencing token {}", guard.name(), guard.fencing_token().unwrap_or_default());
    println!("held by this process: {}", held_locks().len());
    match lock.acquire("report").await {
        Err(busy) if busy.kind() == LockErrorKind::Acquisition => println!("a second time: {busy}"),
        other => return Err(format!("a lock that is held cannot be acquired: {other:?}").into()),
    }
    guard.release().await?;
    println!("released");
    Ok(())
}

/// Five clients wait for the lock; each starts 10 ms after the previous one.
async fn waits_in_turn(lock: &Lock) -> Result<()> {
    let lock = lock.clone().wait(Duration::from_secs(10));
    let first = lock.acquire("queue").await?;
    let mut waiting = JoinSet::new();
    for n in 1..=5 {
        let lock = lock.clone();
        waiting.spawn(async move {
            let guard = lock.acquire("queue").await?;
            println!("waiter {n} has it");
            guard.release().await
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.release().await?;
    waiting.join_all().await.into_iter().collect::<std::result::Result<(), _>>()?;
    Ok(())
}

/// The work takes longer than the TTL. The lock is extended once by hand, then by a heartbeat.
async fn outlives_its_ttl(lock: &Lock) -> Result<()> {
    let guard = lock.clone().ttl(Duration::from_millis(300)).acquire("long work").await?;
    guard.extend(Duration::from_secs(1)).await?;
    println!("extended, {} ms left", guard.remaining().unwrap_or_default().as_millis());
    guard.keep_alive()?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(1500)) => println!("worked for 1.5 s and still has it"),
        () = guard.lost() => return Err("lost although its heartbeat goes on".into()),
    }
    guard.release().await?;
    Ok(())
}

/// A holder that is too slow learns that it has lost the lock.
async fn is_lost(lock: &Lock) -> Result<()> {
    let slow = lock.clone().ttl(Duration::from_millis(200)).acquire("too slow").await?;
    slow.lost().await;
    let next = lock.clone().wait(Duration::from_secs(10)).acquire("too slow").await?;
    println!("lost; the next one has it, with a larger token: {}", next.fencing_token() > slow.fencing_token());
    match slow.release().await {
        Err(late) if late.kind() == LockErrorKind::Release => println!("released too late: {late}"),
        other => return Err(format!("a lock that was lost cannot be released: {other:?}").into()),
    }
    next.release().await?;
    Ok(())
}
