//! Resolves the paths that a file names to the modules that define them.

use crate::rust::{Token, closing};
use std::collections::{BTreeMap, BTreeSet};

/// A path to another module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    /// The deepest module of the path, such as `crate::engine::flight`.
    pub(crate) module: String,
    /// What the path names within that module. Empty if it names the module.
    pub(crate) name: String,
}

/// One name of a `use` statement.
pub(crate) struct Leaf {
    line: usize,
    pub(crate) path: Vec<String>,
    /// The name under which it is known in the importing module.
    pub(crate) alias: String,
}

/// Returns the module in which each token stands, in a file whose outermost module is `module`.
pub(crate) fn enclosing_modules(tokens: &[Token], module: &str) -> Vec<String> {
    let (mut inner, mut modules) = (vec![(module.to_owned(), tokens.len())], Vec::new());
    for at in 0..tokens.len() {
        while inner.last().is_some_and(|(_, end)| *end <= at) {
            inner.pop();
        }
        let current = inner.last().map_or(module, |(module, _)| module).to_owned();
        if let [keyword, name, open, ..] = &tokens[at..]
            && keyword.is("mod")
            && open.is("{")
        {
            inner.push((format!("{current}::{}", name.text), closing(tokens, at + 2)));
        }
        modules.push(current);
    }
    modules
}

/// Returns the modules that the file declares, and whether each is in a file of its own.
pub(crate) fn declared_modules(tokens: &[Token], module: &str) -> Vec<(String, bool)> {
    let enclosing = enclosing_modules(tokens, module);
    let mut declared = Vec::new();
    for (at, window) in tokens.windows(3).enumerate() {
        if window[0].is("mod") && window[1].is_word() && (window[2].is(";") || window[2].is("{")) {
            declared.push((format!("{}::{}", enclosing[at], window[1].text), window[2].is(";")));
        }
    }
    declared
}

/// Returns all paths of a file that lead to one of `modules`. `module` is the file's own module.
pub(crate) fn imports(tokens: &[Token], module: &str, modules: &BTreeSet<String>) -> Vec<Import> {
    let enclosing = enclosing_modules(tokens, module);
    let (mut uses, mut paths, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let is_statement = tokens[at].is("use") && !tokens[at + 1].is("<");
        if is_statement {
            let mut leaves = Vec::new();
            let end = use_tree(tokens, at + 1, &[], &mut leaves);
            uses.extend(leaves.into_iter().map(|leaf| (at, leaf)));
            at = end;
        } else if let Some(path) = inline_path(tokens, at) {
            let skip = path.len() * 2 - 1;
            paths.push((at, path));
            at += skip;
        } else {
            at += 1;
        }
    }
    // Modules that are known under another name, or without their parents: `use crate::engine::flight as f;`.
    let mut aliases = BTreeMap::new();
    for (at, leaf) in &uses {
        match resolve(&leaf.path, &enclosing[*at], modules, &aliases) {
            Some((target, name)) if name.is_empty() => {
                aliases.insert((enclosing[*at].clone(), leaf.alias.clone()), target);
            }
            _ => {}
        }
    }
    let uses = uses.into_iter().map(|(at, leaf)| (at, leaf.line, leaf.path));
    let paths = paths.into_iter().map(|(at, path)| (at, tokens[at].line, path));
    let import = |(at, line, path): (usize, usize, Vec<String>)| {
        let (module, name) = resolve(&path, &enclosing[at], modules, &aliases)?;
        Some(Import { line, module, name })
    };
    uses.chain(paths).filter_map(import).collect()
}

/// Reads the use tree at `at`, adds its names to `leaves`, and returns the index after it.
pub(crate) fn use_tree(tokens: &[Token], mut at: usize, prefix: &[String], leaves: &mut Vec<Leaf>) -> usize {
    let (mut path, line) = (prefix.to_vec(), tokens[at].line);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "::" => {}
            "{" => {
                let end = closing(tokens, at);
                at += 1;
                while at < end {
                    at = use_tree(tokens, at, &path, leaves) + 1;
                }
                return end + 1;
            }
            "self" if !path.is_empty() => {}
            "as" => {
                leaves.push(Leaf { line, path, alias: tokens[at + 1].text.clone() });
                return at + 2;
            }
            segment if tokens[at].is_word() || segment == "*" => path.push(segment.to_owned()),
            _ => break,
        }
        at += 1;
    }
    leaves.push(Leaf { line, alias: path.last().cloned().unwrap_or_default(), path });
    at
}

/// The path at `at` if it has at least two segments and is neither `$crate::..` nor within `pub(in ..)`.
fn inline_path(tokens: &[Token], at: usize) -> Option<Vec<String>> {
    let before = at.checked_sub(1).map_or("", |before| tokens[before].text.as_str());
    if ["$", "::", ".", "in"].contains(&before) && (before != "in" || tokens[at - 2].is("(")) {
        return None;
    }
    let mut path = Vec::new();
    for pair in tokens[at..].chunks(2) {
        if !pair[0].is_word() {
            break;
        }
        path.push(pair[0].text.clone());
        if !pair.get(1).is_some_and(|next| next.is("::")) {
            break;
        }
    }
    let is_path = tokens.get(at + 1).is_some_and(|next| next.is("::"));
    (is_path && !path.is_empty()).then_some(path)
}

/// The deepest module of `path` as seen from the module `from`, and the rest of the path.
fn resolve(
    path: &[String],
    from: &str,
    modules: &BTreeSet<String>,
    aliases: &BTreeMap<(String, String), String>,
) -> Option<(String, String)> {
    let child = |module: &str, name: &str| Some(format!("{module}::{name}")).filter(|child| modules.contains(child));
    let (first, mut rest) = path.split_first()?;
    let mut module = match first.as_str() {
        "crate" => "crate".to_owned(),
        "self" => from.to_owned(),
        "super" => parent(from)?,
        name => child(from, name).or_else(|| aliases.get(&(from.to_owned(), name.to_owned())).cloned())?,
    };
    while let Some((name, further)) = rest.split_first() {
        let Some(deeper) = (if name == "super" { parent(&module) } else { child(&module, name) }) else { break };
        (module, rest) = (deeper, further);
    }
    Some((module, rest.join("::")))
}

fn parent(module: &str) -> Option<String> {
    module.rsplit_once("::").map(|(parent, _)| parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust::split;

    const MODULES: [&str; 6] =
        ["crate", "crate::engine", "crate::engine::flight", "crate::http", "crate::key", "crate::key::text"];

    fn found(module: &str, text: &str) -> Vec<String> {
        let modules = MODULES.map(str::to_owned).into();
        let imports = imports(&split(text).tokens, module, &modules);
        imports.into_iter().map(|import| format!("{} {} {}", import.line, import.module, import.name)).collect()
    }

    #[test]
    fn use_trees_are_flattened() {
        let text = "use crate::{\n    engine::{self, flight::{Flight as F, *}},\n    key,\n};";
        let expected =
            ["2 crate::engine ", "2 crate::engine::flight Flight", "2 crate::engine::flight *", "3 crate::key "];
        assert_eq!(found("crate::http", text), expected);
    }

    #[test]
    fn paths_are_relative_to_the_module() {
        assert_eq!(found("crate::engine", "pub(crate) use flight::Flight;"), ["1 crate::engine::flight Flight"]);
        assert_eq!(found("crate::engine::flight", "use super::{super::key::Key, a};").len(), 2);
        assert_eq!(found("crate::engine::flight", "use super::super::key::Key;"), ["1 crate::key Key"]);
        assert_eq!(found("crate::engine", "mod a { use super::flight::B; }"), ["1 crate::engine::flight B"]);
    }

    #[test]
    fn crates_of_the_same_name_are_no_modules() {
        assert!(found("crate::engine", "use http::HeaderMap; fn f() { http::Method::GET; }").is_empty());
        assert_eq!(found("crate", "pub use http::Layer;"), ["1 crate::http Layer"]);
    }

    #[test]
    fn paths_outside_of_use_statements_count() {
        assert_eq!(found("crate::http", "fn f() { a(crate::key::Key::new()) }"), ["1 crate::key Key::new"]);
        assert_eq!(found("crate::http", "for a in super::key::all() {}"), ["1 crate::key all"]);
        let text = "use crate::key as k;\nfn f() { k::text::a() }";
        assert_eq!(found("crate::http", text), ["1 crate::key ", "2 crate::key::text a"]);
    }

    #[test]
    fn visibilities_and_macro_paths_do_not_count() {
        assert!(
            found("crate::http", "pub(in crate::engine) fn f<'a>() -> impl A + use<'a> { $crate::key::b }").is_empty()
        );
    }

    #[test]
    fn declared_modules_know_their_parents() {
        let tokens = split("mod a;\nmod b { mod c; }\nfn model() {}").tokens;
        let expected = [("crate::x::a", true), ("crate::x::b", false), ("crate::x::b::c", true)];
        let declared = declared_modules(&tokens, "crate::x");
        assert_eq!(declared, expected.map(|(name, is_file)| (name.to_owned(), is_file)));
    }
}
