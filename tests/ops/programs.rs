//! The programs that these tests need, which not every machine has.

use std::{
    env,
    io::{self, Write},
    path::PathBuf,
    thread,
};

/// Reports whether the programs are on the PATH. If one is missing, the test is skipped with a message, or fails if
/// `STAMPEDE_REQUIRE_OPS` is set: `scripts/test.sh --all` sets it, so that CI skips nothing.
pub(crate) fn installed(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().copied().filter(|program| !on_path(program)).collect();
    if missing.is_empty() {
        return true;
    }
    let missing = format!("not on the PATH: {}; `scripts/test.sh --all` installs it", missing.join(", "));
    assert!(env::var_os("STAMPEDE_REQUIRE_OPS").is_none(), "{missing}");
    let test = thread::current();
    // Not `eprintln!`, because libtest hides its output if the test passes.
    writeln!(io::stderr(), "skipped: {}, {missing}", test.name().unwrap_or_default()).expect("stderr is open");
    false
}

fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Returns the path of a file in `ops/`.
pub(crate) fn ops(file: &str) -> PathBuf {
    repository(&format!("ops/{file}"))
}

/// Returns the path of a file of the repository.
pub(crate) fn repository(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}
