//! The same work through this crate and through its peers, side by side: what `scripts/compare.sh` runs.
//!
//! ```text
//! scripts/compare.sh            # all, in less than twenty minutes; writes docs/comparison.md and its pictures
//! scripts/compare.sh --quick    # our own rows, redis-rs and moka, in one, the build not counted
//! ```
//!
//! Every cell of a table is a process of its own, this binary started again, so that no subject finds what another one
//! left: see [`child`]. A subject is a file in `subjects/`, a scenario one in `scenarios/`. Repeats are interleaved, each
//! subject once per repeat, since the speed of the machine may change meanwhile; a ratio is of one repeat.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod child;
mod figures;
mod monitor;
mod origin;
#[cfg(feature = "peers")]
mod picture;
mod reached;
mod redis_server;
mod report;
mod scenarios;
mod subject;
mod subjects;
mod table;

use clap::Parser;
use std::{error::Error, path::PathBuf, process::ExitCode};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures this crate beside its peers. Progress is on stderr; the last line of stdout is one of JSON.
#[derive(Clone, Parser)]
struct Args {
    /// Our own rows, redis-rs and moka alone.
    #[arg(long)]
    quick: bool,
    /// How often each cell is measured; figures are medians. Default: 5, with --quick 3.
    #[arg(long)]
    repeats: Option<usize>,
    /// Only scenarios whose name has this in it; no JSON, nothing is written.
    #[arg(long)]
    only: Option<String>,
    /// Only subjects whose name has this in it, and what they are compared with; no JSON, nothing is written.
    #[arg(long)]
    subject: Option<String>,
    /// Where comparison.md and its pictures go. Without it they are not written.
    #[arg(long)]
    docs: Option<PathBuf>,
}

impl Args {
    /// Whether all that the line of JSON tells is measured.
    fn whole(&self) -> bool {
        self.only.is_none() && self.subject.is_none()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match child::job() {
        Some(job) => scenarios::be(job).await,
        None => compare(Args::parse()).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn compare(args: Args) -> Result<()> {
    let tables = scenarios::run(&args).await?;
    for table in &tables {
        eprint!("\n{}", report::table(table));
    }
    if !args.whole() {
        return Ok(());
    }
    if let Some(docs) = &args.docs {
        report::write(&docs.join("comparison.md"), &tables)?;
        #[cfg(feature = "peers")]
        picture::draw(docs, &tables)?;
    }
    println!("{}", figures::json(&tables)?);
    Ok(())
}
