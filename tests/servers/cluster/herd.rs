//! A herd over several processes, in a cluster of three masters with a replica each.

use super::shards::{Shards, endpoint_of, keys_of, master_of};
use crate::{
    Down, SECOND,
    kit::{answers, patient},
    support::{
        Monitor, Origin,
        child::{self, Env},
        eventually, herd, processes,
    },
};
use serde::{Deserialize, Serialize};
use stampede_guard::StampedeGuard;
use std::time::{Duration, Instant};

const PROCESSES: usize = 4;
const CALLERS: usize = 250;
const COMPUTE: Duration = Duration::from_secs(3);

#[derive(Debug, Deserialize, Serialize)]
struct Outcome {
    calls: usize,
    answered: usize,
    /// Time from the start of the herd in this process until its last answer, in milliseconds.
    last_answer: u64,
}

/// Runs the callers of one process. The lease outlives the test, so that no waiter finds it free.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(Env { task: urls, .. }) = child::enabled::<Vec<String>>() else { return };
    let guard = StampedeGuard::new(endpoint_of(&urls)).store_timeout(30 * SECOND).lease_ttl(300 * SECOND);
    let origin = Origin::new();
    guard.fetch(format!("warm-up {}", std::process::id()), async || Ok::<_, Down>(0)).await.expect("an answer");
    guard.drain().await;
    eventually("the process is subscribed", async || guard.health().subscriber_up == Some(true)).await;
    child::ready_and_wait().await;
    let began = Instant::now();
    let answers = herd(CALLERS, |_| {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(COMPUTE).await;
                Ok::<_, Down>(1)
            };
            guard.fetch("herd", fetch).await
        }
    })
    .await;
    let last_answer = u64::try_from(began.elapsed().as_millis()).expect("a short time");
    guard.drain().await;
    let answered = answers.iter().filter(|answer| answer.as_ref().is_ok_and(|value| *value == 1)).count();
    child::report(&Outcome { calls: origin.calls(), answered, last_answer });
}

/// Counts the commands whose arguments name the key, on all masters, without the commands within scripts. Waiters are
/// woken by message: a process that polls sends more than fifteen in this time. Seen to fail if the
/// messages are not taken in: the waiters stay until the end of the lease.
#[tokio::test]
async fn herd_of_four_processes_is_woken_by_message() {
    let shards = Shards::start().await;
    // The scripts are loaded on the master of the key: each script that it does not know costs a command once.
    let master = master_of(&shards.masters, "herd").await;
    answers(&patient(shards.endpoint()), &keys_of(&shards.masters, master, 1).await[0]).await;
    let urls: Vec<_> = shards.masters.iter().map(|master| master.url()).collect();
    let mut children = processes::spawn(PROCESSES, "cluster::herd::child", &urls);
    for child in &mut children {
        child.wait_ready().await;
    }
    let mut monitors = Vec::new();
    for master in &shards.masters {
        monitors.push(Monitor::start(master).await);
    }
    for child in &mut children {
        child.go().await;
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    for mut child in children {
        outcomes.push(child.result().await);
        child.passed().await;
    }
    let mut commands = Vec::new();
    for monitor in monitors {
        commands.extend(monitor.stop().await.into_iter().filter(|command| command.args.contains("{sg:rherd}")));
    }
    assert_eq!(outcomes.iter().map(|outcome| outcome.calls).sum::<usize>(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.answered == CALLERS), "{outcomes:?}");
    assert!(commands.len() <= 3 + 6 * PROCESSES, "{commands:#?}");
    let last = outcomes.iter().map(|outcome| outcome.last_answer).max().expect("four");
    println!("{} commands, last answer after {last} ms", commands.len());
}
