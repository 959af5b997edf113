//! Failures that callers are told again while a failure marker blocks their key: the report in the marker for other
//! processes, and the error itself in the process of the leader.

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    store::token::Token,
    sync::mutex::Mutex,
};
use bytes::Bytes;
use std::{collections::HashMap, time::Duration};

/// Returns the report in the marker of a fetch that failed under the lease with this token. It has the token, and one
/// byte for the kind.
pub(super) fn report_of(id: Token, kind: ErrorKind) -> Bytes {
    let kind = KINDS.iter().position(|known| *known == kind).unwrap_or(0);
    [id.as_bytes(), &[kind as u8][..]].concat().into()
}

/// Decodes a report. `None` if it is too short for one. A kind that this version does not know is `Origin`. Earlier
/// versions append a status and a text, which are ignored.
fn decode(report: &[u8]) -> Option<(Token, ErrorKind)> {
    let (id, rest) = report.split_first_chunk()?;
    let kind = KINDS.get(usize::from(*rest.first()?)).copied().unwrap_or(ErrorKind::Origin);
    Some((Token::from_bytes(*id), kind))
}

/// The errors of recent fetches of this engine, by the id of the failure, each for as long as its marker blocks the key.
#[derive(Default)]
pub(super) struct RecentFailures(Mutex<HashMap<Token, (Error, Timestamp)>>);

impl RecentFailures {
    /// Keeps the error of a fetch for this time, if it has a cause that a report cannot hold. Each call drops the errors
    /// whose time has passed. While [`MAX_KEPT`] errors are kept, further ones are not, because the errors of an
    /// application may be large.
    pub(super) fn keep(&self, id: Token, error: &Error, span: Duration) {
        if error.cause().is_none() {
            return;
        }
        let now = Timestamp::now();
        let mut kept = self.0.lock();
        let past: Vec<_> = kept.extract_if(|_, (_, until)| *until <= now).collect();
        if kept.len() < MAX_KEPT {
            kept.insert(id, (error.clone(), now.after(span)));
        }
        drop(kept);
        drop(past); // without the lock, because errors are of any type
    }

    /// Returns the error for a caller that a failure marker with this report blocks. It has the original cause if this
    /// engine has kept the error of that failure, otherwise what the report says.
    pub(super) fn error_of(&self, report: &[u8], retry_in: Duration) -> Error {
        let (id, kind) = decode(report).unzip();
        let kept = id.and_then(|id| Some(self.0.lock().get(&id)?.0.with_retry_in(retry_in)));
        kept.unwrap_or_else(|| Error::reported(kind.unwrap_or(ErrorKind::Origin), retry_in))
    }
}

/// The kinds of failures that leave a marker. Their positions are part of the format: append only.
const KINDS: [ErrorKind; 3] = [ErrorKind::Origin, ErrorKind::TimedOut, ErrorKind::Panicked];
/// Maximum number of errors that are kept.
const MAX_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::token::Inbox;
    use proptest::prelude::*;

    proptest! {
        /// Also with the text that earlier versions append.
        #[test]
        fn reports_survive_their_encoding(kind in 0..KINDS.len(), text in "\\PC{0,64}") {
            let (id, kind) = (Token::unique(Inbox::unique()), KINDS[kind]);
            let earlier = [&report_of(id, kind)[..], text.as_bytes()].concat();
            prop_assert_eq!(decode(&earlier), Some((id, kind)));
        }

        #[test]
        fn any_bytes_are_read_as_a_report_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(decode(&bytes).is_some(), bytes.len() >= 17);
        }
    }
}
