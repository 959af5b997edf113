//! The files that a cold request over Redis crosses, by the walk of the architecture guide.

use crate::{Files, Findings};
use std::collections::BTreeSet;

/// Maximum number of files on the walk.
const CROSSED: usize = 28;

const GUIDE: &str = "src/guide/architecture.md";

/// The walk: sections of the guide, each with its first and last step.
const WALK: [(&str, usize, usize); 2] = [("Hit", 3, 6), ("Miss", 1, usize::MAX)];

/// The ends of names that count.
const FILES: [&str; 3] = [".rs", ".lua", ".md"];

pub(crate) fn check(files: &Files, findings: &mut Findings) {
    let crossed = files.get(GUIDE).map_or(0, |guide| crossed(guide).len());
    findings.figures.push(format!("files that a cold request over Redis crosses: {crossed} (at most {CROSSED})"));
    if crossed > CROSSED {
        findings.broken.push(format!("{GUIDE}:1: a cold request crosses {crossed} files, at most {CROSSED}"));
    }
}

/// Returns the files that stand in back-quotes in the steps of the walk, each once. Steps are numbered paragraphs. The
/// lists below them, about callers that are cancelled and stores that fail, do not count.
fn crossed(guide: &str) -> BTreeSet<&str> {
    let (mut files, mut section, mut is_on_walk) = (BTreeSet::new(), None, false);
    for line in guide.lines() {
        if line.starts_with('#') {
            let title = line.strip_prefix("## ");
            (section, is_on_walk) = (WALK.iter().find(|(name, ..)| title == Some(name)), false);
        } else if let Some(step) = step(line) {
            is_on_walk = section.is_some_and(|(_, first, last)| (*first..=*last).contains(&step));
        } else if line.trim_start().starts_with("- ") {
            is_on_walk = false;
        }
        if is_on_walk {
            let quoted = line.split('`').skip(1).step_by(2);
            files.extend(quoted.filter(|name| FILES.iter().any(|end| name.ends_with(end))));
        }
    }
    files
}

/// The number of the step that starts on this line.
fn step(line: &str) -> Option<usize> {
    line.split_once(". ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_walk_name_their_files() {
        let guide = "# Parts\n\n3. `a.rs`\n\n## Hit\n\n2. `b.rs`\n3. `c.rs` calls `f` of\n   `d/e.lua`, `c.rs`\n   - *Store fails:* \
                     `g.rs`\n     `h.rs`\n6. `i.rs`\n7. `j.rs`\n\n## Miss\n\n1. `k.md`\n9. `l.rs`\n\n## Wait\n\n1. `m.rs`\n";
        assert_eq!(crossed(guide), BTreeSet::from(["c.rs", "d/e.lua", "i.rs", "k.md", "l.rs"]));
    }
}
