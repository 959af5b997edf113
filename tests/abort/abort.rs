//! A type whose `Deserialize` panics on the invented values from which its structure is learnt.

use std::{path::Path, process::Command};

/// Seen to fail (the process is aborted at its first fetch) when the structure of the type was learnt even so.
#[test]
fn program_that_aborts_survives_a_type_that_trusts_its_data() {
    // A folder of its own, because other builds hold that of this test.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abort");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--target-dir"]).arg(&target);
    build.envs([("CARGO_PROFILE_DEV_PANIC", "abort"), ("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "0")]);
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "the program is not built");
    let output = Command::new(target.join("debug/trusting")).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive after 1 call\n");
}
