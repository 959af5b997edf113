//! The command line.

use crate::recipes::{self, Row};
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// One lock, acquired and released by several processes, with every recipe; ends with 1 if two ever held it at once.
#[derive(Parser)]
#[command(name = "lock_table")]
pub(crate) struct Args {
    /// How long each recipe is measured with each number of clients
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: Duration,

    /// How many clients
    #[arg(long, value_name = "N,..", default_value = "1,2,5,10", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) clients: Vec<u32>,

    /// Which recipes, of `bare` and those of the crate; otherwise all
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = recipes::find)]
    recipes: Option<Vec<&'static Row>>,

    /// How long who spins waits before it tries again, in milliseconds; the book's is 1
    #[arg(long, value_name = "MS", default_value = "1", value_parser = clap::value_parser!(u64).range(..=60_000))]
    delay: u64,

    /// Use this Redis instead of an own one; what its other clients do meanwhile counts as tries
    #[arg(long, value_name = "URL", value_parser = redis_url)]
    pub(crate) redis: Option<String>,

    /// End the output with one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw acquires against clients
    #[arg(long, value_name = "PATH")]
    pub(crate) svg: Option<PathBuf>,

    /// Be one of the clients: a duty in JSON
    #[arg(long, hide = true, exclusive = true)]
    client: Option<String>,
}

pub(crate) enum Mode {
    Parent(Args),
    Client(Duty),
}

/// What a client is told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Duty {
    pub(crate) recipe: String,
    /// What the lock is called.
    pub(crate) lock: String,
    pub(crate) redis: String,
    /// More servers, for recipes that need several.
    pub(crate) others: Vec<String>,
    pub(crate) lasts: Duration,
    pub(crate) delay: Duration,
    /// What is locked as well, to check the lock.
    pub(crate) oracle: PathBuf,
}

impl Args {
    /// Reads the command line; explains what is wrong with it and exits with 2.
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
