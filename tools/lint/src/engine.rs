//! The states of the engine, and its tables.

use crate::{
    Findings,
    rust::{Token, closing},
    structure::File,
};
use std::collections::BTreeSet;

/// Maximum number of variants of enums and of fields with two states. To be lowered with the engine.
const STATES: usize = 107;

/// Maximum number of tables by cache key. To be lowered with the engine.
const TABLES: usize = 5;

/// The types of fields that double the states of a struct, wherever they stand in the type of the field.
const TWO_STATES: [&str; 3] = ["bool", "AtomicBool", "Option"];

const MAPS: [&str; 5] = ["HashMap", "HashSet", "BTreeMap", "BTreeSet", "Cache"];

/// The names of cache keys and of their primary part. A struct with one of them as its only field is one, too.
const KEYS: [&str; 4] = ["CacheKey", "CacheKeyRef", "KeyHash", "Bytes"];

pub(crate) fn check(files: &[File<'_>], findings: &mut Findings) {
    let engine = files.iter().filter(|file| file.path == "src/engine.rs" || file.path.starts_with("src/engine/"));
    let tokens: Vec<&[Token]> = engine.map(|file| &file.tokens[..]).collect();
    let count = |counted: fn(&[Token]) -> usize| tokens.iter().map(|tokens| counted(tokens)).sum::<usize>();
    let (variants, fields, tables) = (count(variants), count(two_state_fields), tables(&tokens).len());
    let states = variants + fields;
    findings.figures.push(format!(
        "states of the engine: {variants} variants and {fields} fields with {}: {states} (at most {STATES})",
        TWO_STATES.join(", ")
    ));
    findings.figures.push(format!("tables of the engine by cache key: {tables} (at most {TABLES})"));
    if states > STATES {
        findings.broken.push(format!("src/engine.rs:1: the engine has {states} states, at most {STATES}"));
    }
    if tables > TABLES {
        findings.broken.push(format!("src/engine.rs:1: the engine has {tables} tables, at most {TABLES}"));
    }
}

fn variants(tokens: &[Token]) -> usize {
    bodies(tokens, "enum").flat_map(|(_, body)| parts(body)).count()
}

fn two_state_fields(tokens: &[Token]) -> usize {
    fields(tokens).filter(|(_, field)| names_any(field, &TWO_STATES)).count()
}

/// Returns the field of each table: a map by cache key, or an alias of one.
fn tables(files: &[&[Token]]) -> Vec<String> {
    let mut keys: BTreeSet<&str> = KEYS.into();
    for (name, body) in files.iter().flat_map(|tokens| bodies(tokens, "struct")) {
        if let [field] = &parts(body)[..]
            && names_any(&field[..field.len().min(3)], &KEYS)
            && field.iter().all(|token| !token.is("<"))
        {
            keys.insert(&name.text);
        }
    }
    let is_table = |part: &[Token]| {
        part.windows(3).any(|w| MAPS.iter().any(|map| w[0].is(map)) && w[1].is("<") && keys.contains(&*w[2].text))
    };
    let aliases = files.iter().flat_map(|tokens| statements(tokens, "type"));
    let aliases: Vec<&str> = aliases.filter(|(_, part)| is_table(part)).map(|(name, _)| &*name.text).collect();
    let fields = files.iter().flat_map(|tokens| fields(tokens));
    fields
        .filter(|(_, field)| is_table(field) || names_any(field, &aliases))
        .map(|(owner, _)| owner.to_owned())
        .collect()
}

/// The type and the name of a field of a struct, with its visibility and attributes, and the name of the struct.
fn fields(tokens: &[Token]) -> impl Iterator<Item = (&str, &[Token])> {
    bodies(tokens, "struct").flat_map(|(name, body)| parts(body).into_iter().map(|part| (&*name.text, part)))
}

fn names_any(tokens: &[Token], names: &[&str]) -> bool {
    tokens.iter().any(|token| names.iter().any(|name| token.is(name)))
}

/// Returns the name and the body of each item of this kind, without its brackets.
fn bodies<'a>(tokens: &'a [Token], kind: &'a str) -> impl Iterator<Item = (&'a Token, &'a [Token])> {
    tokens.windows(2).enumerate().filter(move |(_, pair)| pair[0].is(kind) && pair[1].is_word()).filter_map(
        move |(at, pair)| {
            let open = (at + 2..tokens.len()).find(|at| matches!(&*tokens[*at].text, "{" | "(" | ";"))?;
            (!tokens[open].is(";")).then(|| (&pair[1], &tokens[open + 1..closing(tokens, open)]))
        },
    )
}

/// Returns the name and the rest of each statement of this kind.
fn statements<'a>(tokens: &'a [Token], kind: &'a str) -> impl Iterator<Item = (&'a Token, &'a [Token])> {
    tokens.windows(2).enumerate().filter(move |(_, pair)| pair[0].is(kind) && pair[1].is_word()).map(
        move |(at, pair)| {
            let end = (at..tokens.len()).find(|at| tokens[*at].is(";")).unwrap_or(tokens.len());
            (&pair[1], &tokens[at + 2..end])
        },
    )
}

/// Splits the body of an item at its commas.
fn parts(body: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, token) in body.iter().enumerate() {
        match &*token.text {
            "(" | "[" | "{" | "<" => depth += 1,
            ">" if at > 0 && matches!(&*body[at - 1].text, "-" | "=") => {}
            ")" | "]" | "}" | ">" => depth -= 1,
            "," if depth == 0 => {
                parts.push(&body[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rust, structure};

    fn count(counted: fn(&[Token]) -> usize, text: &str) -> usize {
        counted(&rust::split(text).tokens)
    }

    #[test]
    fn variants_of_all_forms_count() {
        let text =
            "enum A<T> { B, #[c] D(E<F, G>, H), I { j: K, l: fn(M, N) -> O }, P = 1 }\nenum Q {}\nstruct R { s: T }";
        assert_eq!(count(variants, text), 4);
    }

    #[test]
    fn fields_with_two_states_count_once_each() {
        let text = "struct A { b: bool, pub(super) c: Mutex<Option<Option<D>>>, e: Arc<AtomicBool>, f: Vec<G>, optional: H }\n\
            struct I(Option<J>, K);\nstruct L;\nfn m(n: bool) -> Option<O> {}\nenum P { Q(bool) }";
        assert_eq!(count(two_state_fields, text), 4);
    }

    #[test]
    fn maps_by_cache_key_are_tables() {
        let text = "type A = HashMap<CacheKey, B>;\ntype C = HashMap<D, CacheKey>;\n\
            struct E { a: A, b: Mutex<A>, c: C, d: Cache<F, G>, h: HashSet<CacheKey> }\nstruct F(CacheKey);";
        assert_eq!(tables(&[&rust::split(text).tokens]).len(), 4);
    }

    #[test]
    fn an_engine_over_its_limits_is_reported() {
        let of = |variants: usize, tables: usize| {
            let (variants, fields) = ("A,".repeat(variants), "a: HashMap<CacheKey, B>,".repeat(tables));
            let engine = format!("enum C {{ {variants} }}\nstruct D {{ {fields} }}");
            let files = [("src/lib.rs", "mod engine;".to_owned()), ("src/engine.rs", engine)];
            structure::check(&files.map(|(path, text)| (path.to_owned(), text)).into()).broken
        };
        assert!(of(STATES, TABLES).is_empty());
        let (states, tables) = (STATES + 1, TABLES + 1);
        let expected = [
            format!("src/engine.rs:1: the engine has {states} states, at most {STATES}"),
            format!("src/engine.rs:1: the engine has {tables} tables, at most {TABLES}"),
        ];
        assert_eq!(of(states, tables), expected);
    }
}
