//! The examples, as programs.

use stampede_guard_support::program::{printed, program, run, text};
use tokio::process::Command;

fn soak(args: &[&str]) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_soak"));
    command.args(args);
    command
}

#[tokio::test]
async fn a_short_soak_finds_no_violation() {
    let printed = printed(soak(&["--seconds", "5", "--processes", "2"])).await;
    assert!(printed.starts_with("seed ") && printed.ends_with("everything held\n"), "{printed}");
}

/// Each check of the soak is seen to fail under its sabotage.
#[tokio::test]
async fn a_sabotaged_soak_fails() {
    let cases = [
        ("stale", "was settled before"),
        ("keys", "a value of another"),
        ("errors", "was not answered, although its origin Answers"),
        ("private", "another caller's private value"),
        ("memory", "memory grew"),
        ("tasks", "tasks are left"),
        ("leases", "rsabotage}:l is left"),
    ];
    for (sabotage, violation) in cases {
        let output = run(soak(&["--seconds", "3", "--processes", "1", "--sabotage", sabotage])).await;
        let printed = text(output.stdout);
        assert_eq!(output.status.code(), Some(1), "{sabotage}: {printed}");
        assert!(printed.contains(violation), "{sabotage}: {printed}");
    }
}
