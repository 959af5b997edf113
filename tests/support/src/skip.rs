//! Tests of features that a server of the matrix lacks.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write},
    thread,
};

/// Records that this test is skipped, in the file that `STAMPEDE_SKIPS` names and on standard error. The test has to
/// return at once. `scripts/test.sh --servers` compares the records with a list in the repository.
///
/// Panics without that variable, so that no test is skipped on the default server. To be called on the thread of the
/// test, which has its name.
pub fn skip(reason: &str) {
    let Some(file) = env::var_os(VARIABLE) else {
        panic!("the server lacks what this test needs: {reason}; tests are skipped only if {VARIABLE} names a file");
    };
    let thread = thread::current();
    let test = thread.name().expect("the thread of a test has its name");
    let record = format!("{}::{test}: {reason}\n", binary());
    let file = OpenOptions::new().create(true).append(true).open(file);
    // Tests of several threads and processes append to the file, each record by one write.
    file.and_then(|mut file| file.write_all(record.as_bytes())).expect("the file of the skips can be written");
    // Not `eprintln!`, because libtest hides its output if the test passes.
    write!(io::stderr(), "skipped: {record}").expect("stderr is open");
}

/// Returns the name of this test binary, without the hash that cargo adds.
fn binary() -> String {
    let path = env::current_exe().expect("this binary has a path");
    let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("cargo names binaries in UTF-8");
    stem.rsplit_once('-').map_or(stem, |(name, _)| name).to_owned()
}

const VARIABLE: &str = "STAMPEDE_SKIPS";
