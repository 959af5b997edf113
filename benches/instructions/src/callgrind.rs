//! Counts the instructions of a process with callgrind.

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

/// Counts the instructions of this program, run again with this number of operations of one path.
pub(crate) fn count(path: &str, operations: u32, url: &str) -> u64 {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let profile = dir.path().join("profile");
    let program = env::current_exe().expect("this program has a file");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args([path, &operations.to_string(), url])
        .output()
        .expect("valgrind starts");
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    total(&fs::read_to_string(profile).expect("callgrind has written its profile"))
}

/// Sums the costs of all functions, except the page in which the kernel provides the time. Callgrind names that page
/// neither as an object nor as a file.
fn total(profile: &str) -> u64 {
    let (mut total, mut counts, mut of_call) = (0, true, false);
    for line in profile.lines() {
        match line.split_once('=') {
            Some(("ob", object)) => counts = is_file(object),
            Some(("calls", _)) => of_call = true,
            Some(_) => {}
            None if std::mem::take(&mut of_call) => {}
            None => {
                let mut numbers = line.split(' ').map(str::parse::<u64>);
                if let (true, Some(Ok(_)), Some(Ok(cost)), None) =
                    (counts, numbers.next(), numbers.next(), numbers.next())
                {
                    total += cost;
                }
            }
        }
    }
    total
}

fn is_file(object: &str) -> bool {
    object.starts_with('/') && !object.contains("vdso")
}
