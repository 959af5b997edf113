//! Continuous requests of several processes for several keys.

use crate::{
    Down, MS,
    kit::command,
    support::{RedisServer, eventually},
};
use stampede_guard::{OutageCacheConfig, Policy, StampedeGuard};
use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// Requests of each guard for each key, one after the other.
pub(super) struct Load {
    guards: Vec<StampedeGuard>,
    /// Calls of the origin by guard and key.
    calls: Vec<Arc<[AtomicUsize; KEYS]>>,
    failed: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Starts the requests once all keys are stored on all servers, and counts from then on.
    pub(super) async fn start(guards: &[StampedeGuard], servers: &[RedisServer]) -> Self {
        let (hour, outage) = (Duration::from_secs(3600), OutageCacheConfig::default().ttl(Duration::from_secs(60)));
        let policy = Policy::fresh_for(hour);
        // With its own store timeout, which suits a busy machine.
        let patient = guards[0].clone().policy(policy);
        for key in 0..KEYS {
            patient.fetch(name(key), async move || Ok::<_, Down>(key)).await.expect("an answer");
        }
        patient.drain().await;
        let entries: Vec<_> = (0..KEYS).map(|key| format!("{{sg:r{}}}:v3.2", name(key))).collect();
        let exist = format!("EXISTS {}", entries.join(" "));
        for server in servers {
            eventually("the server has all entries", async || command::<usize>(server, &exist).await == KEYS).await;
        }
        let guards: Vec<_> = guards
            .iter()
            .map(|guard| guard.clone().policy(policy).outage_cache(outage).store_timeout(500 * MS))
            .collect();
        let calls = guards.iter().map(|_| Arc::new(array::from_fn(|_| AtomicUsize::new(0)))).collect();
        let mut load = Self { guards, calls, failed: Arc::default(), is_over: Arc::default(), tasks: JoinSet::new() };
        for (guard, calls) in load.guards.iter().zip(&load.calls) {
            for key in 0..KEYS {
                let (guard, calls) = (guard.clone(), calls.clone());
                let (failed, is_over) = (load.failed.clone(), load.is_over.clone());
                load.tasks.spawn(async move {
                    while !is_over.load(SeqCst) {
                        let calls = calls.clone();
                        let fetch = async move || {
                            calls[key].fetch_add(1, SeqCst);
                            tokio::time::sleep(20 * MS).await;
                            Ok::<_, Down>(key)
                        };
                        if !guard.fetch(name(key), fetch).await.is_ok_and(|value| value == key) {
                            failed.fetch_add(1, SeqCst);
                        }
                        tokio::time::sleep(5 * MS).await;
                    }
                });
            }
        }
        load
    }

    /// Waits until each guard shares its values with the next one.
    pub(super) async fn is_shared_again(&self) {
        for (i, guard) in self.guards.iter().enumerate() {
            let next = &self.guards[(i + 1) % self.guards.len()];
            eventually("values are shared again", async || {
                let key = format!("probe {}", fastrand::u64(..));
                let values = [guard, next].map(|guard| (guard, fastrand::u64(..)));
                let mut seen = Vec::new();
                for (guard, value) in values {
                    seen.push(guard.fetch(key.clone(), async move || Ok::<_, Down>(value)).await.expect("an answer"));
                    guard.drain().await;
                }
                seen[0] == seen[1]
            })
            .await;
        }
    }

    /// Ends the requests. Returns the number of failed ones, and the largest number of calls for one key in one guard.
    pub(super) async fn stop(self) -> (usize, usize) {
        self.is_over.store(true, SeqCst);
        self.tasks.join_all().await;
        let most = self.calls.iter().flat_map(|calls| calls.iter()).map(|calls| calls.load(SeqCst)).max();
        (self.failed.load(SeqCst), most.unwrap_or_default())
    }
}

fn name(key: usize) -> String {
    format!("loaded{key}")
}

const KEYS: usize = 6;
