//! The recipes of the seed documents, for their readers and for systems that still use such locks. New code
//! takes [`Lock`](stampede_guard::Lock) with its default recipe, [`SetPx`](stampede_guard::lock::SetPx).

pub(crate) mod counter;
pub(crate) mod exists_setex;
pub(crate) mod getset;
pub(crate) mod optimistic_release;
pub(crate) mod rename;
pub(crate) mod set_membership;
pub(crate) mod setnx_expire;
pub(crate) mod watch;

use stampede_guard::redis::{Cmd, Pipeline, pipe};

/// Returns these commands between `MULTI` and `EXEC`, whose reply is an array of their replies.
fn transaction(commands: impl IntoIterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = pipe();
    pipeline.cmd("MULTI");
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline.cmd("EXEC");
    pipeline
}
