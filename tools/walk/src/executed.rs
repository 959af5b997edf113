//! What an operation executes of the library, by a profile of callgrind with lines.

use crate::callgrind;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The code of the library that was executed. Files are paths from `src/`.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    /// Each with its file. Closures and the bodies of `async` functions are functions of their own; the instances of a
    /// generic function are one.
    pub(crate) functions: BTreeSet<(String, String)>,
    pub(crate) lines: BTreeMap<String, BTreeSet<usize>>,
}

impl Executed {
    /// Runs the operation under callgrind, which counts within `measured` alone. Panics if it executes nothing of the
    /// library, whose count would be the best one.
    pub(crate) fn of(operation: &str, measured: &str, url: &str, source: &Path) -> Self {
        let toggle = format!("--toggle-collect={measured}");
        let executed = Self::read(&callgrind::profile(&["--dump-line=yes", &toggle], &[operation, url]), source);
        assert!(!executed.functions.is_empty(), "{operation} executes nothing of {}", source.display());
        executed
    }

    fn read(profile: &str, source: &Path) -> Self {
        let in_library = |path| Path::new(path).strip_prefix(source).ok().and_then(Path::to_str);
        let (mut executed, mut file, mut own_file) = (Self::default(), None, None);
        let (mut function, mut of_call) = ("", false);
        for line in profile.lines() {
            match line.split_once('=') {
                Some(("fl", path)) => (file, own_file) = (in_library(path), in_library(path)),
                Some(("fi" | "fe", path)) => file = in_library(path),
                Some(("fn", name)) => function = name,
                Some(("calls", _)) => of_call = true,
                Some(_) => {}
                // The cost of the called function, at the line of the call. The line has a cost of its own, too.
                None if std::mem::take(&mut of_call) => {}
                None => {
                    let number = line.split(' ').next().and_then(|number| number.parse().ok());
                    let (Some(number), Some(file)) = (number.filter(|number| *number > 0), file) else { continue };
                    executed.lines.entry(file.to_owned()).or_default().insert(number);
                    if own_file == Some(file) {
                        executed.functions.insert((file.to_owned(), function.to_owned()));
                    }
                }
            }
        }
        executed
    }

    pub(crate) fn line_count(&self) -> usize {
        self.lines.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_lines_of_the_library_count() {
        let profile = "events: Ir\nob=/target/walk\nfl=/lib/src/a.rs\nfn=a::f\n3 10\n4 2\ncfn=std::g\ncalls=1 7\n5 90\n\
            fi=/lib/src/b.rs\n8 1\nfe=/lib/src/a.rs\n3 1\nfl=/std/src/c.rs\nfn=std::g\n7 90\nfl=/lib/src/a.rs\nfn=a::h\n0 4\n";
        let executed = Executed::read(profile, Path::new("/lib/src"));
        assert_eq!(executed.functions, [("a.rs".to_owned(), "a::f".to_owned())].into());
        let lines = [("a.rs".to_owned(), [3, 4].into()), ("b.rs".to_owned(), [8].into())];
        assert_eq!(executed.lines, lines.into());
    }
}
