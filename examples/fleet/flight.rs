//! Those in one process who wait for one answer.

use crate::load::Time;

/// One key in one process. `behind`: the flight that refreshes it while others are answered from what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) process: u32,
    pub(crate) key: u32,
    pub(crate) behind: bool,
}

impl Place {
    pub(crate) fn in_front(self) -> Self {
        Self { behind: false, ..self }
    }

    pub(crate) fn behind(self) -> Self {
        Self { behind: true, ..self }
    }
}

pub(crate) struct Flight {
    pub(crate) stage: Stage,
    pub(crate) began: Time,
    /// When each of them asked.
    pub(crate) waiters: Vec<Time>,
    /// Of all flights, so that nothing meant for an earlier one reaches this one.
    pub(crate) turn: u64,
    /// How often it was told to wait.
    pub(crate) asked: u32,
    /// Whether a wake-up came while it was asking.
    pub(crate) woken: bool,
    /// The entry that it has seen.
    pub(crate) seen: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// `GET` is under way.
    Looking,
    /// `lead` is under way.
    Asking,
    /// Somebody else leads.
    Waiting,
    /// It leads, since then.
    Leading { lease: u32, since: Time },
    /// Those in it are answered; so is who comes now.
    Filling,
    /// It computes without Redis,
    Local,
    /// or will, when fewer others do.
    Queued,
}
