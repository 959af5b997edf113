//! Signals to processes that the test started.

use std::{fs, process::Command, thread, time::Duration};

/// Sends the signal of that name (`STOP`, `CONT`, ..) with the shell's own `kill`. std has none, and not every machine
/// has one on its PATH.
///
/// For `STOP` it returns when the process has stopped. On a busy machine its threads run on until one of them has seen
/// the signal.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, name, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "process {pid} did not take the signal {name}");
    while name == "STOP" && runs(pid) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reports whether any thread of the process runs; `false` if the system has no `/proc`.
fn runs(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stat = |path| fs::read_to_string(path).unwrap_or_default();
    let mut states = threads.flatten().map(|thread| stat(thread.path().join("stat")));
    // A thread in state T, or one that has ended, does not run. The thread's name, in brackets, may contain anything.
    states.any(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 'Z', 'X'])))
}
