//! Failures that callers are told again while a failure marker blocks their key: the report in the marker for other
//! processes, and the error itself in the process of the leader.

use super::frontend::Failure;
use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    store::token::Token,
    sync::mutex::Mutex,
};
use bytes::Bytes;
use std::{
    borrow::Cow,
    collections::HashMap,
    error,
    fmt::{self, Write},
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

/// The report in a failure marker: id of the failure, its kind, a status, and the text of the error.
///
/// Encoded as the id, one byte for the kind, two for the status, and the text in UTF-8.
#[derive(Debug, PartialEq)]
struct FailureReport<'a> {
    /// The token of the lease under which the fetch failed.
    id: Token,
    kind: ErrorKind,
    code: u16,
    text: Cow<'a, str>,
}

/// Returns the report of a fetch that failed under the lease with this token. `code` is a status, or 0.
pub(super) fn report_of(id: Token, failure: &Failure, code: u16, shares_text: bool) -> Bytes {
    let (kind, cause) = match failure {
        Failure::Error(error) => (error.kind(), error.cause().filter(|_| shares_text)),
        Failure::Answer(_) | Failure::SharedValue(_) => (ErrorKind::Origin, None),
    };
    FailureReport { id, kind, code, text: cause.map(text_of).unwrap_or_default().into() }.encode()
}

/// Returns the beginning of the text of an error. The `Display` of an application may fail, or panic: the leader must
/// go on, because its callers wait.
fn text_of(cause: &(dyn error::Error + Send + Sync)) -> String {
    let mut text = Beginning::default();
    let shown = panic::catch_unwind(AssertUnwindSafe(|| write!(text, "{cause}")));
    shown.map(|_| text.0).unwrap_or_default()
}

/// Text that is cut off at [`MAX_TEXT`] bytes.
#[derive(Default)]
struct Beginning(String);

impl Write for Beginning {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = MAX_TEXT - self.0.len();
        let end = (0..=more.len().min(room)).rev().find(|end| more.is_char_boundary(*end)).unwrap_or(0);
        self.0.push_str(&more[..end]);
        if end == more.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// The errors of recent fetches of this engine, by the id of the failure, each for as long as its marker blocks the key.
#[derive(Default)]
pub(super) struct RecentFailures(Mutex<HashMap<Token, RecentFailure>>);

struct RecentFailure {
    error: Error,
    until: Timestamp,
}

impl RecentFailures {
    /// Keeps the error of a fetch for this time, if it has a cause that a report cannot hold. Each call drops the errors
    /// whose time has passed. While [`MAX_KEPT`] errors are kept, further ones are not, because the errors of an
    /// application may be large. Reports whether the error is kept.
    pub(super) fn keep(&self, id: Token, error: &Error, span: Duration) -> bool {
        if error.cause().is_none() {
            return false;
        }
        let now = Timestamp::now();
        let mut kept = self.0.lock();
        let past: Vec<_> = kept.extract_if(|_, failure| failure.until <= now).collect();
        let has_room = kept.len() < MAX_KEPT;
        if has_room {
            kept.insert(id, RecentFailure { error: error.clone(), until: now.after(span) });
        }
        drop(kept);
        drop(past); // without the lock, because errors are of any type
        has_room
    }

    /// Returns the error for a caller that a failure marker with this report blocks. It has the original cause if this
    /// engine has kept the error of that failure, otherwise what the report says.
    pub(super) fn error_of(&self, report: &[u8], retry_in: Duration) -> Error {
        let Some(FailureReport { id, kind, code, text }) = FailureReport::decode(report) else {
            return Error::reported(ErrorKind::Origin, 0, "", retry_in);
        };
        match self.0.lock().get(&id) {
            Some(failure) => failure.error.repeated(retry_in),
            None => Error::reported(kind, code, &text, retry_in),
        }
    }
}

impl<'a> FailureReport<'a> {
    fn encode(&self) -> Bytes {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(0);
        [self.id.as_bytes(), &[kind as u8][..], &self.code.to_be_bytes(), self.text.as_bytes()].concat().into()
    }

    /// Decodes a report. `None` if it is too short for one. A kind that this version does not know is `Origin`.
    fn decode(report: &'a [u8]) -> Option<Self> {
        let (id, rest) = report.split_first_chunk()?;
        let ([kind, high, low], text) = rest.split_first_chunk()?;
        Some(Self {
            id: Token::from_bytes(*id),
            kind: KINDS.get(usize::from(*kind)).copied().unwrap_or(ErrorKind::Origin),
            code: u16::from_be_bytes([*high, *low]),
            text: String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]),
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
    use std::io;

    proptest! {
        #[test]
        fn reports_survive_their_encoding(kind in 0..KINDS.len(), code: u16, text in "\\PC{0,64}") {
            let id = Token::unique(Inbox::unique());
            let report = FailureReport { id, kind: KINDS[kind], code, text: text.into() };
            let bytes = report.encode();
            prop_assert_eq!(FailureReport::decode(&bytes), Some(report));
        }

        #[test]
        fn any_bytes_are_read_as_a_report_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(FailureReport::decode(&bytes).is_some(), bytes.len() >= 19);
        }

        #[test]
        fn text_is_cut_at_a_character(text in "\\PC{0,400}") {
            let cut = text_of(&io::Error::other(text.clone()));
            prop_assert!(text.starts_with(&cut));
            prop_assert!(cut == text || (MAX_TEXT - 3..=MAX_TEXT).contains(&cut.len()), "{}", cut.len());
        }
    }
}
