//! Throughput against the percentage of requests that miss.

use crate::{
    Extent,
    kit::{self, head, median, row},
    support::RedisServer,
};
use redis::Cmd;
use std::convert::Infallible;

pub(crate) async fn measure(extent: Extent) {
    let server = RedisServer::start();
    let guard = kit::guard(server.client());
    let connection = server.connection().await;
    let value = "x".repeat(1024);
    let _: () = Cmd::set("raw", &value).query_async(&mut connection.clone()).await.expect("the server is up");
    for key in 0..WORKERS {
        let value = value.clone();
        guard.fetch(format!("hit:{key}"), async move || Ok::<_, Infallible>(value)).await.expect("answered");
    }
    head(&["misses", "answers/s, 64 at a time", "of raw `GET`, median of 5", "if a miss were three `GET`"]);
    let mut last = 0;
    for percent in [0, 1, 10, 50, 100] {
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..extent.times(500).min(5) {
            let (connection, guard) = (connection.clone(), guard.clone());
            let get = move |_: usize| {
                let mut connection = connection.clone();
                async move {
                    let _: Vec<u8> = Cmd::get("raw").query_async(&mut connection).await.expect("the server is up");
                }
            };
            let times = extent.times(12_800);
            let raw = kit::per_second_in_tasks(WORKERS, times, get).await;
            let (first, asked, value) = (last, guard.clone(), value.clone());
            let ask = move |number: usize| {
                let misses = (number / WORKERS + number) % 100 < percent;
                let key = if misses { format!("miss:{}", first + number) } else { format!("hit:{}", number % WORKERS) };
                let (guard, value) = (asked.clone(), value.clone());
                async move {
                    let page = async move || Ok::<_, Infallible>(value);
                    guard.fetch(key, page).await.expect("answered");
                }
            };
            let guarded = kit::per_second_in_tasks(WORKERS, times, ask).await;
            guard.drain().await;
            last += times + WORKERS;
            rates.push(guarded);
            ratios.push(guarded / raw);
        }
        row(&[
            format!("{percent} %"),
            format!("{:.0}", median(rates)),
            format!("{:.2}", median(ratios)),
            format!("{:.2}", 1.0 / (1.0 + 0.02 * percent as f64)),
        ]);
    }
}

const WORKERS: usize = 64;
