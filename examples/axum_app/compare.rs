//! Runs the herd twice over the same servers: without the guard, and through it.

use crate::{
    Result,
    args::Args,
    commands::Commands,
    fleet::Fleet,
    herd::{self, Shot},
    report::{Report, Run},
};
use example_support::RedisServer;
use indicatif::{ProgressBar, ProgressStyle};
use std::{net::SocketAddr, time::Duration};

/// Sends the herd twice and prints the comparison.
pub(crate) async fn compare(herd: usize, args: &Args) -> Result<()> {
    allow_open_files(herd, args.processes())?;
    let own_redis = match (&args.redis, args.processes()) {
        (None, 2..) => Some(RedisServer::start().await?),
        _ => None,
    };
    let redis = args.redis.as_deref().or(own_redis.as_ref().map(|own| own.url.as_str()));
    let mut commands = match redis {
        Some(url) => Some(Commands::watch(url).await?),
        None => None,
    };
    let fleet = Fleet::start(args, redis).await?;

    // The paths contain a random number of this run, so that entries of earlier runs in Redis do not match. The warm-up
    // comes first, so that the background work of its guards has ended when the count begins.
    let run = format!("{:016x}", fastrand::u64(..));
    fleet.warm_up(&format!("/report/{run}-warm-up")).await?;
    let aimed = |route: &str| shots(&fleet.addresses, herd, args.keys(), route, &run);

    let without = measure(&fleet, aimed("/unguarded/report"), args.delay(), "without guard").await?;
    let before = so_far(&mut commands).await?;
    let mut with = measure(&fleet, aimed("/report"), args.delay(), "with guard").await?;
    fleet.stop().await?;
    with.redis_commands = so_far(&mut commands).await? - before;
    if let Some(own) = own_redis {
        own.stop().await?;
    }

    let report =
        Report { requests: herd, processes: args.processes(), keys: args.keys(), delay: args.delay(), without, with };
    println!("{report}");
    if args.json {
        println!("{}", report.json()?);
    }
    Ok(())
}

async fn measure(fleet: &Fleet, shots: Vec<Shot>, delay: Duration, name: &'static str) -> Result<Run> {
    let before = fleet.origin_calls().await?;
    let progress =
        ProgressBar::new(shots.len() as u64).with_style(ProgressStyle::with_template(BAR)?).with_prefix(name);
    let answers = herd::fire(shots, delay + herd::PATIENCE, &progress).await?;
    progress.finish_and_clear();
    Ok(Run { answers, origin_calls: fleet.origin_calls().await? - before, redis_commands: 0 })
}

/// Returns the number of Redis commands so far. The embedded store sends none.
async fn so_far(commands: &mut Option<Commands>) -> Result<u64> {
    match commands {
        Some(commands) => commands.so_far().await,
        None => Ok(0),
    }
}

/// Returns the requests of the herd, spread evenly over the reports and, independently, over the servers.
fn shots(servers: &[SocketAddr], herd: usize, keys: usize, route: &str, run: &str) -> Vec<Shot> {
    let mut servers: Vec<SocketAddr> = servers.iter().copied().cycle().take(herd).collect();
    fastrand::shuffle(&mut servers);
    let shot = |(n, server)| {
        let id = format!("{run}-{}", n % keys);
        Shot { server, path: format!("{route}/{id}"), answer: format!("report {id}:") }
    };
    servers.into_iter().enumerate().map(shot).collect()
}

/// Raises the soft limit of open files to what this herd needs. The children inherit it.
pub(crate) fn allow_open_files(herd: usize, processes: usize) -> Result<()> {
    let sockets = if processes == 1 { 2 } else { 1 };
    let other = OTHER_FILES + 2 * processes as u64;
    let needed = (herd as u64).saturating_mul(sockets).saturating_add(other);
    let limit = rlimit::increase_nofile_limit(needed)?;
    if limit >= needed {
        return Ok(());
    }
    let possible = limit.saturating_sub(other) / sockets;
    Err(format!(
        "a herd of {herd} needs {needed} open files and the hard limit is {limit}, enough for a herd of {possible}; \
         `ulimit -Hn` shows the limit"
    )
    .into())
}

/// Files besides the herd's sockets, including the connections to Redis.
const OTHER_FILES: u64 = 128;
const BAR: &str = "{prefix:>13} {wide_bar} {pos}/{len} answers";
