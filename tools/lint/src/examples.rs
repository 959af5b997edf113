//! The examples of public functions.
//!
//! A function has an example if a visible line of one calls it by its name. The example stands where a reader of the
//! function finds it: on the function, on its type or an `impl` of it, or on another function that its documentation
//! links to. The setup in hidden lines shows nothing, and blocks that are not compiled are no examples.
//!
//! Functions that only the features `unstable` and `_fuzz` open do not count, and neither do trait implementations.

use crate::{
    Files, Findings,
    imports::{declared_modules, use_tree},
    rust::{self, Token, closing},
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of public functions without an example.
const WITHOUT_EXAMPLE: usize = 0;

/// Maximum number of examples that are compiled and not run. To be lowered with the number of examples.
const NOT_RUN: usize = 0;

/// A public function, a method, or a function of a trait.
struct Function {
    path: String,
    line: usize,
    /// The name of the type or trait, if it belongs to one.
    owner: Option<String>,
    name: String,
    examples: Vec<Example>,
    /// The type and the name of each function that the documentation links to.
    links: Vec<(String, String)>,
}

#[derive(Clone)]
struct Example {
    /// Of the lines that readers see.
    tokens: Vec<Token>,
    runs: bool,
}

pub(crate) fn check(files: &Files) -> Findings {
    let sources: Vec<Source<'_>> = files.iter().filter_map(|(path, text)| Source::of(path, text)).collect();
    let names = reachable(&sources);
    let mut owners: BTreeMap<&str, Vec<Example>> = BTreeMap::new();
    let mut functions = Vec::new();
    for source in &sources {
        source.items(0, source.tokens.len(), &names, &mut owners, &mut functions);
    }
    let is_shown = |function: &&Function| {
        let of_owner = function.owner.as_ref().and_then(|owner| owners.get(owner.as_str()));
        let is_linked = |other: &&Function| {
            let is_target =
                |(owner, name): &(String, String)| other.owner.as_ref() == Some(owner) && other.name == *name;
            function.links.iter().any(is_target)
        };
        let linked = functions.iter().filter(is_linked).flat_map(|other| &other.examples);
        function
            .examples
            .iter()
            .chain(of_owner.into_iter().flatten())
            .chain(linked)
            .any(|example| example.names(function))
    };
    let (shown, without): (Vec<_>, Vec<_>) = functions.iter().partition(is_shown);
    let all = owners.values().flatten().chain(functions.iter().flat_map(|function| &function.examples));
    let not_run = all.filter(|example| !example.runs).count();
    let (total, count) = (shown.len() + without.len(), without.len());
    let mut findings = Findings::default();
    findings
        .figures
        .push(format!("public functions: {total}, without an example: {count} (at most {WITHOUT_EXAMPLE})"));
    findings.figures.push(format!("examples of types and functions that are not run: {not_run} (at most {NOT_RUN})"));
    if count > WITHOUT_EXAMPLE {
        findings.broken.extend(without.into_iter().map(|Function { path, line, owner, name, .. }| {
            let owner = owner.as_ref().map_or_else(String::new, |owner| format!("{owner}::"));
            format!("{path}:{line}: no example calls `{owner}{name}`")
        }));
    }
    if not_run > NOT_RUN {
        findings.broken.push(format!("src/lib.rs:1: {not_run} examples are not run, at most {NOT_RUN}"));
    }
    findings
}

/// A file of the library, split once.
struct Source<'a> {
    path: &'a str,
    module: String,
    lines: Vec<&'a str>,
    /// Without tests.
    tokens: Vec<Token>,
}

impl<'a> Source<'a> {
    fn of(path: &'a str, text: &'a str) -> Option<Self> {
        let below = path.strip_prefix("src/")?.strip_suffix(".rs")?;
        let module = if below == "lib" { "crate".to_owned() } else { format!("crate::{}", below.replace('/', "::")) };
        let (tokens, _) = rust::without_tests(&rust::split(text).tokens);
        Some(Self { path, module, lines: text.lines().collect(), tokens })
    }

    /// Returns the lines above the item at `at`: its documentation, comments and attributes.
    fn above(&self, at: usize) -> &[&'a str] {
        let mut first = at;
        while let Some(end) = first.checked_sub(1).filter(|end| self.tokens[*end].is("]")) {
            let Some(start) = (0..end).rev().find(|start| closing(&self.tokens, *start) == end) else { break };
            if start == 0 || !self.tokens[start - 1].is("#") {
                break;
            }
            first = start - 1;
        }
        let end = self.tokens[at].line - 1;
        let top = self.tokens[first].line - 1;
        let is_comment = |line: &&&str| line.trim_start().starts_with("//");
        let comments = self.lines[..top].iter().rev().take_while(is_comment).count();
        &self.lines[top - comments..end]
    }

    /// Reports whether users reach the item at `at`: no feature for internals opens it, and it is not hidden.
    fn is_open(&self, at: usize) -> bool {
        let attributes: String =
            self.above(at).iter().filter(|line| !line.trim_start().starts_with("//")).copied().collect();
        let opens = |feature: &str| attributes.contains(&format!("feature = \"{feature}\""));
        !attributes.contains("doc(hidden)") && !(attributes.contains("#[cfg(") && (opens("unstable") || opens("_fuzz")))
    }

    /// Reads the items between two indices.
    fn items<'s>(
        &'s self,
        mut at: usize,
        end: usize,
        names: &BTreeSet<String>,
        owners: &mut BTreeMap<&'s str, Vec<Example>>,
        functions: &mut Vec<Function>,
    ) {
        while at < end {
            let token = &self.tokens[at];
            let next = |skip: usize| self.tokens.get(at + skip).map_or("", |token| &*token.text);
            let is_public = token.is("pub") && next(1) != "(" && self.is_open(at);
            match (&*token.text, next(1)) {
                ("impl", _) => {
                    let open = self.body(at);
                    if let Some(owner) = inherent(&self.tokens[at + 1..open]).filter(|name| names.contains(*name))
                        && self.is_open(at)
                    {
                        owners.entry(owner).or_default().extend(examples(self.above(at)));
                        self.functions(open, Some(owner), true, functions);
                    }
                    at = closing(&self.tokens, open);
                }
                ("pub", "struct" | "enum" | "trait") if is_public && names.contains(next(2)) => {
                    let (name, open) = (&*self.tokens[at + 2].text, self.body(at));
                    owners.entry(name).or_default().extend(examples(self.above(at)));
                    if next(1) == "trait" {
                        self.functions(open, Some(name), false, functions);
                    }
                    at = if self.tokens[open].is(";") { open } else { closing(&self.tokens, open) };
                }
                ("pub", _) if is_public => {
                    functions.extend(self.function(at, None).filter(|function| names.contains(&function.name)));
                }
                ("(" | "[" | "{", _) => at = closing(&self.tokens, at),
                _ => {}
            }
            at += 1;
        }
    }

    /// The index of the bracket that opens the body of the item at `at`, or of its semicolon.
    fn body(&self, at: usize) -> usize {
        let mut body = at;
        while body + 1 < self.tokens.len() && !matches!(&*self.tokens[body].text, "{" | ";") {
            body = if matches!(&*self.tokens[body].text, "(" | "[") { closing(&self.tokens, body) } else { body };
            body += 1;
        }
        body
    }

    /// Reads the functions of the block at `open`. Those of a trait are public without saying so.
    fn functions(&self, open: usize, owner: Option<&str>, says_public: bool, functions: &mut Vec<Function>) {
        let (mut at, end) = (open + 1, closing(&self.tokens, open));
        while at < end {
            let token = &self.tokens[at];
            let begins = if says_public { token.is("pub") && !self.tokens[at + 1].is("(") } else { !token.is("#") };
            if let Some(function) = self.function(at, owner).filter(|_| begins && self.is_open(at)) {
                functions.push(function);
                at = self.body(at);
            }
            if matches!(&*self.tokens[at].text, "(" | "[" | "{") {
                at = closing(&self.tokens, at);
            }
            at += 1;
        }
    }

    /// Returns the function whose first token is at `at`.
    fn function(&self, at: usize, owner: Option<&str>) -> Option<Function> {
        let words =
            self.tokens[at..].iter().take_while(|token| ["pub", "const", "async", "unsafe"].contains(&&*token.text));
        let keyword = at + words.count();
        let name = self.tokens.get(keyword + 1).filter(|_| self.tokens[keyword].is("fn"))?;
        let (examples, links) = (examples(self.above(at)), links(self.above(at), owner));
        let (path, line, name) = (self.path.to_owned(), name.line, name.text.clone());
        Some(Function { path, line, owner: owner.map(str::to_owned), name, examples, links })
    }
}

/// Returns the name of the type that an `impl` without a trait is for.
fn inherent(header: &[Token]) -> Option<&str> {
    let (mut depth, mut name) = (0, None);
    for (at, token) in header.iter().enumerate() {
        match &*token.text {
            "<" => depth += 1,
            ">" if at > 0 && matches!(&*header[at - 1].text, "-" | "=") => {}
            ">" => depth -= 1,
            "for" if depth == 0 => return None,
            "where" if depth == 0 => break,
            text if depth == 0 && token.is_word() => name = Some(text),
            _ => {}
        }
    }
    name
}

/// Returns the names that users can write: what `src/lib.rs` and its public modules declare and re-export.
fn reachable(sources: &[Source<'_>]) -> BTreeSet<String> {
    let (mut names, mut open, mut seen) = (BTreeSet::new(), vec!["crate".to_owned()], BTreeSet::new());
    while let Some(module) = open.pop() {
        let Some(source) = sources.iter().find(|source| source.module == module) else { continue };
        if !seen.insert(module.clone()) {
            continue;
        }
        let modules: BTreeSet<String> =
            declared_modules(&source.tokens, &module).into_iter().map(|(name, _)| name).collect();
        let mut at = 0;
        while at < source.tokens.len() {
            let is_public = source.tokens[at].is("pub") && !source.tokens[at + 1].is("(") && source.is_open(at);
            let words = source.tokens[at..]
                .iter()
                .skip(1)
                .skip_while(|token| ["const", "async", "unsafe"].contains(&&*token.text));
            let [kind, name] = [0, 1].map(|n| words.clone().nth(n).map_or("", |token| &*token.text));
            match (is_public, kind) {
                (true, "use") => {
                    let mut leaves = Vec::new();
                    at = use_tree(&source.tokens, at + 2, &[], &mut leaves);
                    for leaf in leaves {
                        // A re-exported module is public as well.
                        let path: Vec<&str> =
                            leaf.path.iter().map(String::as_str).filter(|part| *part != "self").collect();
                        open.push(if path.first() == Some(&"crate") {
                            path.join("::")
                        } else {
                            format!("{module}::{}", path.join("::"))
                        });
                        names.insert(leaf.alias);
                    }
                }
                (true, "mod") => open.extend(modules.get(&format!("{module}::{name}")).cloned()),
                (true, "fn" | "struct" | "enum" | "trait") => _ = names.insert(name.to_owned()),
                _ if matches!(&*source.tokens[at].text, "(" | "[" | "{") => at = closing(&source.tokens, at),
                _ => {}
            }
            at += 1;
        }
    }
    names
}

/// Returns the examples in the documentation of an item.
fn examples(lines: &[&str]) -> Vec<Example> {
    let mut examples = Vec::new();
    let mut open: Option<(Option<bool>, String)> = None;
    for line in lines.iter().filter_map(|line| line.trim_start().strip_prefix("///")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some((runs, code))) => {
                let tokens = rust::split(code).tokens;
                examples.extend(runs.map(|runs| Example { tokens, runs }));
                open = None;
            }
            (Some(info), None) => open = Some((runs(info), String::new())),
            (None, Some((_, code))) if !is_hidden(line) => *code += &format!("{line}\n"),
            _ => {}
        }
    }
    examples
}

/// Returns the type and the name of each function that the documentation of a function of `owner` links to.
fn links(lines: &[&str], owner: Option<&str>) -> Vec<(String, String)> {
    let between = |open, close| lines.iter().flat_map(move |line| parts(line, open, close));
    let functions = between("](", ")").chain(between("[`", "`]")).filter_map(|target| {
        let (path, name) = target.rsplit_once("::")?;
        let owner = owner.filter(|_| path == "Self").or_else(|| path.rsplit("::").next())?;
        Some((owner.to_owned(), name.to_owned()))
    });
    functions.collect()
}

/// Returns what stands between the marks, each time.
fn parts<'a>(line: &'a str, open: &str, close: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
    let parts: Vec<_> = line.split(open).skip(1).map(|rest| rest.split(close).next().unwrap_or(rest)).collect();
    parts.into_iter()
}

/// Reports whether rustdoc runs a block with this info string, or only compiles it. `None` if it does neither.
fn runs(info: &str) -> Option<bool> {
    let words: Vec<&str> = info.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let is_rust =
        words.iter().all(|word| ["rust", "no_run", "should_panic"].contains(word) || word.starts_with("edition"));
    is_rust.then(|| !words.contains(&"no_run"))
}

fn is_hidden(line: &str) -> bool {
    let line = line.trim_start();
    line == "#" || line.starts_with("# ")
}

impl Example {
    /// Reports whether the example calls the function, or names it as a value: `value.name(`, `Type::name`, `name(`. The
    /// function of a trait may be implemented as well.
    fn names(&self, function: &Function) -> bool {
        let Function { owner, name, .. } = function;
        let text = |at: Option<usize>| at.and_then(|at| self.tokens.get(at)).map_or("", |token| &*token.text);
        (0..self.tokens.len()).filter(|at| self.tokens[*at].is(name)).any(|at| {
            let (before, after) = (text(at.checked_sub(1)), text(Some(at + 1)));
            let is_call = after == "(" || after == "::";
            match owner {
                Some(owner) if before == "::" => self.tokens[..at].iter().rev().take(8).any(|token| token.is(owner)),
                Some(_) => (before == "." || before == "fn") && is_call,
                None => before != "." && before != "fn" && is_call,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(files: &[(&str, &str)]) -> Vec<String> {
        check(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()).broken
    }

    /// Returns what is reported of `A::b`, with this documentation of the type and of the function.
    fn of_method(of_type: &str, of_function: &str) -> Vec<String> {
        let file = format!("{of_type}\npub struct A;\nimpl A {{\n{of_function}\npub fn b(&self) {{}}\n}}");
        broken(&[("src/lib.rs", "mod a;\npub use a::A;"), ("src/a.rs", &file)])
    }

    #[test]
    fn functions_that_no_visible_line_calls_are_reported() {
        let example = |info: &str, code: &str| format!("/// ```{info}\n/// {code}\n/// ```");
        for code in ["a.b();", "A::b(&a);", "with(A::b);", "A::<u8>::b(&a);"] {
            assert!(of_method("", &example("", code)).is_empty(), "{code}");
            assert!(of_method(&example("", code), "").is_empty(), "{code}");
        }
        for (info, code) in [("", "# a.b();"), ("text", "a.b();"), ("ignore", "a.b();"), ("", "a.c(); // a.b()")] {
            let expected = ["src/a.rs:7: no example calls `A::b`"];
            assert_eq!(of_method("", &example(info, code)), expected, "{info} {code}");
        }
    }

    #[test]
    fn examples_of_linked_functions_count() {
        let other = "/// ```\n/// a.b(); a.c();\n/// ```\npub fn c(&self) {}";
        assert!(of_method("", &format!("{other}\n/// See [`c`](Self::c).")).is_empty());
        assert!(of_method("", &format!("{other}\n/// See [`A::c`].")).is_empty());
        assert_eq!(of_method("", &format!("{other}\n/// See `c`.")), ["src/a.rs:9: no example calls `A::b`"]);
    }

    #[test]
    fn functions_that_users_do_not_reach_need_no_example() {
        let lib = "mod a;\npub use a::A;\n#[cfg(feature = \"unstable\")]\npub use a::B;\n#[cfg(feature = \"unstable\")]\npub mod d;";
        let a = "pub struct A;\nimpl A { pub(crate) fn a(&self) {} fn b(&self) {}\n#[doc(hidden)]\npub fn c(&self) {} }\n\
            pub struct B;\nimpl B { pub fn d(&self) {} }\nimpl C for A { fn e(&self) {} }\n\
            #[cfg(test)]\nmod tests { impl A { pub fn f(&self) {} } }";
        let files = [("src/lib.rs", lib), ("src/a.rs", a), ("src/d.rs", "pub fn g() {}")];
        assert_eq!(broken(&files), [""; 0]);
    }

    #[test]
    fn functions_of_public_modules_and_traits_are_reported() {
        let lib = "pub mod a;\nmod b;\npub use b::{C, d};";
        let a = "pub fn e() {}\npub trait F { fn g(&self); }";
        let b = "pub struct C;\nimpl<'a> C where u8: Fn() -> u8 { pub const fn h() {} }\npub async fn d() {}\npub fn i() {}";
        let expected = [
            "a.rs:1: no example calls `e`",
            "a.rs:2: no example calls `F::g`",
            "b.rs:2: no example calls `C::h`",
            "b.rs:3: no example calls `d`",
        ];
        let expected = expected.map(|line| format!("src/{line}"));
        assert_eq!(broken(&[("src/lib.rs", lib), ("src/a.rs", a), ("src/b.rs", b)]), expected);
    }

    #[test]
    fn examples_that_are_not_run_are_reported() {
        let found = of_method("", "/// ```no_run\n/// a.b();\n/// ```");
        assert_eq!(found, ["src/lib.rs:1: 1 examples are not run, at most 0"]);
    }
}
