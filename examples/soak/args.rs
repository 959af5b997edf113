//! The command line.

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

/// A fleet under a mixed load, while things break around it; ends with 1 if something did not hold.
#[derive(Parser)]
#[command(name = "soak")]
pub(crate) struct Args {
    /// For how long
    #[arg(long, value_name = "S", default_value = "60", value_parser = clap::value_parser!(u64).range(3..=1_000_000))]
    seconds: u64,

    /// Spread the load over N processes
    #[arg(long, value_name = "N", default_value = "3")]
    pub(crate) processes: NonZeroUsize,

    /// Draw load and faults from this seed; otherwise from a new one, which is printed
    #[arg(long)]
    seed: Option<u64>,

    /// Use this Redis instead of an own one; then only workers are stopped and killed
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Break something on purpose, to see that the checks can fail
    #[arg(long, value_name = "WHAT")]
    pub(crate) sabotage: Option<Sabotage>,

    /// Be one of the workers: a duty in JSON
    #[arg(long, hide = true, exclusive = true)]
    worker: Option<String>,
}

/// What is broken between guard and origin, or in the worker.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Sabotage {
    /// The origin's first answers are repeated for ever
    Stale,
    /// The origin's answers are other keys' now and then
    Keys,
    /// The origin fails where it should not
    Errors,
    /// Private answers are given to everybody
    Private,
    /// Memory is kept
    Memory,
    /// Tasks are kept
    Tasks,
    /// Leases are taken and kept
    Leases,
}

pub(crate) enum Mode {
    Parent,
    Worker(Duty),
}

/// What a worker is told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Duty {
    pub(crate) seed: u64,
    pub(crate) redis: String,
    pub(crate) origin: SocketAddr,
    pub(crate) namespace: String,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Args {
    /// Reads the command line; explains what is wrong with it and exits with 2.
    pub(crate) fn checked() -> Self {
        Self::parse()
    }

    pub(crate) fn mode(&self) -> Mode {
        match &self.worker {
            Some(duty) => Mode::Worker(serde_json::from_str(duty).expect("parent and worker are one program")),
            None => Mode::Parent,
        }
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| fastrand::u64(..1 << 32))
    }
}
