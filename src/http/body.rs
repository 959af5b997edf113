//! Response bodies: stored, being collected, or streamed from the origin.

use crate::sync::mutex::Mutex;
pub(crate) use crate::{engine::frontend::Completed, error::BoxError, store::entry::Payload};
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    thread,
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

pin_project! {
    /// The body of every response of the HTTP layer: stored, being collected, or streamed from the origin (`B`).
    ///
    /// Data is always [`Bytes`]; stored bytes are shared, not copied. An error is a [`BoxError`]: the origin's own, or
    /// the notice that a shared body was truncated.
    pub struct CacheBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[project = SourceProj]
    enum Source<B> {
        Stored { bytes: Bytes },
        Shared { reader: Reader, rest: Option<oneshot::Receiver<Pin<Box<B>>>> },
        Rest { body: Pin<Box<B>> },
        Origin { #[pin] body: B },
    }
}

impl<B> CacheBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self { source: Source::Stored { bytes } }
    }

    pub(super) fn origin(body: B) -> Self {
        Self { source: Source::Origin { body } }
    }

    /// Returns a body that reads a collected body from its beginning.
    pub(super) fn shared(body: &Arc<SharedBody>) -> Self {
        Self { source: Source::Shared { reader: body.reader(), rest: None } }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for CacheBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut source = self.project().source;
        let frame = match source.as_mut().project() {
            SourceProj::Stored { bytes } => {
                let bytes = std::mem::take(bytes);
                return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
            }
            SourceProj::Origin { body } => ready!(body.poll_frame(cx)),
            SourceProj::Rest { body } => ready!(body.as_mut().poll_frame(cx)),
            SourceProj::Shared { reader, rest } => match (ready!(reader.poll_chunk(cx)), rest) {
                (Ok(chunk), _) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
                (Err(BodyEnd::Complete), _) => return Poll::Ready(None),
                // Too large or too slow to be collected: the rest comes from the origin directly, with its
                // back-pressure.
                (Err(BodyEnd::HandedOff), Some(rest)) => match ready!(Pin::new(rest).poll(cx)) {
                    Ok(mut body) => {
                        let frame = body.as_mut().poll_frame(cx);
                        source.set(Source::Rest { body });
                        ready!(frame)
                    }
                    Err(_) => return Poll::Ready(Some(Err(TRUNCATED.into()))),
                },
                (Err(BodyEnd::HandedOff | BodyEnd::Truncated), _) => return Poll::Ready(Some(Err(TRUNCATED.into()))),
            },
        };
        let to_bytes = |frame: Frame<B::Data>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        Poll::Ready(frame.map(|frame| frame.map(to_bytes).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Stored { bytes } => bytes.is_empty(),
            Source::Shared { reader, .. } => reader.is_at_end(),
            Source::Rest { body } => body.is_end_stream(),
            Source::Origin { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Stored { bytes } => SizeHint::with_exact(bytes.len() as u64),
            Source::Shared { reader, .. } => reader.size_hint(),
            Source::Rest { body } => body.size_hint(),
            Source::Origin { body } => body.size_hint(),
        }
    }
}

/// Written by hand, because a derived implementation would require `B: Debug`.
impl<B> fmt::Debug for CacheBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Stored { .. } => "Stored",
            Source::Shared { .. } => "Shared",
            Source::Rest { .. } | Source::Origin { .. } => "Origin",
        };
        write!(f, "CacheBody({source})")
    }
}

/// A body while it is collected, for any number of readers at their own positions. Its size is bounded by the cap.
pub(super) struct SharedBody {
    state: Mutex<BodyState>,
    /// Total length in bytes, if the origin states it.
    size: Option<u64>,
}

#[derive(Default)]
struct BodyState {
    chunks: Vec<Bytes>,
    end: Option<BodyEnd>,
    waiting: HashMap<usize, Waker>,
    readers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Complete,
    Truncated,
    /// The leader's client reads the rest directly from the origin.
    HandedOff,
}

impl SharedBody {
    /// Returns a body that is complete already.
    pub(super) fn complete(body: Bytes) -> Arc<Self> {
        let size = Some(body.len() as u64);
        let chunks = if body.is_empty() { Vec::new() } else { vec![body] };
        let state = BodyState { chunks, end: Some(BodyEnd::Complete), ..BodyState::default() };
        Arc::new(Self { state: Mutex::new(state), size })
    }

    fn reader(self: &Arc<Self>) -> Reader {
        let mut state = self.state.lock();
        state.readers += 1;
        Reader { body: self.clone(), number: state.readers, chunk: 0, read: 0 }
    }

    /// Reports whether the body was truncated. A caller that arrives now can still fetch a complete one.
    pub(super) fn is_truncated(&self) -> bool {
        self.state.lock().end == Some(BodyEnd::Truncated)
    }

    fn change(&self, change: impl FnOnce(&mut BodyState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }
}

struct Reader {
    body: Arc<SharedBody>,
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
        self.body.state.lock().waiting.remove(&self.number);
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
    /// `head` precedes the body in the payload and counts towards the cap. A body that ends before or after `length` is
    /// truncated.
    pub(super) fn new(body: B, head: &[u8], length: Option<u64>, cap: usize) -> (Self, Arc<SharedBody>, CacheBody<B>) {
        let shared = Arc::new(SharedBody { state: Mutex::default(), size: body.size_hint().exact() });
        let (rest, handed_off) = oneshot::channel();
        let source = Source::Shared { reader: shared.reader(), rest: Some(handed_off) };
        let remainder = Some(Remainder { body: Box::pin(body), rest });
        let expected_length = length.map(|length| length.saturating_add(head.len() as u64));
        let collector =
            Self { source: remainder, shared: shared.clone(), payload: BytesMut::from(head), expected_length, cap };
        (collector, shared, CacheBody { source })
    }

    /// Collects until the body ends, exceeds the cap, or has taken longer than `time_limit`. In the last two cases the
    /// rest is handed off, and the body is not shared.
    pub(super) async fn run(mut self, time_limit: Option<Duration>) -> Completed {
        let Some(time_limit) = time_limit else { return self.collect().await };
        match timeout(time_limit, self.collect()).await {
            Ok(ended) => ended,
            Err(_) => {
                self.hand_off();
                Completed::TooLarge
            }
        }
    }

    async fn collect(&mut self) -> Completed {
        while let Some(source) = &mut self.source {
            let Some(frame) = poll_fn(|cx| source.body.as_mut().poll_frame(cx)).await else { break };
            let Ok(frame) = frame else { return self.truncate() };
            // RFC 9111 §3.1: trailers are not stored.
            let Ok(mut data) = frame.into_data() else { continue };
            let chunk = data.copy_to_bytes(data.remaining());
            let over = self.payload.len() + chunk.len() > self.cap;
            if !over {
                self.payload.extend_from_slice(&chunk);
            }
            self.shared.change(|state| state.chunks.push(chunk));
            if over {
                self.hand_off();
                return Completed::TooLarge;
            }
        }
        if self.expected_length.is_some_and(|expected_length| expected_length != self.payload.len() as u64) {
            return self.truncate();
        }
        self.end(BodyEnd::Complete);
        Completed::Payload(Payload::from(std::mem::take(&mut self.payload).freeze()))
    }
}

impl<B> BodyCollector<B> {
    fn end(&mut self, end: BodyEnd) {
        self.source = None;
        self.shared.change(|state| state.end = Some(end));
    }

    fn truncate(&mut self) -> Completed {
        self.end(BodyEnd::Truncated);
        Completed::Truncated
    }

    fn hand_off(&mut self) {
        if let Some(Remainder { body, rest }) = self.source.take() {
            let _ = rest.send(body); // without a client the body is dropped, which the origin notices
        }
        self.end(BodyEnd::HandedOff);
    }
}

/// Runs also when collecting is aborted, for example by the fetch timeout: that ends the lease, not the response of the
/// client.
impl<B> Drop for BodyCollector<B> {
    fn drop(&mut self) {
        match self.source {
            Some(_) if thread::panicking() => _ = self.truncate(), // a body that panicked is not polled again
            Some(_) => self.hand_off(),
            None => {}
        }
    }
}

const TRUNCATED: &str = "the response body was truncated";
