//! The command line.

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

/// A fleet under a mixed load, with random faults around it. Exits with 1 if a check fails.
#[derive(Parser)]
#[command(name = "soak")]
pub(crate) struct Args {
    /// Duration of the load, in seconds
    #[arg(long, value_name = "S", default_value = "60", value_parser = clap::value_parser!(u64).range(3..=1_000_000))]
    seconds: u64,

    /// Spread the load over N processes
    #[arg(long, value_name = "N", default_value = "3")]
    pub(crate) processes: NonZeroUsize,

    /// Draw load and faults from this seed [default: a new one, which is printed]
    #[arg(long)]
    seed: Option<u64>,

    /// Use this Redis instead of starting one; faults then only stop and kill workers
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Break something on purpose, to show that the checks can fail
    #[arg(long, value_name = "WHAT")]
    pub(crate) sabotage: Option<Sabotage>,

    /// Run as one of the workers, with its task in JSON
    #[arg(long, hide = true, exclusive = true)]
    worker: Option<String>,
}

/// What is broken between guard and origin, or in the worker.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Sabotage {
    /// The origin always repeats its first responses
    Stale,
    /// The origin sometimes returns a value of another key
    Keys,
    /// The origin fails although it should not
    Errors,
    /// Private values are shared with all callers
    Private,
    /// The worker leaks memory
    Memory,
    /// The worker leaks tasks
    Tasks,
    /// The worker keeps a lease
    Leases,
}

pub(crate) enum Mode {
    Parent,
    Worker(Duty),
}

/// The task of a worker.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Duty {
    pub(crate) seed: u64,
    pub(crate) redis: String,
    pub(crate) origin: SocketAddr,
    pub(crate) namespace: String,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Args {
    /// Reads the command line. On a mistake, explains it and exits with 2.
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
