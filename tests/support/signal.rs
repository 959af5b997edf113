//! Signals to processes that we started.

use std::process::Command;

/// Sends the signal of that name (`STOP`, `CONT`, ..). By the shell's own `kill`: std has none, and not every machine
/// has one on its PATH.
pub(crate) fn signal(name: &str, pid: u32) {
    let status = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, name, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "process {pid} did not take the signal {name}");
}
