//! Hits and misses by the size of the value, next to raw `GET` and `SET`.

use crate::{
    Extent,
    kit::{self, head, median, row},
    support::RedisServer,
};
use redis::Cmd;
use std::{convert::Infallible, time::Instant};

pub(crate) async fn measure(extent: Extent) {
    let server = RedisServer::start();
    let guard = kit::guard(server.client()).max_payload(2 << 20);
    let connection = server.connection().await;
    head(&[
        "bytes",
        "hit in turn, µs",
        "of raw `GET`",
        "16 at a time, hits/s",
        "of raw `GET`",
        "MB/s",
        "miss in turn, fill included, µs",
        "of raw `GET` and `SET`",
    ]);
    for &bytes in extent.of(&[100, 1 << 10, 10 << 10, 100 << 10, 1 << 20]) {
        let value = "x".repeat(bytes);
        let _: () = Cmd::set("raw", &value).query_async(&mut connection.clone()).await.expect("the server is up");
        let page = || {
            let value = value.clone();
            async move || Ok::<_, Infallible>(value)
        };
        let key = |number: usize| format!("{bytes}:{}", number % WORKERS);
        for number in 0..WORKERS {
            guard.fetch(key(number), page()).await.expect("answered");
        }
        guard.drain().await;

        let get = async |_: usize| {
            let _: Vec<u8> = Cmd::get("raw").query_async(&mut connection.clone()).await.expect("the server is up");
        };
        let hit = async |number: usize| _ = guard.fetch(key(number), page()).await.expect("answered");
        let set = async |number: usize| {
            get(number).await;
            let set = Cmd::set("raw", &value);
            let _: () = set.query_async(&mut connection.clone()).await.expect("the server is up");
        };
        let miss = async |number: usize| {
            guard.fetch(format!("miss:{bytes}:{number}"), page()).await.expect("answered");
            guard.drain().await;
        };
        let times = extent.times((60_000_000 / (bytes + 10_000)).clamp(100, 2_000));
        let (mut hits, mut gets, mut misses, mut sets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for number in 0..times {
            for (times, which) in [(&mut gets, 0), (&mut hits, 1), (&mut sets, 2), (&mut misses, 3)] {
                let began = Instant::now();
                match which {
                    0 => get(number).await,
                    1 => hit(number).await,
                    2 => set(number).await,
                    _ => miss(number).await,
                }
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        let [get_in_turn, hit_in_turn, set_in_turn, miss_in_turn] = [gets, hits, sets, misses].map(median);
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (connection, guard) = (connection.clone(), guard.clone());
            let get = move |_: usize| {
                let mut connection = connection.clone();
                async move {
                    let _: Vec<u8> = Cmd::get("raw").query_async(&mut connection).await.expect("the server is up");
                }
            };
            let hit = move |number: usize| {
                let (guard, key) = (guard.clone(), format!("{bytes}:{}", number % WORKERS));
                async move {
                    let page = async || Ok::<_, Infallible>(String::new());
                    guard.fetch(key, page).await.expect("answered");
                }
            };
            let raw = kit::per_second_in_tasks(WORKERS, times, get).await;
            let guarded = kit::per_second_in_tasks(WORKERS, times, hit).await;
            rates.push(guarded);
            ratios.push(guarded / raw);
        }
        let rate = median(rates);
        row(&[
            bytes.to_string(),
            format!("{hit_in_turn:.0}"),
            format!("{:.2}", hit_in_turn / get_in_turn),
            format!("{rate:.0}"),
            format!("{:.2}", median(ratios)),
            format!("{:.0}", rate * bytes as f64 / 1e6),
            format!("{miss_in_turn:.0}"),
            format!("{:.2}", miss_in_turn / set_in_turn),
        ]);
        server.flushall().await;
    }
}

const WORKERS: usize = 16;
