//! The text of an event at the server, without tokens and stamps, so that two runs of a seed can be compared.

use stampede_guard::{
    store::LeaseReply,
    testing::{Event, EventKind},
};
use std::fmt;

/// Shows an event.
pub(crate) struct Shown<'a>(pub(crate) &'a Event);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(event) = self;
        write!(f, "{:?} ", event.at)?;
        match event.node {
            Some(number) => write!(f, "node {number}:")?,
            None => f.write_str("server:")?,
        }
        let key = event.key().map_or_else(String::new, |key| format!(" {}", key.primary().escape_ascii()));
        match event.kind() {
            EventKind::Get(Some(entry)) => write!(f, " get{key}: {:?}", entry.meta().kind),
            EventKind::Get(None) => write!(f, " get{key}: nothing"),
            EventKind::GetOrLease(_, reply) => {
                write!(f, " get_or_lease{key}: ")?;
                match reply {
                    LeaseReply::Hit(entry) => write!(f, "{:?}", entry.meta().kind),
                    LeaseReply::Granted { .. } => f.write_str("granted"),
                    LeaseReply::Wait { remaining, .. } => write!(f, "wait {remaining:?}"),
                    LeaseReply::Failed { retry_in, .. } => write!(f, "failed, again in {retry_in:?}"),
                }
            }
            EventKind::Fill(_, _, outcome) => write!(f, " fill{key}: {outcome:?}"),
            EventKind::Release(_, _, status) => write!(f, " release{key}: {status:?}"),
            EventKind::Extend(_, status) => write!(f, " extend{key}: {status:?}"),
            EventKind::Invalidate => write!(f, " invalidate{key}"),
            EventKind::Expire => write!(f, " expire{key}"),
            EventKind::Notified { invalidated: true, .. } => write!(f, " notified of invalidation{key}"),
            EventKind::Notified { .. } => write!(f, " notified{key}"),
            EventKind::Expired => write!(f, " expired{key}"),
            EventKind::Evicted => write!(f, " evicted{key}"),
            EventKind::Flushed => f.write_str(" flushed"),
            EventKind::Killed => f.write_str(" killed"),
            EventKind::Revived => f.write_str(" revived"),
            other => write!(f, " {other:?}"),
        }
    }
}
