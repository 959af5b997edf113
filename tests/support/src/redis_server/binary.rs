//! The server binary that all tests use: `redis-server` of the PATH, or the one that `STAMPEDE_REDIS_SERVER` names.

use std::{
    env,
    ffi::OsString,
    process::{Command, Output},
    sync::OnceLock,
};

/// The binary and its version.
#[derive(Debug)]
pub(super) struct Binary {
    pub(super) path: OsString,
    /// Major and minor version. A Valkey has numbers of its own, from 7.2 on.
    pub(super) version: (u32, u32),
}

/// Returns the binary; panics if it does not run.
pub(super) fn binary() -> &'static Binary {
    static BINARY: OnceLock<Binary> = OnceLock::new();
    BINARY.get_or_init(|| {
        let named = env::var_os(VARIABLE);
        let path = named.clone().unwrap_or_else(|| "redis-server".into());
        let output = Command::new(&path).arg("--version").output();
        let version = output.as_ref().ok().and_then(version);
        let why = || output.as_ref().map_or_else(ToString::to_string, |output| format!("{output:?}"));
        match (version, &named) {
            (Some(version), _) => Binary { path, version },
            (None, Some(_)) => {
                panic!("{VARIABLE} is {path:?}, which is not the path of a redis-server or valkey-server: {}", why())
            }
            (None, None) => panic!(
                "redis-server does not run, and these tests are about it: install it so that it is on PATH, run \
                 scripts/test.sh, or set {VARIABLE} to the path of a server: {}",
                why()
            ),
        }
    })
}

/// Reads `Redis server v=7.0.15 sha=..` or `Valkey server v=9.1.2 sha=..`.
fn version(output: &Output) -> Option<(u32, u32)> {
    let text = std::str::from_utf8(&output.stdout).ok()?;
    let mut numbers = text.split_once(" server v=")?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

const VARIABLE: &str = "STAMPEDE_REDIS_SERVER";
