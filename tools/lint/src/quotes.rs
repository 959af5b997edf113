//! The figures of README.md: those of docs/lab/comparison.md, as `scripts/compare.sh` has written them.

use crate::{Files, Findings};

pub(crate) fn check(files: &Files) -> Findings {
    let [readme, lab] = DOCUMENTS.map(|path| files.get(path).and_then(|text| block(text)));
    let mut findings = Findings::default();
    if readme.is_none() || readme != lab {
        findings.broken.push(format!(
            "{}:1: its text between `{BEGIN}` and `{END}` is not that of {}",
            DOCUMENTS[0], DOCUMENTS[1]
        ));
    }
    findings
}

fn block(text: &str) -> Option<&str> {
    Some(text.split_once(BEGIN)?.1.split_once(END)?.0)
}

const DOCUMENTS: [&str; 2] = ["README.md", "docs/lab/comparison.md"];
const BEGIN: &str = "<!-- comparison, written by scripts/compare.sh -->";
const END: &str = "<!-- end of comparison -->";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_quotes_the_comparison() {
        let with = |figure: &str| format!("# A title\n{BEGIN}\n| {figure} |\n{END}\nMore.\n");
        let broken = |readme: String, lab: String| {
            let files = DOCUMENTS.map(str::to_owned).into_iter().zip([readme, lab]).collect();
            check(&files).broken.len()
        };
        assert_eq!(broken(with("0.67"), with("0.67") + "More of the lab.\n"), 0);
        assert_eq!(broken(with("0.67"), with("0.66")), 1);
        assert_eq!(broken("# No figures\n".to_owned(), "# No figures\n".to_owned()), 1);
    }
}
