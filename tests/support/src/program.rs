//! The examples, as programs.

use std::{
    env,
    ffi::OsStr,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};
use tokio::{process::Command, time::timeout};

/// Returns an example as cargo has built it: next to the directory of this test.
pub fn example(name: &str) -> Command {
    let test = env::current_exe().expect("this binary has a path");
    let target: PathBuf = test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("examples");
    let path = target.join(name).with_extension(env::consts::EXE_EXTENSION);
    assert!(path.exists(), "the example is not built: run `cargo test`, or `cargo build --examples` before this test");
    program(path)
}

/// Returns the command for a program. Its output is piped, and dropping the child kills it.
pub fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a program to its end; panics if that takes longer than [`BOUND`].
pub async fn run(mut command: Command) -> Output {
    timeout(BOUND, command.output()).await.expect("it comes to an end").expect("it starts")
}

/// Runs a program that must succeed, and returns its standard output.
pub async fn printed(command: Command) -> String {
    let output = run(command).await;
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// Runs a program that must end with that code, and returns its standard error.
pub async fn complaint(command: Command, code: i32) -> String {
    let output = run(command).await;
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    stderr
}

/// Returns what a program printed; panics if that is not UTF-8.
pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("it prints UTF-8")
}

/// Maximum time that a program may take.
pub const BOUND: Duration = Duration::from_secs(120);
