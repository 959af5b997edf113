//! The command line.

use clap::{CommandFactory, Parser, error::ErrorKind};
use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

/// An axum app with a slow report, with stampede-guard in front of it.
///
/// With --herd it asks itself for the report, many times at one moment, without the guard and with it, and prints what
/// was saved. Without, it serves until Ctrl-C.
#[derive(Parser)]
#[command(name = "axum_app")]
pub(crate) struct Args {
    /// Fire N requests at one moment, each on a connection of its own
    #[arg(long, value_name = "N")]
    herd: Option<NonZeroUsize>,

    /// Spread the herd over N server processes; more than one share a Redis
    #[arg(long, value_name = "N", default_value = "1", requires = "herd")]
    processes: NonZeroUsize,

    /// Spread the herd over K reports
    #[arg(long, value_name = "K", default_value = "1", requires = "herd")]
    keys: NonZeroUsize,

    /// End the output with one line of JSON about the guarded run
    #[arg(long, requires = "herd")]
    pub(crate) json: bool,

    /// How long the report takes to compute, in milliseconds
    #[arg(long, value_name = "MS", default_value = "300", value_parser = clap::value_parser!(u64).range(..=MAX_DELAY))]
    delay: u64,

    /// Use this Redis; what its other clients send meanwhile would be counted as well
    #[arg(long, value_name = "URL", value_parser = redis_url)]
    pub(crate) redis: Option<String>,

    /// Where to serve
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000", conflicts_with = "herd")]
    pub(crate) listen: SocketAddr,

    /// Be one of the servers of a herd: say the address, serve until stdin ends
    #[arg(long, hide = true, conflicts_with_all = ["herd", "listen"])]
    child: bool,
}

/// What the arguments ask for.
pub(crate) enum Mode {
    /// Serve until Ctrl-C.
    Serve,
    /// Serve one process's share of a herd.
    Child,
    /// Fire this many requests.
    Herd(usize),
}

impl Args {
    /// Reads the command line; explains what is wrong with it and exits with 2.
    pub(crate) fn checked() -> Self {
        let args = Self::try_parse().unwrap_or_else(|error| {
            // clap leaves the usage out where only a value is wrong.
            if matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
                eprintln!("{}\n", Self::command().render_usage());
            }
            error.exit()
        });
        if let Some(herd) = args.herd {
            at_most("keys", args.keys, herd);
            at_most("processes", args.processes, herd);
        }
        args
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.herd {
            _ if self.child => Mode::Child,
            Some(herd) => Mode::Herd(herd.get()),
            None => Mode::Serve,
        }
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes.get()
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.get()
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_millis(self.delay)
    }
}

fn at_most(flag: &str, value: NonZeroUsize, herd: NonZeroUsize) {
    if value > herd {
        let what = format!("--{flag} {value} is more than a herd of {herd} can be spread over");
        Args::command().error(ErrorKind::ValueValidation, what).exit()
    }
}

fn redis_url(url: &str) -> redis::RedisResult<String> {
    redis::Client::open(url).map(|_| url.to_owned())
}

/// Half the time after which the guard gives up on a fetch, so that the demo shows a stampede and not a timeout.
const MAX_DELAY: u64 = 30_000;
