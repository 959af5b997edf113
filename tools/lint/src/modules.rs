//! The code lines of each top-level module.

use crate::{Files, Findings};
use std::collections::BTreeMap;

/// Maximum number of code lines of the library. To be lowered with the library.
const LINES: usize = 17914;

/// Maximum number of code lines of each module. To be lowered with the module.
const MODULE_LINES: [(&str, usize); 31] = [
    ("backoff", 17),
    ("cache_status", 27),
    ("clock", 69),
    ("codec", 388),
    ("config", 255),
    ("engine", 3734),
    ("error", 140),
    ("file_values", 24),
    ("fingerprint", 420),
    ("guard", 76),
    ("guide", 13),
    ("health", 52),
    ("hot_keys", 140),
    ("http", 2784),
    ("key", 501),
    ("layout", 21),
    ("lib", 95),
    ("lock", 1004),
    ("near_cache", 120),
    ("operations", 31),
    ("outage_cache", 118),
    ("policy", 145),
    ("redis", 3065),
    ("settings", 191),
    ("store", 1216),
    ("sync", 514),
    ("telemetry", 954),
    ("testing", 677),
    ("typed", 961),
    ("uncached", 68),
    ("versions", 94),
];

/// Ends of files that only tests use.
const TEST_FILES: [&str; 3] = ["/tests.rs", "/schedules.rs", "fuzzing.rs"];

pub(crate) fn check(files: &Files, findings: &mut Findings) {
    let modules = modules(files);
    let total = modules.values().sum();
    compare("src/lib.rs", "all modules", total, Some(LINES), findings);
    for (module, lines) in &modules {
        let limit = MODULE_LINES.iter().find(|(name, _)| name == module).map(|(_, limit)| *limit);
        compare(&format!("src/{module}.rs"), module, *lines, limit, findings);
    }
}

/// Prints the lines, and reports them if there are more than the limit. A module without one counts in the sum alone.
fn compare(path: &str, name: &str, lines: usize, limit: Option<usize>, findings: &mut Findings) {
    let shown = limit.map_or_else(String::new, |limit| format!(" (at most {limit})"));
    findings.figures.push(format!("code lines of {name}: {lines}{shown}"));
    if let Some(limit) = limit.filter(|limit| lines > *limit) {
        findings.broken.push(format!("{path}:1: {name} has {lines} code lines, at most {limit}"));
    }
}

fn modules(files: &Files) -> BTreeMap<&str, usize> {
    let mut modules = BTreeMap::new();
    for (path, text) in files {
        let Some(below) = path.strip_prefix("src/").filter(|_| path.ends_with(".rs")) else { continue };
        if TEST_FILES.iter().any(|end| path.ends_with(end)) || path.contains("differential") {
            continue;
        }
        let top = below.split('/').next().unwrap_or(below).trim_end_matches(".rs");
        *modules.entry(top).or_default() += code_lines(text);
    }
    modules
}

/// The number of lines that are neither blank nor a comment, up to the tests at the end of the file.
fn code_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let end = (0..lines.len()).find(|at| starts_tests(&lines[*at..])).unwrap_or(lines.len());
    lines[..end].iter().filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Reports whether a module of tests starts here, with its attributes.
fn starts_tests(lines: &[&str]) -> bool {
    let is_cfg = |line: &str| line.starts_with("#[cfg(test") || line.starts_with("#[cfg(all(test");
    let item = lines.iter().skip(1).find(|line| !line.is_empty() && !line.starts_with("#["));
    let is_module = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.iter().take(2).any(|word| *word == "mod") && line.contains('{')
    };
    lines.first().is_some_and(|line| is_cfg(line)) && item.is_some_and(|line| is_module(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure;

    fn files(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn code_lines_omit_blanks_comments_and_tests() {
        let text = "use a;\n\n// A comment.\n#[cfg(test)]\nmod b;\nfn c() {\n    d(); // another\n}\n\
            #[cfg(all(test, feature = \"e\"))]\n#[f]\npub(crate) mod g {\n    fn h() {}\n}\n";
        assert_eq!(code_lines(text), 6);
    }

    #[test]
    fn lines_are_counted_by_top_level_module() {
        let files = files(&[
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b;\nmod tests;"),
            ("src/a/b.rs", "fn c() {}"),
            ("src/a/b/d.rs", "\nfn e() {}"),
            ("src/a/tests.rs", "fn f() {}"),
            ("src/a/differential.rs", "fn g() {}"),
            ("src/a/h.lua", "return 1"),
            ("tests/i.rs", "fn j() {}"),
        ]);
        assert_eq!(modules(&files), BTreeMap::from([("a", 4), ("lib", 1)]));
    }

    #[test]
    fn modules_over_their_limit_are_reported() {
        let of = |lines: usize| structure::check(&files(&[("src/backoff.rs", &"a;\n".repeat(lines))])).broken;
        assert!(of(17).is_empty());
        assert_eq!(of(18), ["src/backoff.rs:1: backoff has 18 code lines, at most 17"]);
    }
}
