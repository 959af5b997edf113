//! A second lock that is known to work, because all clients are on one machine.

use std::{
    fs::File,
    io::{self, ErrorKind},
    path::Path,
};

/// A file that the holder of the lock locks.
pub(crate) struct Oracle(File);

impl Oracle {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(File::create(path)?))
    }

    /// Tries to lock the file. Returns `false` if another process has locked it. Does not wait.
    #[cfg(unix)]
    pub(crate) fn lock(&self) -> io::Result<bool> {
        use rustix::fs::{FlockOperation, flock};
        match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(unix)]
    pub(crate) fn unlock(&self) -> io::Result<()> {
        use rustix::fs::{FlockOperation, flock};
        Ok(flock(&self.0, FlockOperation::Unlock)?)
    }
}
