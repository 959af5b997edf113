//! How many instructions the main paths take, held to what `benches/instructions.json` has recorded.
//!
//! ```text
//! cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target               # counts
//! cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target -- --check    # compares
//! cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target -- --record   # writes
//! ```
//!
//! Times depend on what else the machine does, instructions do not: callgrind counts those of this process, run again for
//! one path at a time, with few operations and with more of them. The difference is what an operation takes; start-up and
//! warming up cancel out. The kernel is not counted, nor is the page in which it tells the time: how it does that is the
//! machine's business. One thread runs everything. Over Redis a real server on the loopback interface answers.
//!
//! `--check` fails when a path takes more than 110 % of what is recorded; also with another compiler or on another kind of
//! processor than recorded, where that much may be theirs: then record anew. Seen to fail with 147 % of an embedded hit
//! when `StampedeGuard::place` formatted a string that nobody needed.
#![allow(clippy::disallowed_methods, reason = "tests and benches make their own time and randomness")]

mod callgrind;
#[path = "../../work/page.rs"]
mod page;
mod paths;
#[path = "../../work/row.rs"]
mod row;
#[path = "../../../tests/support/mod.rs"]
mod support;

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs,
    process::{Command, ExitCode},
};
use support::RedisServer;

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
            eprintln!("instructions: of these options one: --check, --record");
            return ExitCode::FAILURE;
        }
    };
    if let Err(why) = callgrind::is_there() {
        eprintln!("instructions: {why}: install valgrind (Debian: apt-get install valgrind), then run this again");
        return ExitCode::FAILURE;
    }
    let counted = Recorded { made_with: MadeWith::here(), instructions: count() };
    let recorded = recorded();
    let grown = compare(&counted, recorded.as_ref());
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
            println!("If that is worth its price, record it, and say why in the commit:\n    {RECORD}");
            ExitCode::FAILURE
        }
    }
}

enum Mode {
    Show,
    Check,
    Record,
}

/// The file, and what is counted now.
#[derive(Serialize, Deserialize)]
struct Recorded {
    #[serde(rename = "made with")]
    made_with: MadeWith,
    instructions: BTreeMap<String, u64>,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct MadeWith {
    rustc: String,
    arch: String,
}

impl MadeWith {
    fn here() -> Self {
        let rustc = Command::new("rustc").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        Self { rustc: String::from_utf8_lossy(&rustc).trim().to_owned(), arch: env::consts::ARCH.to_owned() }
    }
}

fn recorded() -> Option<Recorded> {
    let text = fs::read_to_string(FILE).ok()?;
    Some(serde_json::from_str(&text).expect("benches/instructions.json is as --record writes it"))
}

/// What an operation takes, path by path.
fn count() -> BTreeMap<String, u64> {
    let server = RedisServer::start();
    let of = |path: &str| {
        let few = callgrind::count(path, FEW, &server.url());
        (callgrind::count(path, FEW + MORE, &server.url()).saturating_sub(few)) / u64::from(MORE)
    };
    let bare = of(paths::BARE);
    let less_bare = |path: &str, count: u64| if path == paths::HTTP { count.saturating_sub(bare) } else { count };
    paths::PATHS.iter().map(|path| ((*path).to_owned(), less_bare(path, of(path)))).collect()
}

/// Prints all of them; returns those that have grown, or are not recorded.
fn compare(counted: &Recorded, recorded: Option<&Recorded>) -> Vec<String> {
    println!("{:24} {:>9} {:>9} {:>6}", "instructions of", "recorded", "counted", "ratio");
    let mut grown = Vec::new();
    for (path, count) in &counted.instructions {
        let before = recorded.and_then(|recorded| recorded.instructions.get(path));
        let ratio = before.map_or(f64::INFINITY, |before| *count as f64 / *before as f64);
        let shown = before.map_or_else(|| "-".to_owned(), u64::to_string);
        println!("{path:24} {shown:>9} {count:>9} {ratio:>6.3}");
        if ratio > MOST {
            grown.push(format!("`{path}`"));
        }
    }
    if let Some(recorded) = recorded.filter(|recorded| recorded.made_with != counted.made_with) {
        let (MadeWith { rustc, arch }, here) = (&recorded.made_with, &counted.made_with);
        println!("recorded with {rustc} on {arch}, counted with {} on {}", here.rustc, here.arch);
    }
    grown
}

/// Operations whose cost cancels out,
const FEW: u32 = 100;
/// and those that are counted.
const MORE: u32 = 400;
const MOST: f64 = 1.1;
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../instructions.json");
const RECORD: &str =
    "cargo run --release --manifest-path benches/instructions/Cargo.toml --target-dir target -- --record";
