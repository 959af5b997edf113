//! The table in docs/locks.md is what the recipes claim.

use crate::RECIPES;
use std::{env, fs, path::Path};

/// With `UPDATE_DOCS=1` in its environment it writes the table, and does not fail.
#[test]
fn the_table_of_the_docs_is_what_the_recipes_claim() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/locks.md");
    let text = fs::read_to_string(&path).expect("docs/locks.md can be read");
    let (before, rest) = text.split_once(BEGIN).expect("docs/locks.md says where the table begins");
    let (is, after) = rest.split_once(END).expect("docs/locks.md says where the table ends");
    let should = table();
    if is == should {
        return;
    }
    assert_eq!(env::var("UPDATE_DOCS").as_deref(), Ok("1"), "docs/locks.md should have this table:\n{should}");
    fs::write(&path, [before, BEGIN, &should, END, after].concat()).expect("docs/locks.md can be written");
}

fn table() -> String {
    let mut lines = vec![String::new()];
    let names = RECIPES[0].guarantees().each().map(|(name, _)| name);
    lines.push(format!("| recipe | {} |", names.join(" | ")));
    lines.push(format!("|---{}|", "|---".repeat(names.len())));
    for recipe in RECIPES {
        let cells = recipe.guarantees().each().map(|(_, promised)| if promised { "yes" } else { "**no**" });
        lines.push(format!("| `{}` | {} |", recipe.label, cells.join(" | ")));
    }
    lines.push(String::new());
    lines.join("\n")
}

const BEGIN: &str = "<!-- guarantees -->";
const END: &str = "<!-- /guarantees -->";
