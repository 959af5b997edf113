//! Words that hide the actor of a sentence, retired names, and test names that are too long.

use crate::{Files, Findings, rust};
use std::collections::BTreeMap;

const LIST: &str = include_str!("../words.txt");

/// Maximum number of actor-hiding words per 1,000 words in each group of files.
const MAX_RATE: f64 = 1.5;

/// Maximum length of a test name, in characters.
const MAX_TEST_NAME: usize = 60;

const ROOTS: [&str; 7] = ["src/", "tests/", "examples/", "benches/", "tools/", "docs/", "scripts/"];
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Text without line breaks: a comment block, or a paragraph of Markdown.
#[derive(Debug, Default)]
struct Paragraph {
    text: String,
    /// Where each line begins: its offset in `text` and its number.
    lines: Vec<(usize, usize)>,
}

pub(crate) fn check(files: &Files) -> Findings {
    let (hiding, retired) = (phrases(LIST, "[actors]"), phrases(LIST, "[retired]"));
    let mut findings = Findings::default();
    let mut groups: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for (path, text) in files {
        if !DOCUMENTS.contains(&path.as_str()) && !ROOTS.iter().any(|root| path.starts_with(root)) {
            continue;
        }
        let lines = prose(path, text);
        let (words, hits) = groups.entry(group(path)).or_default();
        for paragraph in paragraphs(&lines, false) {
            *words += paragraph.text.split_whitespace().count();
            let found = paragraph.find(&hiding);
            hits.extend(found.map(|(line, phrase)| format!("{path}:{line}: \"{phrase}\" hides the actor")));
        }
        for paragraph in paragraphs(&lines, true) {
            let found = paragraph.find(&retired);
            findings
                .broken
                .extend(found.map(|(line, phrase)| format!("{path}:{line}: \"{phrase}\" is a retired name")));
        }
        findings.broken.extend(long_test_names(path, text));
    }
    findings.figures.push(format!("words that hide the actor, per 1,000 (at most {MAX_RATE}):"));
    for (group, (words, hits)) in groups {
        let rate = 1000.0 * hits.len() as f64 / words.max(1) as f64;
        findings.figures.push(format!("  {group:6} {rate:4.1}  ({} of {words})", hits.len()));
        if rate > MAX_RATE {
            findings.broken.extend(hits);
        }
    }
    findings
}

fn group(path: &str) -> &'static str {
    match path {
        _ if path.ends_with(".md") => "docs",
        _ if path.starts_with("src/") => "src",
        _ => "tests",
    }
}

/// The phrases of one section of the list, the longest first, so that they win over their parts.
fn phrases<'a>(list: &'a str, section: &str) -> Vec<&'a str> {
    let lines = list.lines().skip_while(|line| *line != section).skip(1).take_while(|line| !line.starts_with('['));
    let mut phrases: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    phrases.sort_by_key(|phrase| std::cmp::Reverse(phrase.len()));
    phrases
}

/// The lines of a file that are read by people, with their numbers: comments, or all of Markdown.
fn prose(path: &str, text: &str) -> Vec<(usize, String)> {
    let numbered = (1..).zip(text.lines());
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("md") => numbered.map(|(line, text)| (line, text.trim().to_owned())).collect(),
        Some("rs") => rust::split(text).comments,
        Some("lua") => numbered.filter_map(|(line, text)| Some((line, comment(text, "--")?))).collect(),
        _ => numbered.filter_map(|(line, text)| Some((line, comment(text, "#")?))).collect(),
    }
}

/// The comment on a line of a language without block comments. A mark within quotes or within a word starts none.
fn comment(line: &str, mark: &str) -> Option<String> {
    let (mut quote, mut before) = (None, ' ');
    for (at, character) in line.char_indices() {
        match quote {
            None if line[at..].starts_with(mark) && before.is_whitespace() => {
                return Some(line[at..].trim_start_matches(['-', '#', '!']).trim().to_owned());
            }
            None if matches!(character, '"' | '\'') => quote = Some(character),
            Some(open) if open == character && before != '\\' => quote = None,
            _ => {}
        }
        before = character;
    }
    None
}

/// Joins adjacent lines. Leaves out code fences, and code in backticks unless `keep_code` is set.
fn paragraphs(lines: &[(usize, String)], keep_code: bool) -> Vec<Paragraph> {
    let mut paragraphs = vec![Paragraph::default()];
    let (mut last, mut in_fence, mut in_code) = (0, false, false);
    for (line, text) in lines {
        let is_fence = text.starts_with("```");
        in_fence = (in_fence && *line == last + 1) != is_fence;
        if *line != last + 1 || text.is_empty() || is_fence {
            paragraphs.push(Paragraph::default());
            in_code = false;
        }
        last = *line;
        let Some(paragraph) = paragraphs.last_mut().filter(|_| !in_fence && !is_fence) else { continue };
        paragraph.lines.push((paragraph.text.len(), *line));
        for character in text.chars() {
            in_code ^= character == '`';
            if character == '`' || !in_code || keep_code {
                paragraph.text.push(character);
            }
        }
        paragraph.text.push(' ');
    }
    paragraphs
}

impl Paragraph {
    /// Finds whole words, and returns the line and the phrase of each hit.
    fn find<'a>(&self, phrases: &[&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
        let text = self.text.to_ascii_lowercase();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let (mut hits, mut at) = (Vec::new(), 0);
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let hit =
                phrases.iter().find(|phrase| rest.strip_prefix(**phrase).is_some_and(|r| !r.starts_with(is_word)));
            if let Some(phrase) = hit {
                let line = self.lines.iter().rfind(|(offset, _)| *offset <= at).map_or(0, |(_, line)| *line);
                hits.push((line, *phrase));
            }
            // To the start of the next word.
            let skip = hit.map_or(0, |phrase| phrase.len());
            let rest = &rest[skip..];
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            at += skip + end + rest[end..].find(is_word).unwrap_or(rest.len() - end);
        }
        hits.into_iter()
    }
}

fn long_test_names(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let tokens = rust::split(text).tokens;
    let mut broken = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        // `#[test]`, `#[tokio::test(..)]`, and further attributes before the function.
        let is_test = token.is("test") && at > 1 && (tokens[at - 1].is("[") || tokens[at - 1].is("::"));
        let signature = tokens[at..].iter().take_while(|token| !token.is("{")).skip_while(|token| !token.is("fn"));
        if let Some(name) = signature.skip(1).find(|_| is_test)
            && name.text.len() > MAX_TEST_NAME
        {
            let (line, name) = (name.line, &name.text);
            broken.push(format!(
                "{path}:{line}: a test name of {} characters (at most {MAX_TEST_NAME}): {name}",
                name.len()
            ));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let list = ["so many", "who", "behind"];
        paragraphs(&prose(path, text), false).iter().flat_map(|paragraph| paragraph.find(&list)).collect()
    }

    #[test]
    fn comments_of_each_language_are_read() {
        assert_eq!(
            hits("a.rs", "let who = \"who\"; // who's\n/// Whoever, so\n/// many."),
            [(1, "who"), (2, "so many")]
        );
        assert_eq!(hits("a.lua", "local who = '-- who' -- Who\n-- behind"), [(1, "who"), (2, "behind")]);
        assert_eq!(hits("a.sh", "#!/bin/who\necho \"$# who\" who#who # who"), [(1, "who"), (2, "who")]);
    }

    #[test]
    fn code_in_comments_and_documents_is_not_read() {
        let text = "`who` a `b\nwho c` behind\n```sh\nwho\n\nwho\n```\nso many";
        assert_eq!(hits("a.md", text), [(2, "behind"), (8, "so many")]);
        assert_eq!(hits("a.rs", "/// ```\n/// who\n/// ```\nfn a() {}\n/// who"), [(5, "who")]);
    }

    #[test]
    fn retired_names_are_found_in_backticks() {
        let lines = prose("a.md", "The `bulkhead(3)`.");
        let found: Vec<_> = paragraphs(&lines, true).iter().flat_map(|p| p.find(&["bulkhead"])).collect();
        assert_eq!(found, [(1, "bulkhead")]);
    }

    #[test]
    fn phrases_that_are_commented_out_are_off() {
        assert_eq!(phrases("# a\n[actors]\nb\nc d\n\n[retired]\n#e\n", "[actors]"), ["c d", "b"]);
        assert!(phrases("[actors]\nb\n[retired]\n#e\n", "[retired]").is_empty());
    }

    #[test]
    fn long_test_names_are_found() {
        let name = "a".repeat(61);
        let text =
            format!("#[tokio::test(b)]\n#[ignore]\nasync fn {name}() {{}}\nfn {name}() {{}}\n#[test]\nfn a() {{}}");
        let found = long_test_names("a.rs", &text);
        assert_eq!(found, [format!("a.rs:3: a test name of 61 characters (at most 60): {name}")]);
    }
}
