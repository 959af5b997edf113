//! What has happened at a server.

use crate::store::{Address, Ask, Entry, Filled, Hold, Lead, Lease, Right, Token, Tombstone, Write};
use std::{fmt, time::Duration};

/// One line of [`Server::history`](super::Server::history). It is displayed without tokens and stamps, so that two runs
/// of one test can be compared.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{Origin, Server};
///
/// let server = Server::new();
/// let guard = server.process().guard();
/// guard.fetch("k", Origin::new().fetch(1)).await?;
/// guard.shutdown().await;
/// let lines: Vec<_> = server.history().iter().map(ToString::to_string).collect();
/// assert_eq!(lines, ["0ns process 0: get k: nothing", "0ns process 0: lead k: granted", "0ns process 0: fill k: Stored"]);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// When, counted from when the server was made.
    pub at: Duration,
    /// To whom, or by whom. None: it happened at the server.
    pub process: Option<usize>,
    /// To what. None: to everything, or to the process itself.
    pub address: Option<Address>,
    /// What.
    pub what: Happened,
}

/// What an [`Event`] is: what was asked, and what came of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Happened {
    /// The entry was read.
    Get(Option<Entry>),
    /// Somebody asked for the entry or the right to compute it.
    Lead(Ask, Lead),
    /// Something was to be stored.
    Fill(Right, Vec<Write>, Filled),
    /// A lease was given back.
    Abandon(Token, Option<Tombstone>, Hold),
    /// A lease was to live on.
    Extend(Lease, Hold),
    /// Entry and lease were dropped.
    Invalidate,
    /// A process was told that its wait is over, or that its entry is gone.
    Told {
        /// By an invalidation.
        gone: bool,
    },
    /// The lease ended before its time.
    Expired,
    /// The entry was evicted.
    Evicted,
    /// All entries and leases were lost.
    Flushed,
    /// The process was cut off.
    Killed,
    /// The process is back.
    Revived,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ", self.at)?;
        match self.process {
            Some(number) => write!(f, "process {number}:")?,
            None => f.write_str("server:")?,
        }
        let name = match &self.what {
            Happened::Get(_) => "get",
            Happened::Lead(..) => "lead",
            Happened::Fill(..) => "fill",
            Happened::Abandon(..) => "abandon",
            Happened::Extend(..) => "extend",
            Happened::Invalidate => "invalidate",
            Happened::Told { gone: true } => "told gone",
            Happened::Told { gone: false } => "woken",
            Happened::Expired => "expired",
            Happened::Evicted => "evicted",
            Happened::Flushed => "flushed",
            Happened::Killed => "killed",
            Happened::Revived => "revived",
        };
        write!(f, " {name}")?;
        if let Some(at) = &self.address {
            write!(f, " {}", at.primary().escape_ascii())?;
        }
        match &self.what {
            Happened::Get(Some(entry)) | Happened::Lead(_, Lead::Hit(entry)) => write!(f, ": {:?}", entry.meta().kind),
            Happened::Get(None) => f.write_str(": nothing"),
            Happened::Lead(_, Lead::Granted { .. }) => f.write_str(": granted"),
            Happened::Lead(_, Lead::Wait { remaining, .. }) => write!(f, ": wait {remaining:?}"),
            Happened::Lead(_, Lead::Failed { retry_in, .. }) => write!(f, ": failed, again in {retry_in:?}"),
            Happened::Fill(_, _, filled) => write!(f, ": {filled:?}"),
            Happened::Abandon(_, _, hold) | Happened::Extend(_, hold) => write!(f, ": {hold:?}"),
            _ => Ok(()),
        }
    }
}
