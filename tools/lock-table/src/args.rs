//! The command line.

use crate::recipes::{self, Row};
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// Acquires and releases one lock from several processes, with every recipe. Exits with 1 if two processes ever held it
/// at the same time.
#[derive(Parser)]
#[command(name = "lock_table")]
pub(crate) struct Args {
    /// Duration of each measurement (one recipe with one number of clients), in seconds
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: Duration,

    /// Numbers of clients
    #[arg(long, value_name = "N,..", default_value = "1,2,5,10", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) clients: Vec<u32>,

    /// Recipes to measure: `bare` and the recipes of the crate [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = recipes::find)]
    recipes: Option<Vec<&'static Row>>,

    /// Time between two tries of a spinning client, in milliseconds; the book uses 1
    #[arg(long, value_name = "MS", default_value = "1", value_parser = clap::value_parser!(u64).range(..=60_000))]
    delay: u64,

    /// Use this Redis instead of starting one; scripts of its other clients count as tries
    #[arg(long, value_name = "URL", value_parser = redis_url)]
    pub(crate) redis: Option<String>,

    /// End the output with one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw acquires against clients
    #[arg(long, value_name = "PATH")]
    pub(crate) svg: Option<PathBuf>,

    /// Run as one of the clients, with its task in JSON
    #[arg(long, hide = true, exclusive = true)]
    client: Option<String>,
}

pub(crate) enum Mode {
    Parent(Args),
    Client(Duty),
}

/// The task of a client.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Duty {
    pub(crate) recipe: String,
    /// The name of the lock.
    pub(crate) lock: String,
    pub(crate) redis: String,
    /// More servers, for recipes that need several.
    pub(crate) others: Vec<String>,
    pub(crate) lasts: Duration,
    pub(crate) delay: Duration,
    /// The file that the holder of the lock locks as well, to check the lock.
    pub(crate) oracle: PathBuf,
}

impl Args {
    /// Reads the command line. On a mistake, explains it and exits with 2.
    pub(crate) fn checked() -> Self {
        Self::parse()
    }

    pub(crate) fn mode(self) -> Mode {
        match &self.client {
            Some(duty) => Mode::Client(serde_json::from_str(duty).expect("parent and client are one program")),
            None => Mode::Parent(self),
        }
    }

    pub(crate) fn lasts(&self) -> Duration {
        self.seconds
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_millis(self.delay)
    }

    pub(crate) fn recipes(&self) -> Vec<&'static Row> {
        self.recipes.clone().unwrap_or_else(recipes::all)
    }
}

fn seconds(seconds: &str) -> Result<Duration, String> {
    let seconds: f64 = seconds.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=3_600.0).contains(&seconds) {
        return Err("not between 0.1 and 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn redis_url(url: &str) -> redis::RedisResult<String> {
    redis::Client::open(url).map(|_| url.to_owned())
}
