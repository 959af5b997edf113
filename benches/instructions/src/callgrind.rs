//! Runs this program again under callgrind.

use std::{
    env, fs,
    process::{Command, Stdio},
};

/// Reports whether valgrind can be run. The error is the reason why not.
pub(crate) fn is_there() -> Result<(), String> {
    match Command::new("valgrind").arg("--version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("valgrind does not run ({status})")),
        Err(error) => Err(format!("valgrind does not start ({error})")),
    }
}

/// Returns the profile of this program, run again with these arguments, and callgrind with these options.
pub(crate) fn profile(options: &[&str], arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let profile = dir.path().join("profile");
    let program = env::current_exe().expect("this program has a file");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .args(options)
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args(arguments)
        .output()
        .expect("valgrind starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(profile).expect("callgrind has written its profile")
}
