//! Circles of files and knots of top-level modules in `src/`, and the figures of [`engine`], [`modules`] and
//! [`sizes`].

use crate::{
    Files, Findings,
    circles::circles,
    engine,
    imports::{Import, declared_modules, imports},
    modules,
    rust::{self, Token},
    sizes,
};
use std::collections::{BTreeMap, BTreeSet};

/// A file that is compiled without `cfg(test)`.
pub(crate) struct File<'a> {
    pub(crate) path: &'a str,
    module: String,
    /// Without items under `#[cfg(test)]`.
    pub(crate) tokens: Vec<Token>,
    /// Without the lines of items under `#[cfg(test)]`.
    pub(crate) lines: usize,
}

/// An import as an edge between two files, or between two top-level modules.
struct Edge<'a> {
    from: &'a str,
    to: &'a str,
    /// The importing file.
    path: &'a str,
    import: &'a Import,
}

pub(crate) fn check(files: &Files) -> Findings {
    let (found, defining) = product(files);
    let names: BTreeSet<String> = defining.keys().cloned().collect();
    let imported: Vec<_> = found.iter().map(|file| imports(&file.tokens, &file.module, &names)).collect();
    let all = || found.iter().zip(&imported).flat_map(|(file, list)| list.iter().map(move |import| (file, import)));
    let between_files: Vec<Edge<'_>> =
        all().map(|(file, i)| Edge { from: file.path, to: defining[&i.module], path: file.path, import: i }).collect();
    let between_modules: Vec<Edge<'_>> = all()
        .map(|(file, i)| Edge { from: top(&file.module), to: top(&i.module), path: file.path, import: i })
        .collect();

    let mut findings = Findings::default();
    let circles = circles_of(&between_files);
    let knots = circles_of(&between_modules);
    findings.figures.push(format!("files in src/: {}", found.len()));
    findings.figures.push(format!("circles of files: {} (at most 0)", circles.len()));
    findings.figures.extend(members("circle", &circles));
    findings.broken.extend(ties("circle", &circles, &between_files));
    findings.figures.push(format!("knots of top-level modules: {} (at most 0)", knots.len()));
    findings.figures.extend(members("knot", &knots));
    findings.broken.extend(ties("knot", &knots, &between_modules));
    sizes::check(&found, &mut findings);
    modules::check(files, &mut findings);
    engine::check(&found, &mut findings);
    findings
}

/// The files that are compiled without `cfg(test)`, and the file of each of their modules.
fn product(files: &Files) -> (Vec<File<'_>>, BTreeMap<String, &str>) {
    let (mut found, mut modules) = (Vec::new(), BTreeMap::new());
    let mut open = vec!["crate".to_owned()];
    while let Some(module) = open.pop() {
        let path = if module == "crate" { "crate::lib" } else { &module };
        let path = path.replacen("crate", "src", 1).replace("::", "/");
        let candidates = [format!("{path}.rs"), format!("{path}/mod.rs")];
        let Some((path, text)) = candidates.iter().find_map(|path| files.get_key_value(path)) else { continue };
        let (tokens, lines_of_tests) = rust::without_tests(&rust::split(text).tokens);
        modules.insert(module.clone(), path.as_str());
        for (declared, is_file) in declared_modules(&tokens, &module) {
            if is_file {
                open.push(declared);
            } else {
                modules.insert(declared, path);
            }
        }
        found.push(File { path, module, tokens, lines: text.lines().count() - lines_of_tests });
    }
    found.sort_by_key(|file| file.path);
    (found, modules)
}

/// The first segment below the crate, or `crate` for `src/lib.rs`.
fn top(module: &str) -> &str {
    module.split("::").nth(1).unwrap_or("crate")
}

fn circles_of<'a>(edges: &[Edge<'a>]) -> Vec<BTreeSet<&'a str>> {
    circles(edges.iter().map(|edge| (edge.from, edge.to)))
}

/// The members of each circle.
fn members(what: &str, circles: &[BTreeSet<&str>]) -> Vec<String> {
    let member = |(number, circle): (usize, &BTreeSet<&str>)| {
        let names: Vec<&str> = circle.iter().copied().collect();
        format!("  {what} {number}: {}", names.join(" "))
    };
    (1..).zip(circles).map(member).collect()
}

/// The imports that tie each circle, one line for each importing file and imported module.
fn ties(what: &str, circles: &[BTreeSet<&str>], edges: &[Edge<'_>]) -> Vec<String> {
    let mut grouped: BTreeMap<_, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for edge in edges.iter().filter(|edge| edge.from != edge.to) {
        let circle = circles.iter().position(|circle| circle.contains(edge.from) && circle.contains(edge.to));
        if let Some(circle) = circle {
            let key = (circle + 1, edge.path, edge.from, edge.to, &edge.import.module);
            let (line, names) = grouped.entry(key).or_insert((edge.import.line, BTreeSet::new()));
            *line = edge.import.line.min(*line);
            names.insert(edge.import.name.split("::").next().filter(|name| !name.is_empty()).unwrap_or("self"));
        }
    }
    let mut lines = Vec::new();
    for ((circle, path, from, to, module), (line, names)) in grouped {
        let names: Vec<&str> = names.into_iter().collect();
        lines.push(format!("{path}:{line}: {what} {circle}: {from} -> {to}: {module}::{{{}}}", names.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Findings {
        check(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn circles_of_files_are_reported_with_their_imports() {
        let findings = findings(&[
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b;\nmod c;\npub use b::B;\npub use b::D;"),
            ("src/a/b.rs", "use super::c::C;"),
            ("src/a/c.rs", "use super::{\n    B,\n};"),
        ]);
        let expected = [
            "src/a.rs:3: circle 1: src/a.rs -> src/a/b.rs: crate::a::b::{B, D}",
            "src/a/b.rs:1: circle 1: src/a/b.rs -> src/a/c.rs: crate::a::c::{C}",
            "src/a/c.rs:2: circle 1: src/a/c.rs -> src/a.rs: crate::a::{B}",
        ];
        assert_eq!(findings.broken, expected);
    }

    #[test]
    fn knots_need_no_circle_of_files() {
        let findings = findings(&[
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "mod c; use crate::b::d::D;"),
            ("src/a/c.rs", ""),
            ("src/b.rs", "pub mod d; use crate::a::c::C;"),
            ("src/b/d.rs", ""),
        ]);
        let expected = ["src/a.rs:1: knot 1: a -> b: crate::b::d::{D}", "src/b.rs:1: knot 1: b -> a: crate::a::c::{C}"];
        assert_eq!(findings.broken, expected);
    }

    #[test]
    fn tests_are_no_part_of_the_product() {
        let findings = findings(&[
            ("src/lib.rs", "mod a; mod b; #[cfg(test)] mod c;"),
            ("src/a.rs", "use crate::b::B;"),
            ("src/b.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ("src/c.rs", "use crate::a::A; use super::*;"),
        ]);
        assert_eq!(findings.figures[0], "files in src/: 3");
        assert!(findings.broken.is_empty(), "{findings:?}");
    }
}
