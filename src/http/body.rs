//! Response bodies: stored, being collected for the store and for any number of readers, or streamed from the origin.

use crate::{engine::frontend::Completed, error::BoxError, store::entry::Payload, sync::mutex::Mutex};
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    thread,
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

/// A body of a response of the origin.
pub(super) trait OriginBody: Body<Data: Send, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static> OriginBody for B {}

/// The body of every response of the HTTP layer: stored, being collected, or streamed from the origin (`B`).
///
/// Data is always [`Bytes`]; stored bytes are shared, not copied. An error is a [`BoxError`]: the origin's own, or the
/// notice that a shared body was truncated.
pub struct CacheBody<B> {
    source: Source<B>,
}

enum Source<B> {
    Stored(Bytes),
    Shared { reader: Reader, rest: Option<oneshot::Receiver<Pin<Box<B>>>> },
    Part { body: Box<CacheBody<B>>, skip: u64, left: u64 },
    Origin(Pin<Box<B>>),
}

impl<B> CacheBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self { source: Source::Stored(bytes) }
    }

    pub(super) fn origin(body: B) -> Self {
        Self { source: Source::Origin(Box::pin(body)) }
    }

    /// Returns a body that reads a collected body from its beginning. `None` if that will not be complete.
    pub(super) fn shared(body: &Arc<SharedBody>) -> Option<Self> {
        Some(Self { source: Source::Shared { reader: body.join()?, rest: None } })
    }

    /// Returns the part from the first to the last byte, both inclusive.
    pub(super) fn part(self, first: u64, last: u64) -> Self {
        match self.source {
            // The part lies within the body, which is in memory, so it fits a `usize`.
            Source::Stored(bytes) => Self::stored(bytes.slice(first as usize..=last as usize)),
            _ => Self { source: Source::Part { body: Box::new(self), skip: first, left: last - first + 1 } },
        }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for CacheBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    // PERF: a hit takes 67 instructions more if this is not inlined, which otherwise depends on unrelated code.
    #[inline]
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.source {
            Source::Stored(bytes) => {
                let bytes = mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Source::Part { body, skip, left } => {
                while *left > 0 {
                    let Some(frame) = ready!(Pin::new(&mut **body).poll_frame(cx)).transpose()? else { break };
                    let Ok(mut data) = frame.into_data() else { continue };
                    let skipped = (*skip).min(data.len() as u64);
                    data.advance(skipped as usize);
                    data.truncate((*left).min(data.len() as u64) as usize);
                    (*skip, *left) = (*skip - skipped, *left - data.len() as u64);
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Poll::Ready(None)
            }
            Source::Shared { reader, rest } => match (ready!(reader.poll_chunk(cx)), rest) {
                (Ok(chunk), _) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
                (Err(BodyEnd::Complete), _) => Poll::Ready(None),
                // Too large or too slow to be collected: the rest comes from the origin directly, with its
                // back-pressure.
                (Err(BodyEnd::HandedOff), Some(rest)) => match ready!(Pin::new(rest).poll(cx)) {
                    Ok(body) => {
                        self.source = Source::Origin(body);
                        self.poll_frame(cx)
                    }
                    Err(_) => Poll::Ready(Some(Err(TRUNCATED.into()))),
                },
                (Err(BodyEnd::HandedOff | BodyEnd::Truncated), _) => Poll::Ready(Some(Err(TRUNCATED.into()))),
            },
            Source::Origin(body) => {
                let to_bytes = |frame: Frame<B::Data>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
                Poll::Ready(ready!(body.as_mut().poll_frame(cx)).map(|frame| frame.map(to_bytes).map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Stored(bytes) => bytes.is_empty(),
            Source::Shared { reader, .. } => reader.is_at_end(),
            Source::Part { left, .. } => *left == 0,
            Source::Origin(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Stored(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Shared { reader, .. } => reader.size_hint(),
            Source::Part { left, .. } => SizeHint::with_exact(*left),
            Source::Origin(body) => body.size_hint(),
        }
    }
}

/// Written by hand, because a derived implementation would require `B: Debug`.
impl<B> fmt::Debug for CacheBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheBody")
    }
}

/// A body while it is collected, for any number of readers at their own positions. Its size is bounded by the cap.
pub(super) struct SharedBody {
    state: Mutex<BodyState>,
    /// Total length in bytes, if the origin states it.
    size: Option<u64>,
    /// Notified when the last joined reader leaves.
    deserted: Notify,
}

#[derive(Default)]
struct BodyState {
    chunks: Vec<Bytes>,
    end: Option<BodyEnd>,
    waiting: HashMap<usize, Waker>,
    /// Number of joined readers so far.
    readers: usize,
    /// Number of joined readers that are left: all readers but the leader's client.
    joined: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Complete,
    Truncated,
    /// The leader's client reads the rest directly from the origin.
    HandedOff,
}

impl SharedBody {
    /// Returns a reader that begins at the first byte.
    fn reader(self: &Arc<Self>, number: usize) -> Reader {
        Reader { body: self.clone(), number, chunk: 0, read: 0 }
    }

    /// Joins a reader. `None` if the body will not be complete, because a caller that arrives now can still fetch a
    /// complete one.
    fn join(self: &Arc<Self>) -> Option<Reader> {
        let mut state = self.state.lock();
        if matches!(state.end, Some(BodyEnd::Truncated | BodyEnd::HandedOff)) {
            return None;
        }
        state.joined += 1;
        state.readers += 1;
        Some(self.reader(state.readers))
    }

    /// Waits until no joined reader is left. No reader joins from then on, because the rest is about to be handed off.
    async fn close_when_deserted(&self) {
        loop {
            let deserted = self.deserted.notified(); // before the check, so that no reader leaves unnoticed
            {
                let mut state = self.state.lock();
                if state.joined == 0 {
                    state.end.get_or_insert(BodyEnd::HandedOff);
                    return;
                }
            }
            deserted.await;
        }
    }

    /// Changes the state and wakes all readers.
    fn change(&self, change: impl FnOnce(&mut BodyState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waiting = mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }
}

/// A reader of a shared body.
struct Reader {
    body: Arc<SharedBody>,
    /// [`LEADER`], or the number of a joined reader. PERF: not a second field, because every response has room for it.
    number: usize,
    chunk: usize,
    read: u64,
}

impl Reader {
    fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Result<Bytes, BodyEnd>> {
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

    fn is_at_end(&self) -> bool {
        let state = self.body.state.lock();
        state.end == Some(BodyEnd::Complete) && self.chunk == state.chunks.len()
    }

    fn size_hint(&self) -> SizeHint {
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

/// A collector of a body for its readers and for the store. It drives the body even if no reader is left, so that a
/// client that disconnects strands neither the other readers nor the store.
pub(super) struct BodyCollector<B> {
    source: Option<Remainder<B>>,
    shared: Arc<SharedBody>,
    payload: BytesMut,
    /// Expected length of the payload in bytes, if the head states it.
    expected_length: Option<u64>,
    /// Maximum length of the payload in bytes.
    cap: usize,
}

/// A body that has not ended, and the sender that hands off its rest when collecting stops.
struct Remainder<B> {
    body: Pin<Box<B>>,
    rest: oneshot::Sender<Pin<Box<B>>>,
}

impl<B: Body<Error: Into<BoxError>>> BodyCollector<B> {
    /// Creates the collector, the shared body, and the body for the leader's client.
    ///
    /// Called before the future that runs the collector exists, since that future may be dropped before its first poll.
    /// `head` precedes the body in the payload. A body that is larger than `cap` is not stored, and one that ends before or
    /// after `length` is truncated.
    pub(super) fn new(body: B, head: &[u8], length: Option<u64>, cap: usize) -> (Self, Arc<SharedBody>, CacheBody<B>) {
        let (state, size) = (Mutex::default(), body.size_hint().exact());
        let shared = Arc::new(SharedBody { state, size, deserted: Notify::new() });
        let (rest, handed_off) = oneshot::channel();
        let source = Source::Shared { reader: shared.reader(LEADER), rest: Some(handed_off) };
        let client_body = CacheBody { source };
        let source = Some(Remainder { body: Box::pin(body), rest });
        let expected_length = length.map(|length| length.saturating_add(head.len() as u64));
        let collector = Self {
            source,
            shared: shared.clone(),
            payload: BytesMut::from(head),
            expected_length,
            cap: head.len() + cap,
        };
        (collector, shared, client_body)
    }

    /// Collects until the body ends or exceeds the cap, at most until `limit`. After that nothing is stored, and the
    /// result is `at_limit`. Collecting goes on as long as a joined reader is left; then the rest is handed off.
    pub(super) async fn run(mut self, limit: Instant, at_limit: Completed) -> Completed {
        if let Ok(ended) = timeout_at(limit, self.collect()).await {
            return ended;
        }
        let shared = self.shared.clone();
        let deserted = async {
            tokio::select! {
                biased;
                () = shared.close_when_deserted() => {}
                _ = self.collect() => {}
            }
        };
        Box::pin(deserted).await; // boxed, because every body would reserve room for it
        self.stop(BodyEnd::HandedOff);
        at_limit
    }

    /// Collects until the body ends or exceeds the cap. Cancel safe: collecting can be resumed.
    async fn collect(&mut self) -> Completed {
        while let Some(source) = &mut self.source {
            let Some(frame) = poll_fn(|cx| source.body.as_mut().poll_frame(cx)).await else { break };
            let Ok(frame) = frame else {
                self.stop(BodyEnd::Truncated);
                return Completed::Truncated;
            };
            // Trailers are neither shared nor stored (RFC 9111 §3.1).
            let Ok(mut data) = frame.into_data() else { continue };
            let chunk = data.copy_to_bytes(data.remaining());
            let over = self.payload.len() + chunk.len() > self.cap;
            if !over {
                self.payload.extend_from_slice(&chunk);
            }
            self.shared.change(|state| state.chunks.push(chunk));
            if over {
                self.stop(BodyEnd::HandedOff);
                return Completed::TooLarge;
            }
        }
        if let Some(expected_length) = self.expected_length
            && expected_length != self.payload.len() as u64
        {
            self.stop(BodyEnd::Truncated);
            return Completed::Truncated;
        }
        self.stop(BodyEnd::Complete);
        Completed::Payload(Payload::from(mem::take(&mut self.payload).freeze()))
    }
}

impl<B> BodyCollector<B> {
    /// Stops collecting, unless that has happened. The rest of a body that is handed off goes to the leader's client.
    fn stop(&mut self, end: BodyEnd) {
        let Some(Remainder { body, rest }) = self.source.take() else { return };
        if end == BodyEnd::HandedOff {
            let _ = rest.send(body); // without a client the body is dropped, which the origin notices
        }
        self.shared.change(|state| state.end = Some(end));
    }
}

/// Runs also when collecting is aborted, for example because it takes ten times the fetch timeout: that does not end
/// the response of the leader's client.
impl<B> Drop for BodyCollector<B> {
    fn drop(&mut self) {
        // A body that panicked is not polled again.
        self.stop(if thread::panicking() { BodyEnd::Truncated } else { BodyEnd::HandedOff });
    }
}

const TRUNCATED: &str = "the response body was truncated";
/// The number of the reader of the leader's client.
const LEADER: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::schedules::explore;
    use shuttle::{future, thread};

    /// Seen to fail when the check and the end are two steps, and to deadlock when a closing task checks before it
    /// registers.
    #[test]
    fn body_is_closed_after_its_last_joined_reader() {
        explore(|| {
            let body = Arc::new(SharedBody { state: Mutex::default(), size: None, deserted: Notify::new() });
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
