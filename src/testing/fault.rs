//! What goes wrong, and when.

use super::Gate;
use std::{collections::VecDeque, time::Duration};

/// What a guard asks its store for. See [`Store`](crate::store::Store).
///
/// ```
/// use stampede_guard::testing::{Fault, Operation, Server};
///
/// let process = Server::new().process();
/// for operation in [Operation::Get, Operation::Lead, Operation::Fill] {
///     process.once(operation, Fault::Hangs);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads the entry.
    Get,
    /// Asks for the entry, or for the right to compute it.
    Lead,
    /// Stores what was computed.
    Fill,
    /// Gives that right back.
    Abandon,
    /// Keeps it for longer.
    Extend,
    /// Drops the entry, and refuses what is being computed.
    Invalidate,
}

/// What goes wrong with an operation on its way to the store and back.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{Fault, Operation, Origin, Server};
///
/// let (process, origin) = (Server::new().process(), Origin::new());
/// process.always(Operation::Get, Fault::Fails);
/// process.always(Operation::Lead, Fault::Fails);
/// assert_eq!(process.guard().fetch("k", origin.fetch(1)).await?, 1); // without a store, by the origin
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Not done, and says so: the server is full, or a replica.
    Fails,
    /// Not done: the connection broke.
    RequestLost,
    /// Done, but the connection broke before that was heard of.
    ReplyLost,
    /// Done, and never answered.
    Hangs,
    /// Done and answered so much later; also if nobody waits for it any more by then.
    RequestDelayed(Duration),
    /// Done at once, answered so much later.
    ReplyDelayed(Duration),
    /// Done and answered at once, and done once more so much later: a copy was under way.
    Repeated(Duration),
    /// Done and answered when the gate lets it through; also if nobody waits for it any more by then.
    Held(Gate),
}

/// The faults of one process that are still to come, and how much it has asked.
#[derive(Debug, Default)]
pub(super) struct Script {
    lines: [Line; 6],
}

#[derive(Debug, Default)]
struct Line {
    asked: usize,
    next: VecDeque<(usize, Fault)>,
    always: Option<Fault>,
}

impl Script {
    pub(super) fn times(&mut self, n: usize, operation: Operation, fault: Fault) {
        self.line(operation).next.push_back((n, fault));
    }

    pub(super) fn always(&mut self, operation: Operation, fault: Fault) {
        self.line(operation).always = Some(fault);
    }

    pub(super) fn heal(&mut self) {
        for line in &mut self.lines {
            *line = Line { asked: line.asked, ..Line::default() };
        }
    }

    pub(super) fn asked(&self, operation: Operation) -> usize {
        self.lines[operation as usize].asked
    }

    /// What happens to the operation that is asked for now.
    pub(super) fn play(&mut self, operation: Operation) -> Option<Fault> {
        let line = self.line(operation);
        line.asked += 1;
        while line.next.front().is_some_and(|(left, _)| *left == 0) {
            line.next.pop_front();
        }
        match line.next.front_mut() {
            Some((left, fault)) => {
                *left -= 1;
                Some(fault.clone())
            }
            None => line.always.clone(),
        }
    }

    fn line(&mut self, operation: Operation) -> &mut Line {
        &mut self.lines[operation as usize]
    }
}
