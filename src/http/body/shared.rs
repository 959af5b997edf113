//! A body while it is collected, and its readers.

use crate::sync::mutex::Mutex;
use bytes::Bytes;
use http::HeaderMap;
use http_body::SizeHint;
use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use tokio::sync::Notify;

/// A body while it is collected, for any number of readers at their own positions. Its size is bounded by the cap.
pub(in crate::http) struct SharedBody {
    state: Mutex<BodyState>,
    /// Total length in bytes, if the origin states it.
    size: Option<u64>,
    /// Notified when the last joined reader leaves.
    deserted: Notify,
}

#[derive(Default)]
struct BodyState {
    chunks: Vec<Bytes>,
    /// The trailers, until the leader's client reads them.
    trailers: Option<HeaderMap>,
    end: Option<BodyEnd>,
    waiting: HashMap<usize, Waker>,
    /// Number of joined readers so far.
    readers: usize,
    /// Number of joined readers that are left: all readers but the leader's client.
    joined: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyEnd {
    Complete,
    Truncated,
    /// The leader's client reads the rest directly from the origin.
    HandedOff,
}

impl SharedBody {
    pub(super) fn new(size: Option<u64>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), size, deserted: Notify::new() })
    }

    /// Returns a body that is complete already.
    pub(in crate::http) fn complete(body: Bytes) -> Arc<Self> {
        let shared = Self::new(Some(body.len() as u64));
        if !body.is_empty() {
            shared.push(body);
        }
        shared.end(BodyEnd::Complete);
        shared
    }

    /// Returns the reader of the leader's client.
    pub(super) fn leader(self: &Arc<Self>) -> Reader {
        Reader { body: self.clone(), number: LEADER, chunk: 0, read: 0 }
    }

    /// Returns a reader that begins at the first byte. `None` if the body will not be complete, because a caller that
    /// arrives now can still fetch a complete one.
    pub(super) fn join(self: &Arc<Self>) -> Option<Reader> {
        let mut state = self.state.lock();
        if matches!(state.end, Some(BodyEnd::Truncated | BodyEnd::HandedOff)) {
            return None;
        }
        state.joined += 1;
        state.readers += 1;
        Some(Reader { body: self.clone(), number: state.readers, chunk: 0, read: 0 })
    }

    pub(super) fn push(&self, chunk: Bytes) {
        self.change(|state| state.chunks.push(chunk));
    }

    /// Keeps the trailers for the leader's client. They are neither shared nor stored (RFC 9111 §3.1).
    pub(super) fn set_trailers(&self, trailers: HeaderMap) {
        self.state.lock().trailers = Some(trailers);
    }

    pub(super) fn end(&self, end: BodyEnd) {
        self.change(|state| state.end = Some(end));
    }

    /// Waits until no joined reader is left. No reader joins from then on, because the rest is about to be handed off.
    pub(super) async fn close_when_deserted(&self) {
        loop {
            let deserted = self.deserted.notified(); // before the check, so that no reader leaves unnoticed
            if self.close_if_deserted() {
                return;
            }
            deserted.await;
        }
    }

    fn close_if_deserted(&self) -> bool {
        let mut state = self.state.lock();
        if state.joined == 0 {
            state.end.get_or_insert(BodyEnd::HandedOff);
        }
        state.joined == 0
    }

    fn change(&self, change: impl FnOnce(&mut BodyState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }
}

/// A reader of a shared body.
pub(super) struct Reader {
    body: Arc<SharedBody>,
    /// [`LEADER`], or the number of a joined reader. PERF: not a second field, because every response has room for it.
    number: usize,
    chunk: usize,
    read: u64,
}

impl Reader {
    pub(super) fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Result<Bytes, BodyEnd>> {
        let mut state = self.body.state.lock();
        match (state.chunks.get(self.chunk), state.end) {
            (Some(chunk), _) => {
                self.chunk += 1;
                self.read += chunk.len() as u64;
                Poll::Ready(Ok(chunk.clone()))
            }
            (None, Some(end)) => Poll::Ready(Err(end)),
            (None, None) => {
                state.waiting.insert(self.number, cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Takes the trailers after the last chunk. `None` for a joined reader.
    pub(super) fn take_trailers(&self) -> Option<HeaderMap> {
        (self.number == LEADER).then(|| self.body.state.lock().trailers.take())?
    }

    pub(super) fn is_at_end(&self) -> bool {
        let state = self.body.state.lock();
        let has_trailers = self.number == LEADER && state.trailers.is_some();
        state.end == Some(BodyEnd::Complete) && self.chunk == state.chunks.len() && !has_trailers
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size.map_or_else(SizeHint::new, |size| SizeHint::with_exact(size.saturating_sub(self.read)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.body.state.lock();
        state.waiting.remove(&self.number);
        if self.number != LEADER {
            state.joined -= 1;
            let is_last = state.joined == 0;
            drop(state);
            if is_last {
                self.body.deserted.notify_waiters();
            }
        }
    }
}

/// The number of the reader of the leader's client.
const LEADER: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::explore;
    use shuttle::{future, thread};

    /// Seen to fail when the check and the end are two steps, and to deadlock when a closing task checks before it
    /// registers.
    #[test]
    fn body_is_closed_after_its_last_joined_reader() {
        explore(|| {
            let body = SharedBody::new(None);
            let first = body.join();
            let readers = [first, None].map(|reader| {
                let body = body.clone();
                thread::spawn(move || {
                    let Some(reader) = reader.or_else(|| body.join()) else { return };
                    assert!(body.state.lock().end.is_none(), "a reader is left");
                    drop(reader);
                })
            });
            let closed = body.clone();
            future::block_on(future::spawn(async move { closed.close_when_deserted().await })).unwrap();
            assert!(body.join().is_none());
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
