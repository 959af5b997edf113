//! Counts what one operation executes of the library: how much a reader of that operation has to follow.
//!
//! ```text
//! cargo suite --test walk                        # builds it, and compares with tools/walk/walk.json
//! target/debug/walk                              # counts
//! target/debug/walk --record                     # writes walk.json
//! target/debug/walk --list "fetch miss and fill" # prints the functions and the concepts of an operation
//! ```
//!
//! Each operation runs over a real Redis, with warm connections and all features, in a build without optimisation.
//! Callgrind counts from the request until the last task of the operation has ended.
//!
//! - **functions** and **lines** of the library that were executed. A closure, the body of an `async` function and a
//!   derived implementation are functions, too. The instances of a generic function are one. A line counts if an
//!   instruction of its own was executed.
//! - **files** that have such a line
//! - **concepts**: the structs, enums, aliases and traits of the library that the signatures of executed functions
//!   name, a method's own type included; and those of them that `src/engine` defines
//!
//! `--check` fails if an operation takes more functions or lines than [`SLACK`] above the record, in each of [`RUNS`] runs:
//! the clock and the order of tasks decide what runs beside an operation. A record only falls. Another compiler than
//! recorded may count differently: record again in this case, without another change.
#![allow(clippy::disallowed_methods, reason = "tests and benches make their own time and randomness")]

#[path = "../../../benches/instructions/src/callgrind.rs"]
mod callgrind;
mod concepts;
mod executed;
#[path = "../../../benches/instructions/src/made_with.rs"]
mod made_with;
mod operations;
#[path = "../../../benches/work/page.rs"]
mod page;
#[path = "../../../benches/work/row.rs"]
mod row;

use concepts::Source;
use executed::Executed;
use made_with::MadeWith;
use operations::{MEASURED, OPERATIONS};
use serde::{Deserialize, Serialize};
use stampede_guard_support::RedisServer;
use std::{collections::BTreeMap, env, fs, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--list", operation] if OPERATIONS.contains(&operation) => return counted(|| list(operation)),
        [] | ["--check" | "--record"] => {}
        [operation, url] if OPERATIONS.contains(&operation) => {
            operations::run(operation, url);
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("usage: walk [--check | --record | --list OPERATION], an operation is one of {OPERATIONS:?}");
            return ExitCode::FAILURE;
        }
    }
    counted(|| {
        let recorded = recorded();
        let is_enough = |operation: &str, walk: &Walk| match args[..] {
            ["--check"] => recorded.as_ref().is_none_or(|recorded| recorded.has(operation, walk)),
            ["--record"] => false,
            _ => true,
        };
        let counted = Recorded { made_with: MadeWith::here(), walk: count(is_enough) };
        let grown = compare(&counted, recorded.as_ref());
        if args == ["--record"] {
            let json = serde_json::to_string_pretty(&counted).expect("numbers and text");
            fs::write(FILE, json + "\n").expect("the file can be written");
            println!("recorded in tools/walk/walk.json");
        } else if args == ["--check"] && !grown.is_empty() {
            println!("\nwalk: more than tools/walk/walk.json has: {}", grown.join(", "));
            println!("`--list OPERATION` prints the functions. If the change is worth its cost, record it.");
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    })
}

/// Runs this if valgrind can be run.
fn counted(count: impl FnOnce() -> ExitCode) -> ExitCode {
    if let Err(why) = callgrind::is_there() {
        eprintln!("walk: {why}: install valgrind (Debian: apt-get install valgrind), then run this again");
        return ExitCode::FAILURE;
    }
    count()
}

/// The content of the file, and of a new count.
#[derive(Serialize, Deserialize)]
struct Recorded {
    #[serde(rename = "made with")]
    made_with: MadeWith,
    walk: BTreeMap<String, Walk>,
}

#[derive(Serialize, Deserialize)]
struct Walk {
    functions: usize,
    lines: usize,
    files: usize,
    concepts: usize,
    #[serde(rename = "concepts of the engine")]
    of_engine: usize,
}

fn recorded() -> Option<Recorded> {
    let text = fs::read_to_string(FILE).ok()?;
    Some(serde_json::from_str(&text).expect("tools/walk/walk.json is as --record writes it"))
}

impl Recorded {
    fn has(&self, operation: &str, walk: &Walk) -> bool {
        let has = |before: &Walk| walk.functions <= before.functions + SLACK.0 && walk.lines <= before.lines + SLACK.1;
        self.walk.get(operation).is_some_and(has)
    }
}

/// Counts each operation until it is enough, and returns the least of all [`RUNS`] if none is.
fn count(is_enough: impl Fn(&str, &Walk) -> bool) -> BTreeMap<String, Walk> {
    let folder = folder();
    let source = Source::read(&folder);
    let once = |operation: &str| {
        let server = RedisServer::start(); // without what an earlier run has stored
        let executed = Executed::of(operation, MEASURED, &server.url(), &folder);
        let concepts = source.concepts(&executed.lines);
        Walk {
            functions: executed.functions.len(),
            lines: executed.line_count(),
            files: executed.lines.len(),
            of_engine: concepts.iter().filter(|(_, file)| file.starts_with("engine")).count(),
            concepts: concepts.len(),
        }
    };
    let least = |operation: &str| {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            let walk = once(operation);
            if is_enough(operation, &walk) {
                return walk;
            }
            runs.push(walk);
        }
        runs.into_iter().min_by_key(|walk| (walk.lines, walk.functions)).expect("a run")
    };
    OPERATIONS.map(|operation| (operation.to_owned(), least(operation))).into()
}

fn list(operation: &str) -> ExitCode {
    let (server, folder) = (RedisServer::start(), folder());
    let executed = Executed::of(operation, MEASURED, &server.url(), &folder);
    executed.functions.iter().for_each(|(file, name)| println!("function {file} {name}"));
    let concepts = Source::read(&folder).concepts(&executed.lines);
    concepts.iter().for_each(|(name, file)| println!("concept {name} ({file})"));
    ExitCode::SUCCESS
}

/// Prints all operations. Returns the operations that have grown or are not recorded.
fn compare(counted: &Recorded, recorded: Option<&Recorded>) -> Vec<String> {
    println!(
        "{:22} {:>15} {:>15} {:>7} {:>9} {:>10}",
        "counted (recorded)", "functions", "lines", "files", "concepts", "of engine"
    );
    let mut grown = Vec::new();
    for (operation, walk) in &counted.walk {
        let before = recorded.and_then(|recorded| recorded.walk.get(operation));
        let shown = |count, before: Option<usize>| {
            format!("{count} ({})", before.map_or_else(|| "-".to_owned(), |before| before.to_string()))
        };
        let (functions, lines) = (before.map(|before| before.functions), before.map(|before| before.lines));
        println!(
            "{operation:22} {:>15} {:>15} {:>7} {:>9} {:>10}",
            shown(walk.functions, functions),
            shown(walk.lines, lines),
            walk.files,
            walk.concepts,
            walk.of_engine
        );
        if !recorded.is_some_and(|recorded| recorded.has(operation, walk)) {
            grown.push(format!("`{operation}`"));
        }
    }
    if let Some(recorded) = recorded.filter(|recorded| recorded.made_with != counted.made_with) {
        println!("recorded with {}, counted with {}", recorded.made_with, counted.made_with);
    }
    grown
}

/// The library's source, as the compiler names it.
fn folder() -> PathBuf {
    fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../../src")).expect("the library's source")
}

/// Number of functions and of lines that may be executed above the record: the order of tasks differs.
const SLACK: (usize, usize) = (3, 8);
/// Number of runs. On a busy machine the task of the heartbeats is polled within an operation (4 functions, 30 lines), and
/// invalidations are forgotten once a second (1 function).
const RUNS: usize = 10;
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/walk.json");
