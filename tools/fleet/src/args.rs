//! The command line.

use crate::load::Load;
use clap::Parser;
use std::path::PathBuf;

/// Simulates fleets of several sizes: the load on Redis and the origin, and the first bottleneck.
#[derive(Parser)]
#[command(name = "fleet")]
pub(crate) struct Args {
    /// Numbers of processes
    #[arg(long, value_name = "N,..", default_value = "10,30,100,300,1000,3000,10000", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) processes: Vec<u32>,

    #[command(flatten)]
    pub(crate) load: Load,

    /// Simulated time of each fleet, in seconds
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = seconds)]
    seconds: f64,

    /// Maximum number of requests; a larger fleet is simulated for a shorter time
    #[arg(long, value_name = "N", default_value_t = 1_000_000.0)]
    requests: f64,

    /// End the output with one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the load of Redis against the size of the fleet, with and without the near cache; doubles the run time
    #[arg(long, value_name = "PATH")]
    pub(crate) svg: Option<PathBuf>,
}

impl Args {
    pub(crate) fn seconds(&self, processes: u32) -> f64 {
        self.seconds.min(self.requests / (f64::from(processes) * self.load.rate))
    }
}

fn seconds(seconds: &str) -> Result<f64, String> {
    positive(seconds).and_then(|s| if s <= 86_400.0 { Ok(s) } else { Err("more than a day".to_owned()) })
}

pub(crate) fn positive(number: &str) -> Result<f64, String> {
    let number: f64 = number.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number.is_finite() { Ok(number) } else { Err("not above 0".to_owned()) }
}

pub(crate) fn not_negative(number: &str) -> Result<f64, String> {
    let number: f64 = number.parse().map_err(|_| "not a number".to_owned())?;
    if number >= 0.0 && number.is_finite() { Ok(number) } else { Err("below 0".to_owned()) }
}
