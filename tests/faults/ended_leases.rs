//! Stalls of the server, or of the network to it, while a leader works.

use crate::{
    Down, MS, SECOND,
    support::{RedisServer, Relay, never, relay::Mode},
};
use stampede_guard::{Policy, StampedeGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep, sleep_until},
};

/// A stall during which no process is served.
#[derive(Clone, Copy, Debug)]
struct Stall {
    kind: Kind,
    /// The time from the first caller.
    at: Duration,
    lasts: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `SIGSTOP`: requests wait in the sockets of the server.
    Stopped,
    /// `CLIENT PAUSE`: requests wait as long as their connections stay.
    Paused,
    /// The network holds requests as long as their connections stay.
    Held,
}

const KINDS: [Kind; 3] = [Kind::Stopped, Kind::Paused, Kind::Held];

/// Fetches in three processes with a caller every 100 ms each. Returns the number of calls and the longest wait. If
/// there was one call, every caller and every process has its result.
async fn cost_of(
    stall: Stall,
    takes: Duration,
    configure: impl Fn(StampedeGuard) -> StampedeGuard,
) -> (usize, Duration) {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let guards = [(); 3].map(|()| {
        let client = if matches!(stall.kind, Kind::Held) { relay.client() } else { server.client() };
        configure(StampedeGuard::new(client).policy(Policy::fresh_for(600 * SECOND)))
    });
    for (i, guard) in guards.iter().enumerate() {
        guard.fetch(format!("warm-up {i}"), async || Ok::<_, Down>(0)).await.expect("an answer");
        guard.drain().await;
    }
    let mut redis = server.connection().await;
    let (calls, mut callers, began) = (Arc::new(AtomicUsize::new(0)), JoinSet::new(), Instant::now());
    let stalls = async {
        sleep_until(began + stall.at).await;
        match stall.kind {
            Kind::Stopped => server.pause(),
            Kind::Held => relay.set(Mode::HoldRequests),
            Kind::Paused => {
                let lasts = stall.lasts.as_millis().to_string();
                redis::cmd("CLIENT").arg(&["PAUSE", &lasts, "ALL"]).exec_async(&mut redis).await.expect("paused");
            }
        }
        sleep(stall.lasts).await;
        match stall.kind {
            Kind::Stopped => server.resume(),
            Kind::Held => relay.set(Mode::Pass),
            Kind::Paused => {}
        }
    };
    let asks = async {
        let mut ticks = interval(100 * MS);
        while began.elapsed() < takes + SECOND {
            ticks.tick().await;
            for guard in guards.clone() {
                let calls = calls.clone();
                callers.spawn(async move {
                    let asked = Instant::now();
                    let fetch = async move || {
                        let call = calls.fetch_add(1, SeqCst) + 1;
                        sleep(takes).await;
                        Ok::<_, Down>(call)
                    };
                    (guard.fetch("k", fetch).await.expect("an answer"), asked.elapsed())
                });
            }
        }
    };
    tokio::join!(stalls, asks);
    let answers = callers.join_all().await;
    let calls = calls.load(SeqCst);
    let slowest = answers.iter().map(|(_, took)| *took).max().expect("there are callers");
    let stats = guards.each_ref().map(|guard| {
        let stats = guard.stats();
        (stats.lease_losses, stats.fenced, stats.failed_open, stats.breaker_opened)
    });
    println!("{stall:?}: {calls} calls, slowest {slowest:?}, (leases lost, fenced, failed open, breaker) {stats:?}");
    if calls == 1 {
        assert!(answers.iter().all(|(call, _)| *call == 1), "{stall:?}");
        assert!(stats.iter().all(|stats| (stats.0, stats.1) == (0, 0)), "{stall:?}: {stats:?}");
        for guard in &guards {
            guard.drain().await;
            assert_eq!(guard.fetch("k", never::<usize>).await.expect("a hit"), 1, "{stall:?}");
        }
    }
    (calls, slowest)
}

/// Checks that a stall of each kind costs no second call. Store timeout and lease are longer than the default, so that
/// a busy machine does not look like a stall.
async fn costs_one_call(at: Duration, takes: Duration, store_timeout: Duration) {
    let stalls = KINDS.map(|kind| {
        let stall = Stall { kind, at, lasts: 4300 * MS };
        tokio::spawn(cost_of(stall, takes, move |guard| guard.lease_ttl(6 * SECOND).store_timeout(store_timeout)))
    });
    for stall in stalls {
        assert_eq!(stall.await.expect("no panic").0, 1);
    }
}

/// The stall begins just before the first extension of the lease, and ends just after the end of the lease. No request
/// times out: a busy machine may be too slow to make a new connection for an extension.
///
/// Seen to fail (2 calls) if the lease is dropped at its end.
#[tokio::test(flavor = "multi_thread")]
async fn stall_that_ends_the_lease_costs_no_second_call() {
    costs_one_call(1900 * MS, 8 * SECOND, 30 * SECOND).await;
}

/// The result of the fetch is stored when the stall is over.
///
/// Seen to fail (2 calls) if a fill that times out is sent once more only.
#[tokio::test(flavor = "multi_thread")]
async fn stall_over_the_end_of_a_fetch_costs_no_second_call() {
    costs_one_call(SECOND, 3 * SECOND, SECOND).await;
}

/// With the default settings, a fetch of four leases, and a stall of a little less than a lease. Two of twelve end
/// after the fetch.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes three minutes"]
async fn stall_at_any_moment_costs_no_second_call() {
    let mut costs = Vec::new();
    for kind in KINDS {
        // Three at a time, because more servers and processes make the machine slow.
        for n in 0..4 {
            let stalls = [0, 4, 8].map(|m| {
                let at = if m == 8 && n > 1 { 8 * SECOND + n * SECOND } else { 2 * SECOND + (n + m) * 100 * MS };
                let stall = Stall { kind, at, lasts: 2900 * MS };
                tokio::spawn(cost_of(stall, 12 * SECOND, |guard| guard))
            });
            for stall in stalls {
                costs.push(stall.await.expect("no panic"));
            }
        }
    }
    assert!(costs.iter().all(|(calls, _)| *calls == 1), "{costs:?}");
}
