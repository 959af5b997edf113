//! The server's cost of single commands: the constants of tools/fleet.

use crate::{
    Extent,
    kit::{self, Usage, connections, head, median, row},
    support::RedisServer,
};
use futures_util::{StreamExt, future::join_all};
use redis::{Cmd, ProtocolVersion, Script, aio::MultiplexedConnection};
use std::time::Instant;

pub(crate) async fn measure(extent: Extent) {
    let (server, times) = (RedisServer::start(), extent.times(20_000));
    let connections = connections(&server, CONNECTIONS).await;
    let _: () = Cmd::set("k", value()).query_async(&mut connections[0].clone()).await.expect("the server is up");
    let alone = async |command: &(dyn Fn(usize) -> Cmd + Sync)| {
        let before = Usage::of(&server).await;
        let send = async |number: usize| {
            let mut connection = connections[number % CONNECTIONS].clone();
            let _: redis::Value = command(number).query_async(&mut connection).await.expect("the server is up");
        };
        kit::per_second(CONNECTIONS, times, send).await;
        before.since(&server).await.cpu.as_secs_f64() * 1e6 / times as f64
    };
    let (lead, fill, extend) = (Script::new(LEAD), Script::new(FILL), Script::new(EXTEND));
    for script in [&lead, &fill, &extend] {
        script.prepare_invoke().load_async(&mut connections[0].clone()).await.expect("the server is up");
    }
    let call = |script: &Script, number: usize, args: &[&[u8]]| {
        let mut command = redis::cmd("EVALSHA");
        let keys = (format!("{{r{number}}}:v"), format!("{{r{number}}}:l"));
        if script.get_hash() == lead.get_hash() {
            let other = format!("{{r{number}}}:w");
            command.arg(script.get_hash()).arg(3).arg(keys.0).arg(keys.1).arg(other);
        } else {
            command.arg(script.get_hash()).arg(2).arg(keys.1).arg(keys.0);
        }
        args.iter().for_each(|arg| _ = command.arg(arg));
        command
    };
    let get = alone(&|_| Cmd::get("k")).await;
    let pipelined = pipelined(&server, &connections, times).await;
    let batch = PIPELINE as f64;
    let read = (get - pipelined) * batch / (batch - 1.0);

    head(&["command, alone on its connection", "server CPU, µs", "beyond reading and writing"]);
    let figure = |name: &str, cost: f64| row(&[name.to_owned(), format!("{cost:.1}"), format!("{:.1}", cost - read)]);
    figure("`GET`, 1 KiB", get);
    figure("`PING`", alone(&|_| redis::cmd("PING")).await);
    let envelope = value();
    let layout = &envelope[17..41];
    let led: &[&[u8]] = &[TOKEN, b"60000", b"", b"inbox000", b"64", b"0000000", layout];
    figure("`get_or_lease`, granted", alone(&|number| call(&lead, number, led)).await);
    let second: &[&[u8]] = &[b"another token 16", b"60000", b"", b"inbox001", b"64", b"0000000", layout];
    figure("`get_or_lease`, answered with wait", alone(&|number| call(&lead, number, second)).await);
    let filled: &[&[u8]] = &[b"", b"", b"channel:", b"0123456789abcdef", &envelope, b"60000"];
    figure("`fill`, refused", alone(&|number| call(&fill, number, filled)).await);
    // The stamp of a real grant is unknown here, so the lease is written with an invented one.
    let lease = |number: usize| {
        let mut command = redis::cmd("SET");
        command.arg(format!("{{r{number}}}:l")).arg([b"H", TOKEN, STAMP, b"000000000"].concat()).arg("PX").arg(60_000);
        command
    };
    alone(&lease).await;
    let own = [TOKEN, STAMP].concat();
    figure("`extend`", alone(&|number| call(&extend, number, &[&own, b"60000"])).await);
    let filled: &[&[u8]] = &[&own, b"", b"channel:", b"0123456789abcdef", &envelope, b"60000"];
    figure("`fill`, 1 KiB, without waiters", alone(&|number| call(&fill, number, filled)).await);
    figure("`get_or_lease`, answered with the entry", alone(&|number| call(&lead, number, led)).await);

    println!(
        "\nreading the requests of one connection and writing the replies: {read:.1} µs; 16 `GET` read at once: {pipelined:.2} µs each"
    );
    println!("a wake-up to one process: {:.1} µs", message(&server, &connections[0], extent.times(2_000)).await);
    println!("an invalidation to one near cache: {:.1} µs", invalidation(&server, extent.times(100)).await);
    round_trips(&server, &connections[0], extent.times(5_000)).await;
}

async fn pipelined(server: &RedisServer, connections: &[MultiplexedConnection], times: usize) -> f64 {
    let mut batch = redis::pipe();
    (0..PIPELINE).for_each(|_| _ = batch.get("k"));
    let before = Usage::of(server).await;
    let send = async |number: usize| {
        let mut connection = connections[number % CONNECTIONS].clone();
        let _: redis::Value = batch.query_async(&mut connection).await.expect("the server is up");
    };
    let rounds = times.div_ceil(PIPELINE * CONNECTIONS) * CONNECTIONS;
    kit::per_second(CONNECTIONS, rounds, send).await;
    before.since(server).await.cpu.as_secs_f64() * 1e6 / (rounds * PIPELINE) as f64
}

/// Returns how much longer `PUBLISH` takes with subscribers than without, per subscriber.
async fn message(server: &RedisServer, connection: &MultiplexedConnection, times: usize) -> f64 {
    let publish = async |channel: &'static str| {
        let before = Usage::of(server).await;
        for _ in 0..times {
            let mut connection = connection.clone();
            let _: u64 = redis::cmd("PUBLISH")
                .arg(channel)
                .arg("f0123456789abcdef")
                .query_async(&mut connection)
                .await
                .expect("the server is up");
        }
        before.since(server).await.cpu.as_secs_f64() * 1e6 / times as f64
    };
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        let mut subscription = server.client().get_async_pubsub().await.expect("the server is up");
        subscription.subscribe("heard").await.expect("the server is up");
        listeners.push(tokio::spawn(async move { subscription.into_on_message().count().await }));
    }
    let (heard, unheard) = (publish("heard").await, publish("unheard").await);
    listeners.iter().for_each(tokio::task::JoinHandle::abort);
    (heard - unheard) / LISTENERS as f64
}

/// Returns how much longer a write takes if connections with tracking have read the key, per connection.
async fn invalidation(server: &RedisServer, times: usize) -> f64 {
    let info = server.client().get_connection_info().clone();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = redis::Client::open(info.set_redis_settings(settings)).expect("an address");
    let connect = || client.get_multiplexed_async_connection();
    let readers: Vec<_> = join_all((0..LISTENERS).map(|_| connect())).await.into_iter().flatten().collect();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for (told, costs) in (0..5).flat_map(|_| [("OFF", 0), ("ON", 1)]) {
        for reader in &readers {
            let mut tracking = redis::cmd("CLIENT");
            tracking.arg("TRACKING").arg(told);
            let _: () = tracking.query_async(&mut reader.clone()).await.expect("Redis 6 or later");
        }
        let before = Usage::of(server).await;
        for _ in 0..times {
            join_all(readers.iter().map(|reader| async {
                let _: redis::Value = Cmd::get("k").query_async(&mut reader.clone()).await.expect("the server is up");
            }))
            .await;
            let set = Cmd::set("k", "x");
            let _: () = set.query_async(&mut readers[0].clone()).await.expect("the server is up");
        }
        let cost = before.since(server).await.cpu.as_secs_f64() * 1e6 / (times * readers.len()) as f64;
        if costs == 0 { without.push(cost) } else { with.push(cost) }
    }
    median(with) - median(without)
}

/// Prints the time of sequential hits, raw and through the guard.
async fn round_trips(server: &RedisServer, connection: &MultiplexedConnection, times: usize) {
    let guard = kit::guard(server.client());
    let page = async || Ok::<_, std::convert::Infallible>("x".repeat(1024));
    guard.fetch("row", page).await.expect("fetched");
    guard.drain().await;
    let (mut raw, mut guarded) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let began = Instant::now();
        let _: redis::Value = Cmd::get("k").query_async(&mut connection.clone()).await.expect("the server is up");
        raw.push(began.elapsed().as_secs_f64() * 1e6);
        let began = Instant::now();
        guard.fetch("row", page).await.expect("fetched");
        guarded.push(began.elapsed().as_secs_f64() * 1e6);
    }
    println!("a raw `GET` in turn: {:.0} µs; a hit: {:.0} µs (medians)", median(raw), median(guarded));
}

fn value() -> Vec<u8> {
    vec![b'x'; 1024]
}

const CONNECTIONS: usize = 50;
const PIPELINE: usize = 16;
const LISTENERS: usize = 32;
const TOKEN: &[u8] = b"0123456789abcdef";
const STAMP: &[u8] = b"0000000000000001";
const LEAD: &str = include_str!("../../src/redis/lua/get_or_lease.lua");
const FILL: &str = include_str!("../../src/redis/lua/fill.lua");
const EXTEND: &str = include_str!("../../src/redis/lua/extend.lua");
