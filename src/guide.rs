//! Guides to the crate. Documentation only: these modules contain no items.
// Without this, every build would have the empty modules, and users would see them in completions.
#![cfg(any(doc, test))]

#[doc = include_str!("guide/architecture.md")]
pub mod architecture {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    const ARCHITECTURE: &str = include_str!("guide/architecture.md");

    fn section(title: &str) -> &'static str {
        let (_, rest) = ARCHITECTURE.split_once(&format!("\n# {title}\n")).expect("the section exists");
        rest.split_once("\n# ").map_or(rest, |(section, _)| section)
    }

    /// Returns what stands in back-quotes.
    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    #[test]
    fn files_named_by_architecture_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let is_path =
            |word: &&str| !word.contains('\n') && [".rs", ".lua", ".md", "/"].iter().any(|end| word.ends_with(end));
        let paths: Vec<_> = quoted(ARCHITECTURE).filter(is_path).collect();
        for path in &paths {
            assert!(root.join("src").join(path).exists() || root.join(path).exists(), "{path}");
        }
        assert!(paths.len() > 150, "{}", paths.len());
    }

    #[test]
    fn architecture_sequences_need_no_type_names() {
        let is_type = |word: &str| {
            let hump =
                word.as_bytes().windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
            hump || word.contains("::")
        };
        let words = section("Four sequences").split(|c: char| !(c.is_alphanumeric() || c == ':' || c == '_'));
        let types: Vec<_> = words.filter(|word| is_type(word)).collect();
        assert!(types.is_empty(), "{types:?}");
    }

    #[test]
    fn architecture_glossary_has_at_most_15_words() {
        let rows = section("Glossary").lines().filter(|line| line.starts_with("| ")).count();
        assert!((2..=1 + 15).contains(&rows), "{rows}"); // the first row is the head of the table
    }
}
