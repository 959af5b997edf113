//! Checks what the compiler cannot: the words of comments and documents, the figures of README.md, and the imports within
//! `src/`.
//!
//! ```console
//! cargo run -q -p lint -- words        # words that hide the actor, retired names, long test names
//! cargo run -q -p lint -- quotes       # the comparison in README.md is that of docs/lab
//! cargo run -q -p lint -- structure    # circles of files, knots of top-level modules, sizes, states and tables of the engine
//! cargo run -q -p lint -- examples     # public functions without an example
//! cargo run -q -p lint -- all
//! ```
//!
//! Prints one line `file:line: ...` for each broken rule, and exits with 1 if there is one. `words.txt` is the list of
//! words.

mod circles;
mod engine;
mod examples;
mod imports;
mod modules;
mod quotes;
mod rust;
mod sizes;
mod structure;
mod words;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

/// The text of each file by its path from the root of the repository.
type Files = BTreeMap<String, String>;

/// What a check found.
#[derive(Debug, Default)]
struct Findings {
    /// Figures, which are printed in any case.
    figures: Vec<String>,
    /// Broken rules, each as `file:line: ...`.
    broken: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let checks: &[fn(&Files) -> Findings] = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["words"] => &[words::check],
        ["quotes"] => &[quotes::check],
        ["structure"] => &[structure::check],
        ["examples"] => &[examples::check],
        ["all"] => &[words::check, quotes::check, structure::check, examples::check],
        _ => {
            eprintln!("usage: cargo run -q -p lint -- words|quotes|structure|examples|all");
            return ExitCode::from(2);
        }
    };
    let files = match read_files() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("lint: {error}");
            return ExitCode::from(2);
        }
    };
    let mut broken = 0;
    for check in checks {
        let findings = check(&files);
        findings.figures.iter().for_each(|line| println!("{line}"));
        findings.broken.iter().for_each(|line| println!("{line}"));
        broken += findings.broken.len();
    }
    if broken > 0 {
        eprintln!("lint: {broken} broken");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Reads the files that git tracks or would track. Other files, such as build output, are not the project's.
fn read_files() -> Result<Files, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.lua", "*.sh", "*.md"])
        .current_dir(&root)
        .output()
        .map_err(|error| format!("git does not run: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let mut files = Files::new();
    for path in String::from_utf8_lossy(&listed.stdout).lines() {
        // A tracked file may have been deleted in the working tree.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            files.insert(path.to_owned(), text);
        }
    }
    Ok(files)
}
