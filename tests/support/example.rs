//! The examples, as programs.

use std::{env, path::PathBuf, process::Stdio};
use tokio::process::Command;

/// An example as cargo has built it: beside the directory that this test is in.
pub(crate) fn example(name: &str) -> Command {
    let test = env::current_exe().expect("this binary has a path");
    let target: PathBuf = test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("examples");
    let path = target.join(name).with_extension(env::consts::EXE_EXTENSION);
    assert!(path.exists(), "the example is not built: run `cargo test`, or `cargo build --examples` before this test");
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}
