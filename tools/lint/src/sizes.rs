//! The longest functions and files.

use crate::{Findings, rust::closing, structure::File};

/// Maximum number of lines of a function, from `fn` to its closing brace. To be lowered with the longest function.
const FUNCTION_LINES: usize = 50;

/// Number of functions that are listed.
const LONGEST: usize = 5;

/// Files with more lines than this are listed.
const LONG_FILE: usize = 350;

pub(crate) fn check(files: &[File<'_>], findings: &mut Findings) {
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
}
