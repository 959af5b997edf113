//! Signals to processes that we started.

use std::{fs, process::Command, thread, time::Duration};

/// Sends the signal of that name (`STOP`, `CONT`, ..). By the shell's own `kill`: std has none, and not every machine
/// has one on its PATH.
///
/// Returns when a process that is to stop has stopped: on a busy machine its threads go on until one of them has seen the
/// signal.
pub(crate) fn signal(name: &str, pid: u32) {
    let status = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, name, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "process {pid} did not take the signal {name}");
    while name == "STOP" && runs(pid) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether any thread does, where the system has files that say so.
fn runs(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stat = |path| fs::read_to_string(path).unwrap_or_default();
    let mut states = threads.flatten().map(|thread| stat(thread.path().join("stat")));
    // A thread that is gone, or in state T. Its name, in brackets, may hold anything.
    states.any(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 'Z', 'X'])))
}
