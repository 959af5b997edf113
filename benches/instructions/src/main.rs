//! Counts the instructions of the main paths, and compares them with the record in `benches/instructions.json`.
//!
//! ```text
//! cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target               # counts
//! cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target -- --check    # compares
//! cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target -- --record   # writes
//! ```
//!
//! Some hits are counted a second time, with reports of the library to a real recorder and to a subscriber at level `INFO`.
//! `--check` also fails if the reports take more than their limit.
//!
//! Times depend on the load of the machine, instructions do not. This process is run again under callgrind for one path
//! at a time, with few operations and with more of them. The difference is the cost of an operation, and start-up and
//! warm-up cancel out. The kernel is not counted, nor the page in which it provides the time, because that depends on
//! the machine. Everything runs on one thread. Over Redis, a real server on the loopback interface answers. The rows of
//! 64 callers have 64 tasks; one more row has the polls of their fetches.
//!
//! `--check` fails if a path takes more than 110 % of its record. Another compiler or processor than recorded may also
//! cause that: record again in this case. Seen to fail with 147 % of an embedded hit when `StampedeGuard::place`
//! formatted an unused string.
#![allow(clippy::disallowed_methods, reason = "tests and benches make their own time and randomness")]

mod callgrind;
mod crowd;
mod made_with;
#[path = "../../work/page.rs"]
mod page;
mod paths;
mod recorder;
mod reports;
#[path = "../../work/row.rs"]
mod row;
mod total;

use made_with::MadeWith;
use reports::REPORTED;
use serde::{Deserialize, Serialize};
use stampede_guard_support::RedisServer;
use std::{collections::BTreeMap, env, fs, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mode = match args[..] {
        [] => Mode::Show,
        ["--check"] => Mode::Check,
        ["--record"] => Mode::Record,
        [path, operations, url] => {
            paths::run(path, operations.parse().expect("a number"), url);
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("usage: instructions [--check | --record]");
            return ExitCode::FAILURE;
        }
    };
    if let Err(why) = callgrind::is_there() {
        eprintln!("instructions: {why}: install valgrind (Debian: apt-get install valgrind), then run this again");
        return ExitCode::FAILURE;
    }
    let counted = Recorded { made_with: MadeWith::here(), instructions: count() };
    let recorded = recorded();
    let mut grown = compare(&counted, recorded.as_ref());
    grown.extend(reports::over_limit(&counted.instructions));
    match mode {
        Mode::Show => ExitCode::SUCCESS,
        Mode::Record => {
            let json = serde_json::to_string_pretty(&counted).expect("numbers and text");
            fs::write(FILE, json + "\n").expect("the file can be written");
            println!("recorded in benches/instructions.json");
            ExitCode::SUCCESS
        }
        Mode::Check if recorded.is_some() && grown.is_empty() => ExitCode::SUCCESS,
        Mode::Check => {
            println!("\ninstructions: more than {MOST} times what benches/instructions.json has: {}", grown.join(", "));
            println!("If the change is worth its cost, record it, and give the reason in the commit:");
            println!("    {RECORD} -- --record");
            ExitCode::FAILURE
        }
    }
}

enum Mode {
    Show,
    Check,
    Record,
}

/// The content of the file, and of a new count.
#[derive(Serialize, Deserialize)]
struct Recorded {
    #[serde(rename = "made with")]
    made_with: MadeWith,
    instructions: BTreeMap<String, u64>,
}

fn recorded() -> Option<Recorded> {
    let text = fs::read_to_string(FILE).ok()?;
    Some(serde_json::from_str(&text).expect("benches/instructions.json is as --record writes it"))
}

/// Returns the instructions of one operation, by path.
fn count() -> BTreeMap<String, u64> {
    let server = RedisServer::start();
    let of = |path: &str| {
        let (few, more) = match path {
            crowd::HIT | crowd::MISS => (crowd::FEW, crowd::MORE),
            _ => (FEW, MORE),
        };
        let fewer = total::count(path, few, &server.url());
        (total::count(path, few + more, &server.url()).saturating_sub(fewer)) / u64::from(more)
    };
    let polls = crowd::polls_of_100_hits(&paths::runtime(), &server.url());
    let plain = paths::PATHS.map(|path| (path.to_owned(), path));
    let reported = REPORTED.map(|path| (reports::row(path), path));
    let counts = plain.into_iter().chain(reported).map(|(row, path)| {
        let count = of(&row).saturating_sub(paths::bare(path).map_or(0, of));
        (row, count)
    });
    counts.chain([(crowd::POLLS.to_owned(), polls)]).collect()
}

/// Prints all paths. Returns the paths that have grown or are not recorded.
fn compare(counted: &Recorded, recorded: Option<&Recorded>) -> Vec<String> {
    println!("{:36} {:>9} {:>9} {:>6}", "instructions of", "recorded", "counted", "ratio");
    let mut grown = Vec::new();
    for (path, count) in &counted.instructions {
        let before = recorded.and_then(|recorded| recorded.instructions.get(path));
        let ratio = before.map_or(f64::INFINITY, |before| *count as f64 / *before as f64);
        let shown = before.map_or_else(|| "-".to_owned(), u64::to_string);
        println!("{path:36} {shown:>9} {count:>9} {ratio:>6.3}");
        if ratio > MOST {
            grown.push(format!("`{path}`"));
        }
    }
    if let Some(recorded) = recorded.filter(|recorded| recorded.made_with != counted.made_with) {
        println!("recorded with {}, counted with {}", recorded.made_with, counted.made_with);
    }
    grown
}

/// Operations of the shorter run, whose cost cancels out.
const FEW: u32 = 100;
/// Additional operations of the longer run, which are counted.
const MORE: u32 = 400;
const MOST: f64 = 1.1;
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../instructions.json");
const RECORD: &str = "cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target";
