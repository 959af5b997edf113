//! Runs the same work through this crate and through its peers. Started by `scripts/compare.sh`.
//!
//! ```text
//! scripts/compare.sh            # all, in less than twenty minutes; writes docs/lab/comparison.md and its pictures
//! scripts/compare.sh --quick    # our own rows, redis-rs and moka, in a minute plus the build
//! ```
//!
//! Every cell of a table is a separate process (this binary, started again), so that no subject is affected by what
//! another subject left: see [`child`]. Subjects are in `subjects/`, scenarios in `scenarios/`. Repeats are
//! interleaved, each subject once per repeat, because the speed of the machine may change during the run. A ratio
//! compares figures of one repeat.
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
mod summary;
mod table;

use clap::Parser;
use std::{error::Error, path::PathBuf, process::ExitCode};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Compares this crate with its peers. Progress is written to stderr. The last line of stdout is JSON.
#[derive(Clone, Parser)]
struct Args {
    /// Only our own rows, redis-rs and moka.
    #[arg(long)]
    quick: bool,
    /// Number of measurements per cell; figures are medians. Default: 5, with --quick 3.
    #[arg(long)]
    repeats: Option<usize>,
    /// Only scenarios whose name contains this text; no JSON and no files.
    #[arg(long)]
    only: Option<String>,
    /// Only subjects whose name contains this text, and the subjects they are compared with; no JSON and no files.
    #[arg(long)]
    subject: Option<String>,
    /// Directory for comparison.md and its pictures. Without it, they are not written. Needs every peer.
    #[arg(long)]
    docs: Option<PathBuf>,
    /// The document that quotes the summary of comparison.md, between the same markers.
    #[arg(long, requires = "docs")]
    readme: Option<PathBuf>,
}

impl Args {
    /// Reports whether everything in the JSON line is measured.
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
        let summary = summary::block(&tables)?;
        report::write(&docs.join("comparison.md"), &summary, &tables)?;
        if let Some(readme) = &args.readme {
            summary::quote(readme, &summary)?;
        }
        #[cfg(feature = "peers")]
        picture::draw(docs, &tables)?;
    }
    println!("{}", figures::json(&tables)?);
    Ok(())
}
