//! The walk, as a program.

use std::process::Command;

#[test]
fn no_operation_executes_more_than_recorded() {
    let output = Command::new(env!("CARGO_BIN_EXE_walk")).arg("--check").output().expect("the program starts");
    let [printed, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{printed}");
    assert!(output.status.success(), "{printed}{errors}");
}
