//! The types of the library that are named in the signatures of functions, read from its source.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};
use syn::{
    Ident, ImplItemFn, Item, ItemFn, ItemImpl, ItemTrait, ItemUse, Receiver, Signature, TraitItemFn, UseTree,
    spanned::Spanned,
    visit::{self, Visit},
};

/// The source of the library. Files are paths from `src/`.
#[derive(Debug)]
pub(crate) struct Source {
    files: BTreeMap<String, File>,
    /// The structs, enums, unions, aliases and traits of each file.
    types: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct File {
    functions: Vec<Function>,
    /// The path of each name that the file imports.
    imports: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
struct Function {
    first: usize,
    last: usize,
    /// The paths of the types in its signature, with the type that has the function if the signature speaks of it.
    named: BTreeSet<Vec<String>>,
}

impl Source {
    pub(crate) fn read(folder: &Path) -> Self {
        let mut texts = BTreeMap::new();
        collect(folder, folder, &mut texts);
        Self::of(&texts)
    }

    fn of(texts: &BTreeMap<String, String>) -> Self {
        let (mut files, mut types) = (BTreeMap::new(), BTreeMap::new());
        for (path, text) in texts {
            let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
            let mut reader = Reader::default();
            reader.visit_file(&parsed);
            files.insert(path.clone(), reader.file);
            types.insert(path.clone(), reader.types);
        }
        Self { files, types }
    }

    /// Returns each type that a signature of an executed function names, with the file that defines it.
    pub(crate) fn concepts(&self, executed: &BTreeMap<String, BTreeSet<usize>>) -> BTreeSet<(String, String)> {
        let mut concepts = BTreeSet::new();
        for (path, lines) in executed {
            let Some(file) = self.files.get(path) else { continue };
            for line in lines {
                let around = file.functions.iter().filter(|function| (function.first..=function.last).contains(line));
                let Some(function) = around.max_by_key(|function| function.first) else { continue };
                concepts.extend(function.named.iter().filter_map(|named| self.resolve(path, file, named)));
            }
        }
        concepts
    }

    /// Returns the name of the type and the file that defines it. A type of another crate is imported, or named by a
    /// path that starts with that crate.
    fn resolve(&self, path: &str, file: &File, named: &[String]) -> Option<(String, String)> {
        let (first, name) = (named.first()?, named.last()?);
        let is_here = named.len() == 1 && self.types.get(path).is_some_and(|types| types.contains(name));
        if is_here {
            return Some((name.clone(), path.to_owned()));
        }
        let import = file.imports.get(first).cloned().or_else(|| (named.len() > 1).then(|| vec![first.clone()]))?;
        let full: Vec<String> = import.into_iter().chain(named.iter().skip(1).cloned()).collect();
        let is_own = matches!(full[0].as_str(), "crate" | "self" | "super")
            || self.types.contains_key(&format!("{}{}.rs", folder_of(path), full[0]));
        let name = full.last()?;
        let within = full.iter().rev().nth(1);
        let mut defining: Vec<&String> =
            self.types.iter().filter(|(_, types)| types.contains(name)).map(|(path, _)| path).collect();
        // A type that is re-exported stands in another file than its path says.
        defining.sort_by_key(|path| !within.is_some_and(|module| path.ends_with(&format!("{module}.rs"))));
        defining.first().filter(|_| is_own).map(|path| (name.clone(), (*path).clone()))
    }
}

/// The folder of the modules below a file, with a `/` at its end.
fn folder_of(path: &str) -> String {
    if path == "lib.rs" { String::new() } else { path.trim_end_matches(".rs").to_owned() + "/" }
}

fn collect(folder: &Path, root: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("the library has a source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, root, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).expect("below the root").to_str().expect("an ASCII path").to_owned();
            texts.insert(name, fs::read_to_string(&path).expect("a readable file"));
        }
    }
}

#[derive(Default)]
struct Reader {
    file: File,
    types: BTreeSet<String>,
    /// The types whose functions are being read, the innermost last.
    owners: Vec<Vec<String>>,
}

impl Reader {
    fn function(&mut self, signature: &Signature, first: usize, last: usize) {
        let mut names = Names { owner: self.owners.last(), named: BTreeSet::new() };
        names.visit_signature(signature);
        let named = names.named;
        self.file.functions.push(Function { first, last, named });
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let join = |ident: &Ident| [before, &[ident.to_string()]].concat();
        let path_of = |ident: &Ident| if ident == "self" { before.to_vec() } else { join(ident) };
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &join(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before)),
            UseTree::Name(name) => {
                let path = path_of(&name.ident);
                _ = self.file.imports.insert(path.last().cloned().unwrap_or_default(), path);
            }
            UseTree::Rename(name) => _ = self.file.imports.insert(name.rename.to_string(), path_of(&name.ident)),
            UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            _ => None,
        };
        self.types.extend(name.map(Ident::to_string));
        if let Item::Macro(item) = item {
            // A macro such as `pin_project!` around a type.
            let text = item.mac.tokens.to_string();
            let words: Vec<&str> = text.split_whitespace().collect();
            let is_type = |pair: &&[&str]| matches!(pair[0], "struct" | "enum");
            self.types.extend(words.windows(2).filter(is_type).map(|pair| pair[1].to_owned()));
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let owner = if let syn::Type::Path(path) = &*item.self_ty { segments(&path.path) } else { Vec::new() };
        self.owners.push(owner);
        visit::visit_item_impl(self, item);
        self.owners.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.owners.push(vec![item.ident.to_string()]);
        visit::visit_item_trait(self, item);
        self.owners.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig, item.sig.span().start().line, item.block.span().end().line);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, item.sig.span().start().line, item.block.span().end().line);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, item.sig.span().start().line, block.span().end().line);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, &[]);
    }
}

/// The paths of a signature.
struct Names<'a> {
    owner: Option<&'a Vec<String>>,
    named: BTreeSet<Vec<String>>,
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_receiver(&mut self, receiver: &'ast Receiver) {
        self.named.extend(self.owner.cloned());
        visit::visit_receiver(self, receiver);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.first().is_some_and(|first| first.ident == "Self") {
            self.named.extend(self.owner.cloned());
        } else if path.leading_colon.is_none() {
            self.named.insert(segments(path));
        }
        visit::visit_path(self, path);
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concepts(files: &[(&str, &str)], path: &str, line: usize) -> Vec<String> {
        let source = Source::of(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect());
        let concepts = source.concepts(&[(path.to_owned(), BTreeSet::from([line]))].into());
        concepts.into_iter().map(|(name, file)| format!("{name} {file}")).collect()
    }

    #[test]
    fn signatures_name_types_of_the_library_alone() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "use crate::b::{Error, Item as I};\nuse std::fmt::Debug;\nstruct Own; trait Way {}\n\
                fn f<T: Way>(a: &Own, b: Vec<I>, c: T, d: std::io::Error) -> impl Debug { g(); }\nfn g() -> Error {}",
            ),
            ("b.rs", "pub struct Error; pub enum Item {} pub struct Debug; pub struct T;"),
        ];
        assert_eq!(concepts(&files, "a.rs", 4), ["Item b.rs", "Own a.rs", "Way a.rs"]);
        assert_eq!(concepts(&files, "a.rs", 5), ["Error b.rs"]);
    }

    #[test]
    fn a_method_names_its_own_type() {
        let text = "struct A; struct B;\nimpl A {\nfn new() -> Self {}\nfn b(&self) {\n}\nfn c() {}\n}\n\
            pin_project! { struct D { e: F } }\nfn g(d: D) {}";
        let at = |line| concepts(&[("a.rs", text)], "a.rs", line);
        assert_eq!(at(3), ["A a.rs"]);
        assert_eq!(at(5), ["A a.rs"]);
        assert!(at(6).is_empty());
        assert_eq!(at(9), ["D a.rs"]);
    }
}
