//! Splits Rust source into tokens and comments.

/// A word, a number, `::`, or one character of punctuation. Strings and characters are the token `""`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Whether the token is an identifier or a keyword.
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) tokens: Vec<Token>,
    /// Each line of each comment with its line number, without the marks of a comment.
    pub(crate) comments: Vec<(usize, String)>,
}

/// Splits `text`, which is expected to compile.
pub(crate) fn split(text: &str) -> Source {
    let chars: Vec<char> = text.chars().collect();
    let (mut source, mut at, mut line) = (Source::default(), 0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let length = if rest.starts_with(&['/', '/']) {
            let length = rest.iter().position(|&c| c == '\n').unwrap_or(rest.len());
            source.comments.push((line, without_marks(&rest[..length])));
            length
        } else if rest.starts_with(&['/', '*']) {
            let length = block_comment(rest);
            let lines = rest[..length].split(|&c| c == '\n');
            source.comments.extend((line..).zip(lines.map(without_marks)));
            length
        } else if rest[0].is_whitespace() {
            1
        } else if let Some(length) = literal(rest) {
            source.tokens.push(Token { text: "\"\"".to_owned(), line });
            length
        } else {
            let length = match rest {
                [':', ':', ..] => 2,
                // A lifetime.
                ['\'', ..] => 1 + word(&rest[1..]),
                // A raw identifier.
                ['r', '#', ..] => 2 + word(&rest[2..]),
                _ => word(rest).max(1),
            };
            source.tokens.push(Token { text: rest[..length].iter().collect(), line });
            length
        };
        line += rest[..length].iter().filter(|&&c| c == '\n').count();
        at += length;
    }
    source
}

fn without_marks(comment: &[char]) -> String {
    let text: String = comment.iter().collect();
    text.trim_end_matches("*/").trim().trim_start_matches(['/', '*', '!']).trim().to_owned()
}

fn word(rest: &[char]) -> usize {
    rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').count()
}

/// The length of the comment that starts here. Block comments nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of the string or character that starts here, if one does.
fn literal(rest: &[char]) -> Option<usize> {
    let prefix = rest.iter().take(2).take_while(|c| "bcr".contains(**c)).count();
    let body = &rest[prefix..];
    if rest[..prefix].contains(&'r') {
        let hashes = body.iter().take_while(|c| **c == '#').count();
        let inner = body[hashes..].strip_prefix(&['"'])?;
        let end: Vec<char> = "\"".chars().chain("#".repeat(hashes).chars()).collect();
        let length = inner.windows(end.len()).position(|window| window == end)?;
        return Some(prefix + hashes + 1 + length + end.len());
    }
    let quote = *body.first()?;
    let is_char = quote == '\'' && (body.get(1) == Some(&'\\') || body.get(2) == Some(&'\''));
    if quote != '"' && !is_char {
        return None;
    }
    let mut at = 1;
    while *body.get(at)? != quote {
        at += if body[at] == '\\' { 2 } else { 1 };
    }
    Some(prefix + at + 1)
}

/// The index of the bracket that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

/// Returns `tokens` without items under `#[cfg(test)]`, and the number of lines of these items.
pub(crate) fn without_tests(tokens: &[Token]) -> (Vec<Token>, usize) {
    let (mut kept, mut lines, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        let is_here = |pattern: &str| pattern.split(' ').zip(&tokens[at..]).filter(|(p, t)| t.is(p)).count();
        if is_here("# [ cfg ( test )") == 6 || is_here("# [ cfg ( all ( test") == 7 {
            let end = item_end(tokens, at);
            lines += tokens[end - 1].line - tokens[at].line + 1;
            at = end;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    (kept, lines)
}

/// The index after the item, field or statement at `at`, which starts with its attributes.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    const ITEMS: [&str; 9] = ["fn", "impl", "struct", "enum", "trait", "mod", "const", "static", "type"];
    let (mut is_use, mut is_item) = (false, false);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" if !is_use => return closing(tokens, at) + 1,
            "(" | "[" | "{" => at = closing(tokens, at),
            ")" | "]" | "}" => return at,
            ";" => return at + 1,
            "," if !is_item && !is_use => return at + 1,
            "use" => is_use = true,
            word => is_item |= ITEMS.contains(&word),
        }
        at += 1;
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        split(text).tokens.iter().map(|token| token.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(words("a(\"use \\\" b\"); // use c\n/* /* d */ use */ e"), "a ( \"\" ) ; e");
        assert_eq!(words("r#\"use \"a\" b\"# br\"\\\" b'x' c"), "\"\" \"\" \"\" c");
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(words("<'a> 'b' '\\'' '\\u{1F}' r#type::x"), "< 'a > \"\" \"\" \"\" r#type :: x");
    }

    #[test]
    fn comments_have_line_numbers_and_no_marks() {
        let source = split("//! One\nlet a = \"//\"; // two\n/** three\n * four */");
        let expected = [(1, "One"), (2, "two"), (3, "three"), (4, "four")];
        assert_eq!(source.comments, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn items_under_cfg_test_are_left_out() {
        let tokens = split("a;\n#[cfg(test)]\nuse b::{c};\n#[cfg(test)]\n#[d]\nfn e<F, G>() {\n{}\n}\nh").tokens;
        let (kept, lines) = without_tests(&tokens);
        assert_eq!(kept.iter().map(|token| token.text.as_str()).collect::<String>(), "a;h");
        assert_eq!(lines, 2 + 5);
    }
}
