//! Failures that callers are told again while a failure marker blocks their key: the report in the marker for other
//! processes, and the error itself in the process of the leader.

use super::frontend::Failure;
use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    key::CacheKey,
    store::token::Token,
    sync::mutex::Mutex,
};
use bytes::Bytes;
use std::{collections::HashMap, time::Duration};

/// What a failure marker says of the failure: its kind, a status, and the text of the error.
///
/// Encoded as the id of the failed lease, one byte for the kind, two for the status, and the text in UTF-8.
#[derive(Debug, PartialEq)]
struct FailureReport {
    /// The token of the lease under which the fetch failed.
    id: Token,
    kind: ErrorKind,
    code: u16,
    text: String,
}

/// Returns the report of a fetch that failed under the lease with this token. `code` is a status, or 0, and `shares_text`
/// says whether other processes get the text of the error.
pub(super) fn report_of(id: Token, failure: &Failure, code: u16, shares_text: bool) -> Bytes {
    let (kind, cause) = match failure {
        Failure::Error(error) | Failure::Answer(error) => (error.kind(), error.cause().filter(|_| shares_text)),
        Failure::SharedValue(_) => (ErrorKind::Origin, None),
    };
    let text = cause.map(ToString::to_string).unwrap_or_default();
    FailureReport { id, kind, code, text }.encode()
}

/// The errors of recent fetches of this process, each for as long as its failure marker blocks the key.
#[derive(Default)]
pub(super) struct RecentFailures(Mutex<HashMap<CacheKey, RecentFailure>>);

struct RecentFailure {
    id: Token,
    error: Error,
    until: Timestamp,
}

impl RecentFailures {
    /// Keeps the error of a fetch. Errors whose time is over are dropped with each further one. While many keys fail,
    /// only the first ones are kept, because the errors of an application may be large.
    pub(super) fn keep(&self, key: &CacheKey, id: Token, error: Error, span: Duration) {
        let now = Timestamp::now();
        let mut kept = self.0.lock();
        kept.retain(|_, failure| now < failure.until);
        if kept.len() < MAX_KEPT {
            kept.insert(key.without_layout(), RecentFailure { id, error, until: now.after(span) });
        }
    }

    /// Returns the error for a caller that a failure marker with this report blocks. It has the original cause if the
    /// fetch failed in this process, otherwise what the report says.
    pub(super) fn error_of(&self, key: &CacheKey, report: &[u8], retry_in: Duration) -> Error {
        let Some(FailureReport { id, kind, code, text }) = FailureReport::decode(report) else {
            return Error::reported(ErrorKind::Origin, 0, "", retry_in);
        };
        match self.0.lock().get(&key.without_layout()).filter(|failure| failure.id == id) {
            Some(failure) => failure.error.repeated(retry_in),
            None => Error::reported(kind, code, &text, retry_in),
        }
    }
}

impl FailureReport {
    fn encode(&self) -> Bytes {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(0);
        let end = (0..=self.text.len().min(MAX_TEXT)).rev().find(|end| self.text.is_char_boundary(*end)).unwrap_or(0);
        [self.id.as_bytes(), &[kind as u8][..], &self.code.to_be_bytes(), &self.text.as_bytes()[..end]].concat().into()
    }

    /// Decodes a report. `None` if it is too short for one; everything else is read as well as it can be.
    fn decode(report: &[u8]) -> Option<Self> {
        let (id, rest) = report.split_first_chunk()?;
        let ([kind, high, low], text) = rest.split_first_chunk()?;
        Some(Self {
            id: Token::from_bytes(*id),
            kind: KINDS.get(usize::from(*kind)).copied().unwrap_or(ErrorKind::Origin),
            code: u16::from_be_bytes([*high, *low]),
            text: String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]).into_owned(),
        })
    }
}

/// The kinds of failures that leave a marker. Their positions are part of the format: append only.
const KINDS: [ErrorKind; 3] = [ErrorKind::Origin, ErrorKind::TimedOut, ErrorKind::Panicked];
/// Maximum length of the text of an error in a failure marker, in bytes.
const MAX_TEXT: usize = 256;
/// Maximum number of errors that are kept.
const MAX_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::token::Inbox;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reports_survive_their_encoding(kind in 0..KINDS.len(), code: u16, text in "\\PC{0,400}") {
            let id = Token::unique(Inbox::unique());
            let report = FailureReport { id, kind: KINDS[kind], code, text };
            let read = FailureReport::decode(&report.encode()).expect("a report");
            prop_assert_eq!((read.id, read.kind, read.code), (id, KINDS[kind], code));
            prop_assert!(report.text.starts_with(&read.text));
            prop_assert!(read.text == report.text || (MAX_TEXT - 3..=MAX_TEXT).contains(&read.text.len()));
        }

        #[test]
        fn any_bytes_are_read_as_a_report_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(FailureReport::decode(&bytes).is_some(), bytes.len() >= 19);
        }
    }
}
