//! The table in src/guide/locks.md must equal the guarantees of the recipes.

use crate::{Guarantees, RECIPES, TABLE};
use std::{env, fs, path::Path};

/// With `UPDATE_DOCS=1` in the environment, writes the table instead of failing.
#[test]
fn docs_table_matches_guarantees_of_recipes() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("src/guide/locks.md"));
    let path = here.into_iter().find(|path| path.is_file()).expect("src/guide/locks.md is in this repository");
    let (begin, end) = (format!("<!-- {TABLE} -->"), format!("<!-- /{TABLE} -->"));
    let text = fs::read_to_string(&path).expect("src/guide/locks.md can be read");
    let (before, rest) = text.split_once(&begin).expect("src/guide/locks.md marks the start of the table");
    let (is, after) = rest.split_once(&end).expect("src/guide/locks.md marks the end of the table");
    let should = table();
    if is == should {
        return;
    }
    assert_eq!(env::var("UPDATE_DOCS").as_deref(), Ok("1"), "src/guide/locks.md should have this table:\n{should}");
    fs::write(&path, [before, &begin, &should, &end, after].concat()).expect("src/guide/locks.md can be written");
}

fn table() -> String {
    let mut lines = vec![String::new()];
    let names = cells(RECIPES[0].guarantees()).map(|(name, _)| name);
    lines.push(format!("| recipe | {} |", names.join(" | ")));
    lines.push(format!("|---{}|", "|---".repeat(names.len())));
    for recipe in RECIPES {
        let cells = cells(recipe.guarantees()).map(|(_, promised)| if promised { "yes" } else { "**no**" });
        lines.push(format!("| `{}` | {} |", recipe.label, cells.join(" | ")));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn cells(promised: Guarantees) -> [(&'static str, bool); 8] {
    [
        ("crash frees it", promised.crash_frees),
        ("owner-safe release", promised.owner_safe),
        ("extendable", promised.extendable),
        ("fenceable", promised.fenceable),
        ("replay-safe", promised.replay_safe),
        ("clock-free", promised.clock_free),
        ("multiplex-safe", promised.multiplex_safe),
        ("one slot", promised.one_slot),
    ]
}
