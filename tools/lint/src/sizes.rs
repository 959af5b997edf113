//! The longest functions and files, and the code of the engine.

use crate::{
    Findings,
    rust::{Token, closing},
    structure::File,
};
use std::collections::BTreeSet;

/// Maximum number of lines of a function, from `fn` to its closing brace. To be lowered with the longest function.
const FUNCTION_LINES: usize = 50;

/// Maximum number of code lines of the engine. To be lowered with the engine.
const ENGINE_LINES: usize = 3975;

/// Number of functions that are listed.
const LONGEST: usize = 5;

/// Files with more lines than this are listed.
const LONG_FILE: usize = 350;

/// The engine: what was in `src/engine` at the commit e0c4b3d, wherever it is now.
const ENGINE: [&str; 5] =
    ["src/engine.rs", "src/engine/", "src/near_cache.rs", "src/sync/shared.rs", "src/sync/alongside.rs"];

/// Files in `src/engine` that were not there at that commit.
const NOT_ENGINE: [&str; 2] = ["src/engine/breaker.rs", "src/engine/outage.rs"];

pub(crate) fn check(files: &[File<'_>], findings: &mut Findings) {
    let lines = engine_lines(files);
    findings.figures.push(format!("code lines of the engine: {lines} (at most {ENGINE_LINES})"));
    if lines > ENGINE_LINES {
        findings.broken.push(format!("src/engine.rs:1: the engine has {lines} code lines, at most {ENGINE_LINES}"));
    }
    let mut functions: Vec<_> = files.iter().flat_map(functions).collect();
    functions.sort_by(|a, b| b.cmp(a));
    let longest = functions.first().map_or(0, |(length, _)| *length);
    findings.figures.push(format!("longest function: {longest} lines (at most {FUNCTION_LINES})"));
    findings.figures.extend(functions.iter().take(LONGEST).map(|(length, name)| format!("  {length:4} {name}")));
    let too_long = functions.iter().filter(|(length, _)| *length > FUNCTION_LINES);
    findings
        .broken
        .extend(too_long.map(|(length, name)| format!("{name} has {length} lines, at most {FUNCTION_LINES}")));
    findings.figures.push(format!("files over {LONG_FILE} lines without tests:"));
    let long = files.iter().filter(|file| file.lines > LONG_FILE);
    findings.figures.extend(long.map(|file| format!("  {:4} {}", file.lines, file.path)));
}

/// The lines of the engine with code, without blank lines, comments and tests.
fn engine_lines(files: &[File<'_>]) -> usize {
    let belongs = |path: &str| {
        let listed = ENGINE.iter().any(|part| path == *part || (part.ends_with('/') && path.starts_with(part)));
        listed && !NOT_ENGINE.contains(&path)
    };
    files.iter().filter(|file| belongs(file.path)).map(|file| code_lines(&file.tokens)).sum()
}

/// The number of lines on which a token starts. So a string of several lines counts once.
fn code_lines(tokens: &[Token]) -> usize {
    tokens.iter().map(|token| token.line).collect::<BTreeSet<_>>().len()
}

/// The length in lines and the name of each function with a body.
fn functions(file: &File<'_>) -> Vec<(usize, String)> {
    let mut functions = Vec::new();
    for (at, pair) in file.tokens.windows(2).enumerate() {
        if pair[0].is("fn") && pair[1].is_word() {
            let mut body = at + 2;
            while !matches!(file.tokens[body].text.as_str(), "{" | ";") {
                if matches!(file.tokens[body].text.as_str(), "(" | "[") {
                    body = closing(&file.tokens, body);
                }
                body += 1;
            }
            if file.tokens[body].is("{") {
                let length = file.tokens[closing(&file.tokens, body)].line - pair[0].line + 1;
                functions.push((length, format!("{}:{}: {}", file.path, pair[0].line, pair[1].text)));
            }
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure;

    fn findings(files: &[(&str, &str)]) -> Findings {
        structure::check(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn functions_end_at_their_closing_brace() {
        let findings = findings(&[("src/lib.rs", "trait A { fn a(); }\nfn b(c: [u8; 2])\nwhere\n{\n    {}\n}\n")]);
        assert!(findings.figures.contains(&"     5 src/lib.rs:2: b".to_owned()), "{findings:?}");
    }

    #[test]
    fn functions_over_the_limit_are_reported() {
        let of = |lines: usize| findings(&[("src/lib.rs", &format!("fn a() {{{}}}", "\n".repeat(lines - 1)))]).broken;
        assert!(of(FUNCTION_LINES).is_empty());
        let expected = format!("src/lib.rs:1: a has {} lines, at most {FUNCTION_LINES}", FUNCTION_LINES + 1);
        assert_eq!(of(FUNCTION_LINES + 1), [expected]);
    }

    #[test]
    fn engine_lines_omit_blanks_comments_and_tests() {
        let engine =
            "mod breaker; mod flight;\n\n// A comment.\nfn a() {\n    b(); // another\n}\n#[cfg(test)]\nmod tests {}";
        let findings = findings(&[
            ("src/lib.rs", "mod engine; mod near_cache;"),
            ("src/engine.rs", engine),
            ("src/engine/breaker.rs", "fn c() {}"),
            ("src/engine/flight.rs", "fn d() {}"),
            ("src/near_cache.rs", "mod config;"),
            ("src/near_cache/config.rs", "fn e() {}"),
        ]);
        let expected = format!("code lines of the engine: {} (at most {ENGINE_LINES})", 4 + 1 + 1);
        assert!(findings.figures.contains(&expected), "{findings:?}");
    }
}
