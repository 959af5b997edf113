//! What the documents say and name: tests, files, events, reasons, pages.
#![cfg(feature = "http")]

use stampede_guard::http::Uncached;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A name in back-quotes is `binary::module`, `binary::module::test` or `lib::module::test`, and shows that a sentence
/// of the document holds.
#[test]
fn every_test_that_the_documents_name_exists() {
    for (document, least) in [("docs/guarantees.md", 40), ("src/guide/layers.md", 20), ("docs/rfc9111.md", 100)] {
        let document = read(document);
        let quoted = document.split('`').skip(1).step_by(2).filter(|quoted| !quoted.ends_with("::"));
        let found = quoted.filter_map(named).map(Named::exists).count();
        assert!(found > least, "{found}");
    }
}

/// A row is `| clause | MUST .. | what | tests |`.
#[test]
fn every_requirement_of_the_rfc_has_a_test() {
    let document = read("docs/rfc9111.md");
    let required = rows(&document).filter(|row| row.len() == 6 && row[2].starts_with(['M', 'S']));
    assert!(required.inspect(|row| names_tests(row[row.len() - 2])).count() > 50);
}

/// The last cell of a row names its tests in a comment, which readers do not see.
#[test]
fn every_row_of_the_layers_has_a_test() {
    let document = read("src/guide/layers.md");
    let rows = document.lines().filter(|line| line.starts_with("| ") && !line.ends_with(" reason |"));
    let rows = rows.filter(|line| !line.starts_with("| protocol |"));
    assert!(rows.inspect(|row| names_tests(row.split_once("<!--").map_or("", |(_, tests)| tests))).count() > 20);
}

/// A row is `| detail | meaning | way out |`.
#[test]
fn every_detail_of_cache_status_is_documented() {
    let document = read("src/guide/uncached.md");
    let found: Vec<_> = rows(&document).filter(|row| row.len() == 5).map(|row| row[1].replace('`', "")).collect();
    let known: Vec<_> =
        ["detail", "---"].into_iter().chain(Uncached::ALL.iter().map(|reason| reason.as_str())).collect();
    assert_eq!(found, known);
}

/// A row is `| level | message | meaning | what to do |`. Seen to fail with an event that the document lacks.
#[test]
fn every_event_is_documented() {
    let document = read("src/guide/log_lines.md");
    let documented: BTreeSet<_> = rows(&document)
        .filter(|row| row.len() == 6 && !matches!(row[1], "level" | "---"))
        .map(|row| (row[1].replace('`', ""), row[2].to_owned()))
        .collect();
    let mut emitted = BTreeSet::new();
    for file in sources(&root().join("src")) {
        emitted.extend(events(&fs::read_to_string(file).expect("the file is there")));
    }
    assert!(emitted.len() > 20, "{emitted:?}");
    assert_eq!(documented, emitted);
}

/// Seen to fail with a file that had moved.
#[test]
fn files_named_by_architecture_exist() {
    let is_path =
        |word: &&str| !word.contains('\n') && [".rs", ".lua", ".md", "/"].iter().any(|end| word.ends_with(end));
    let architecture = read(ARCHITECTURE);
    let paths: Vec<_> = architecture.split('`').skip(1).step_by(2).filter(is_path).collect();
    for path in &paths {
        assert!(root().join("src").join(path).exists() || root().join(path).exists(), "{path}");
    }
    assert!(paths.len() > 150, "{}", paths.len());
}

#[test]
fn architecture_sequences_need_no_type_names() {
    let is_type = |word: &str| {
        let hump = word.as_bytes().windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
        hump || word.contains("::")
    };
    let sequences = section("Four sequences");
    let words = sequences.split(|c: char| !(c.is_alphanumeric() || c == ':' || c == '_'));
    let types: Vec<_> = words.filter(|word| is_type(word)).collect();
    assert!(types.is_empty(), "{types:?}");
}

#[test]
fn architecture_glossary_has_at_most_15_words() {
    let rows = section("Glossary").lines().filter(|line| line.starts_with("| ")).count();
    assert!((2..=1 + 15).contains(&rows), "{rows}"); // the first row is the head of the table
}

/// A front page is read in a minute. A promise is a line of "What you get", without its link targets.
#[test]
fn readme_has_at_most_140_lines_and_short_promises() {
    let readme = read("README.md");
    assert!(readme.lines().count() <= 140, "{} lines", readme.lines().count());
    let (_, rest) = readme.split_once("\n## What you get\n").expect("the section is there");
    let promises = rest.split("\n## ").next().expect("a text").split("\n- ").skip(1);
    let words: Vec<_> = promises.map(|promise| promise.split_whitespace().count()).collect();
    assert!(words.len() <= 8 && words.iter().all(|count| *count <= 15), "{words:?}");
    assert!(words.iter().sum::<usize>() <= 150, "{words:?}");
}

/// Also the links between documents of the repository. Pages of the guide lead on docs.rs to items, not to files.
#[test]
fn relative_links_of_documents_lead_to_files() {
    let mut found = 0;
    for document in ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/guarantees.md", "docs/rfc9111.md"] {
        let text = read(document);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains(':')) {
            let path = root().join(document).parent().expect("a directory").join(target);
            assert!(path.exists(), "{document} links to {target}");
            found += 1;
        }
    }
    assert!(found > 40, "{found}");
}

/// Each page is listed, defines the pages that it links to, and docs.rs has all of them. On docs.rs the definitions of
/// links.md count, because they come first.
#[test]
fn links_between_pages_of_the_guide_are_defined() {
    let (guide, links) = (read("src/guide.rs"), read("src/guide/links.md"));
    let pages = fs::read_dir(root().join("src/guide")).expect("a directory");
    let pages: BTreeSet<_> =
        pages.filter_map(|page| Some(page.ok()?.path().file_stem()?.to_str()?.to_owned())).collect();
    let pages = pages.iter().filter(|page| *page != "links");
    for page in pages.clone() {
        assert!(guide.contains(&format!("[{page}]")), "src/guide.rs does not list {page}");
        assert!(links.contains(&format!("[{page}]: crate::guide::{page}\n")), "links.md lacks {page}");
        let text = read(&format!("src/guide/{page}.md"));
        for other in pages.clone() {
            let (used, defined) =
                (text.contains(&format!("][{other}]")), text.contains(&format!("[{other}]: {other}.md\n")));
            assert_eq!(used, defined, "{page} and its link to {other}");
        }
    }
    assert!(pages.count() > 15);
}

/// Returns a section of the architecture guide.
fn section(title: &str) -> String {
    let architecture = read(ARCHITECTURE);
    let (_, rest) = architecture.split_once(&format!("\n# {title}\n")).expect("the section exists");
    rest.split_once("\n# ").map_or(rest, |(section, _)| section).to_owned()
}

/// Returns level and message of each event in a source file: the rows of the table of events, and events beside it. The
/// message of the latter is the last literal of the macro.
fn events(source: &str) -> Vec<(String, String)> {
    let rows = ["ERROR", "WARN", "INFO", "DEBUG"].map(|level| {
        let found = source.match_indices(level).filter(|(at, _)| !source[..*at].ends_with('"')); // a command of Redis
        found.map(move |(at, _)| (level, &source[at + level.len()..])).collect::<Vec<_>>()
    });
    // A level may have a condition.
    let row = |(level, rest): (&str, &str)| {
        let rest = rest.strip_prefix('[').map_or(Some(rest), |rest| rest.split_once(']').map(|(_, rest)| rest))?;
        let (message, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        Some((level.to_owned(), message.to_owned()))
    };
    let macros = ["error", "warn", "info", "debug", "trace"].map(|level| (format!("tracing::{level}!("), Some(level)));
    let macros = macros.into_iter().chain([("event!(".to_owned(), None)]);
    let found = macros.flat_map(|(name, level)| {
        source.match_indices(&name).map(move |(at, name)| (&source[at + name.len()..], level)).collect::<Vec<_>>()
    });
    let event = |(rest, level): (&str, Option<&str>)| {
        let text = rest.split_once(");")?.0;
        let level = level
            .map_or_else(|| text.split_once(',').map(|(level, _)| level.trim().to_lowercase()), |l| Some(l.into()));
        let (_, message) = text.trim_end().trim_end_matches(',').strip_suffix('"')?.rsplit_once('"')?;
        Some((level?.to_uppercase(), message.to_owned()))
    };
    rows.into_iter().flatten().filter_map(row).chain(found.filter_map(event)).collect()
}

/// Returns the Rust files below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let (directories, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    directories.iter().flat_map(|directory| sources(directory)).chain(files).collect()
}

fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    document.lines().map(|line| line.split('|').map(str::trim).collect())
}

fn names_tests(cell: &str) {
    let mut shown = cell.split('`').skip(1).step_by(2).peekable();
    assert!(shown.peek().is_some() && shown.all(|quoted| named(quoted).is_some()), "no test: {cell:?}");
}

/// A test or a whole module of tests, and the files that may contain it.
struct Named<'a> {
    quoted: &'a str,
    files: Vec<PathBuf>,
    test: Option<&'a str>,
}

fn named(quoted: &str) -> Option<Named<'_>> {
    let (binary, rest) = quoted.split_once("::")?;
    if binary == "lib" {
        let (path, test) = rest.rsplit_once("::")?;
        // A module `tests` is in its parent's file, or in its own file.
        let modules = [path, path.strip_suffix("::tests").unwrap_or(path)];
        let files = modules.map(|path| root().join("src").join(path.replace("::", "/")).with_extension("rs"));
        return Some(Named { quoted, files: files.to_vec(), test: Some(test) });
    }
    // The model is a package of its own.
    let directory = root().join(if binary == "model" { "tools/model/src".into() } else { format!("tests/{binary}") });
    let file = |module: &str| directory.join(module.replace("::", "/")).with_extension("rs");
    let (file, test) = match rest.rsplit_once("::") {
        Some((module, test)) if !file(rest).exists() => (file(module), Some(test)),
        _ => (file(rest), None),
    };
    directory.is_dir().then(|| Named { quoted, files: vec![file], test })
}

impl Named<'_> {
    fn exists(self) {
        let sources: Vec<_> = self.files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        assert!(!sources.is_empty(), "`{}`: none of {:?}", self.quoted, self.files);
        let test = self.test.map(|test| format!("fn {test}("));
        let found = test.is_none_or(|test| sources.iter().any(|source| source.contains(&test)));
        assert!(found, "`{}` is not in {:?}", self.quoted, self.files);
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).expect(document)
}

const ARCHITECTURE: &str = "docs/architecture.md";
