//! The command line.

use clap::{CommandFactory, Parser, error::ErrorKind};
use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

/// An axum app with a slow report, protected by stampede-guard.
///
/// With --herd it sends itself many requests at the same time, without the guard and with it, and prints what the guard
/// saved. Without --herd it serves until Ctrl-C, with a page that sends herds and shows them.
#[derive(Parser)]
#[command(name = "axum_app")]
pub(crate) struct Args {
    /// Send N requests at the same time, each on its own connection
    #[arg(long, value_name = "N")]
    herd: Option<NonZeroUsize>,

    /// Spread the herd over N server processes, which share a Redis if N > 1
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

    /// Use this Redis; commands of its other clients are counted as well
    #[arg(long, value_name = "URL", value_parser = redis_url)]
    pub(crate) redis: Option<String>,

    /// Start a Redis for the server, which its page can stop and start
    #[arg(long, conflicts_with_all = ["herd", "redis"])]
    pub(crate) own_redis: bool,

    /// Address to serve on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000", conflicts_with = "herd")]
    pub(crate) listen: SocketAddr,

    /// Serve metrics for Prometheus on /metrics; needs the feature `metrics` of the examples
    #[arg(long, conflicts_with = "herd")]
    pub(crate) metrics: bool,

    /// Run as one server of a herd: print the address, serve until stdin ends
    #[arg(long, hide = true, conflicts_with_all = ["herd", "listen", "own_redis"])]
    child: bool,
}

/// What the arguments ask for.
pub(crate) enum Mode {
    /// Serve until Ctrl-C.
    Serve,
    /// Serve the requests of a herd in one process.
    Child,
    /// Send this number of requests.
    Herd(usize),
}

impl Args {
    /// Reads the command line. On a mistake, explains it and exits with 2.
    pub(crate) fn checked() -> Self {
        let args = Self::try_parse().unwrap_or_else(|error| {
            // clap omits the usage if only a value is wrong.
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

/// In milliseconds. Half the fetch timeout of the guard, so that the demo shows a stampede and not a timeout.
const MAX_DELAY: u64 = 30_000;
