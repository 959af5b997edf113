//! Herds of many sizes in one process: callers of one key, and keys with one caller each.

use super::{guard, value_of};
use crate::support::{Monitor, Origin, RedisServer};
use futures_util::{StreamExt, future::join_all, stream};
use stampede_guard::RedisStore;
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

/// Runs herds of up to `most` callers.
pub(crate) async fn herds(most: usize) {
    let server = RedisServer::start();
    let sizes = || (0..=5).map(|zeros| 10_usize.pow(zeros)).filter(move |size| *size <= most);
    println!("\none process, one cold key, a computation that takes no time");
    println!("callers       origin calls   Redis commands   last answer, ms   per caller, us");
    for callers in sizes() {
        // This many callers are not polled within the default store timeout.
        let guard = guard(RedisStore::new(server.client())).max_waiters(usize::MAX).store_timeout(MANY_SECONDS);
        value_of(&guard, "connect").await;
        guard.drain().await;
        let (origin, monitor) = (Origin::new(), Monitor::start(&server).await);
        let key = format!("{callers} callers");
        let ask = || {
            let origin = origin.clone();
            guard.fetch(key.as_str(), async move || Ok::<_, Infallible>(origin.call().await as u64))
        };
        let began = Instant::now();
        let answers = join_all((0..callers).map(|_| ask())).await;
        let took = began.elapsed();
        guard.drain().await;
        let commands = monitor.stop().await.len();
        assert!(
            answers.into_iter().all(|answer| answer.is_ok_and(|call| call == 1)),
            "all have the answer of one call"
        );
        let (ms, each) = (took.as_secs_f64() * 1e3, took.as_secs_f64() * 1e6 / callers as f64);
        println!("{callers:7} {:18} {commands:16} {ms:17.2} {each:16.2}", origin.calls());
    }
    println!("\none process, cold keys with one caller each, {AT_ONCE} at a time");
    println!("keys            last answer, ms   per key, us");
    for keys in sizes() {
        let guard = guard(RedisStore::new(server.client()));
        value_of(&guard, "connect").await;
        guard.drain().await;
        let (guard, began) = (&guard, Instant::now());
        let ask = async |key| value_of(guard, &format!("{key} of {keys}")).await;
        stream::iter(0..keys).for_each_concurrent(AT_ONCE, ask).await;
        let took = began.elapsed();
        guard.drain().await;
        let report = guard.stats();
        assert_eq!(report.failed_open, 0, "{report:?}");
        println!("{keys:7} {:23.2} {:13.2}", took.as_secs_f64() * 1e3, took.as_secs_f64() * 1e6 / keys as f64);
    }
}

const MANY_SECONDS: Duration = Duration::from_secs(30);
/// With more callers at a time, some wait for the connection longer than the store timeout.
const AT_ONCE: usize = 256;
