//! The compiler and the processor of a record.

use serde::{Deserialize, Serialize};
use std::{env, fmt, process::Command};

#[derive(PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MadeWith {
    rustc: String,
    arch: String,
}

impl MadeWith {
    pub(crate) fn here() -> Self {
        let rustc = Command::new("rustc").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        Self { rustc: String::from_utf8_lossy(&rustc).trim().to_owned(), arch: env::consts::ARCH.to_owned() }
    }
}

impl fmt::Display for MadeWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.rustc, self.arch)
    }
}
