//! Bodies: stored, growing while they are collected, or the origin's own.

use crate::{engine::Ended, entry::Payload, error::BoxError};
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    thread,
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

pin_project! {
    /// The body of every response behind the guard: from the cache, still being collected, or the origin's own `B`.
    ///
    /// Data is always [`Bytes`]; stored bytes are shared, not copied. An error of the origin's body, or one that says
    /// that it broke off while others were reading it too, is a [`BoxError`].
    pub struct GuardBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[project = SourceProj]
    enum Source<B> {
        Stored { bytes: Bytes },
        Growing { reader: Reader, rest: Option<oneshot::Receiver<Pin<Box<B>>>> },
        Rest { body: Pin<Box<B>> },
        Origin { #[pin] body: B },
    }
}

impl<B> GuardBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self { source: Source::Stored { bytes } }
    }

    pub(super) fn origin(body: B) -> Self {
        Self { source: Source::Origin { body } }
    }

    /// Reads what is being collected from the beginning on.
    pub(super) fn growing(body: &Arc<Growing>) -> Self {
        Self { source: Source::Growing { reader: body.reader(), rest: None } }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for GuardBody<B> {
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
            SourceProj::Growing { reader, rest } => match (ready!(reader.poll_chunk(cx)), rest) {
                (Ok(chunk), _) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
                (Err(End::Complete), _) => return Poll::Ready(None),
                // Too large to be collected, or too slow: the rest comes from the origin directly, with its back-pressure.
                (Err(End::HandedOver), Some(rest)) => match ready!(Pin::new(rest).poll(cx)) {
                    Ok(mut body) => {
                        let frame = body.as_mut().poll_frame(cx);
                        source.set(Source::Rest { body });
                        ready!(frame)
                    }
                    Err(_) => return Poll::Ready(Some(Err(BROKE_OFF.into()))),
                },
                (Err(End::HandedOver | End::BrokenOff), _) => return Poll::Ready(Some(Err(BROKE_OFF.into()))),
            },
        };
        let to_bytes = |frame: Frame<B::Data>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        Poll::Ready(frame.map(|frame| frame.map(to_bytes).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Stored { bytes } => bytes.is_empty(),
            Source::Growing { reader, .. } => reader.is_at_end(),
            Source::Rest { body } => body.is_end_stream(),
            Source::Origin { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Stored { bytes } => SizeHint::with_exact(bytes.len() as u64),
            Source::Growing { reader, .. } => reader.size_hint(),
            Source::Rest { body } => body.size_hint(),
            Source::Origin { body } => body.size_hint(),
        }
    }
}

/// By hand: not only where `B` is.
impl<B> fmt::Debug for GuardBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Stored { .. } => "Stored",
            Source::Growing { .. } => "Growing",
            Source::Rest { .. } | Source::Origin { .. } => "Origin",
        };
        write!(f, "GuardBody({source})")
    }
}

/// A body while it is collected, for any number of readers, each at its own place. Bounded by the cap.
pub(super) struct Growing {
    state: Mutex<State>,
    /// The whole length, where the origin says it.
    size: Option<u64>,
}

#[derive(Default)]
struct State {
    chunks: Vec<Bytes>,
    end: Option<End>,
    waiting: HashMap<usize, Waker>,
    readers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Complete,
    BrokenOff,
    /// The client of the leader reads on by itself.
    HandedOver,
}

impl Growing {
    /// One that is there already.
    pub(super) fn complete(body: Bytes) -> Arc<Self> {
        let size = Some(body.len() as u64);
        let chunks = if body.is_empty() { Vec::new() } else { vec![body] };
        let state = State { chunks, end: Some(End::Complete), ..State::default() };
        Arc::new(Self { state: Mutex::new(state), size })
    }

    fn reader(self: &Arc<Self>) -> Reader {
        let mut state = self.lock();
        state.readers += 1;
        Reader { body: self.clone(), number: state.readers, chunk: 0, read: 0 }
    }

    /// Whoever asks now would be given half an answer, although there is time to ask for a whole one.
    pub(super) fn has_broken_off(&self) -> bool {
        self.lock().end == Some(End::BrokenOff)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Reader {
    body: Arc<Growing>,
    number: usize,
    chunk: usize,
    read: u64,
}

impl Reader {
    fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Result<Bytes, End>> {
        let mut state = self.body.lock();
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
        let state = self.body.lock();
        state.end == Some(End::Complete) && self.chunk == state.chunks.len()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size.map_or_else(SizeHint::new, |size| SizeHint::with_exact(size.saturating_sub(self.read)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.body.lock().waiting.remove(&self.number);
    }
}

/// Collects a body for its readers and the store. Drives it even when no reader is left, so that a client that goes
/// away strands neither.
pub(super) struct Pump<B> {
    source: Option<Uncollected<B>>,
    to: Arc<Growing>,
    payload: BytesMut,
    /// How long the payload has to be in the end, where the head says it.
    whole: Option<u64>,
    cap: usize,
}

/// A body that is not at its end, and who gets the rest of it when it is collected no more.
struct Uncollected<B> {
    body: Pin<Box<B>>,
    rest: oneshot::Sender<Pin<Box<B>>>,
}

impl<B: Body<Error: Into<BoxError>>> Pump<B> {
    /// Made before the future that runs it, which may be dropped before it is polled. `head` goes before the body in
    /// the payload, and is part of what may not exceed the cap. A body that ends before or after `length` is not whole.
    pub(super) fn new(body: B, head: &[u8], length: Option<u64>, cap: usize) -> (Self, Arc<Growing>, GuardBody<B>) {
        let growing = Arc::new(Growing { state: Mutex::default(), size: body.size_hint().exact() });
        let (rest, hand_over) = oneshot::channel();
        let source = Source::Growing { reader: growing.reader(), rest: Some(hand_over) };
        let uncollected = Some(Uncollected { body: Box::pin(body), rest });
        let whole = length.map(|length| length.saturating_add(head.len() as u64));
        let pump = Self { source: uncollected, to: growing.clone(), payload: BytesMut::from(head), whole, cap };
        (pump, growing, GuardBody { source })
    }

    /// Runs until the body ends, is too large, or has not ended after the given time: then too it is not for sharing.
    pub(super) async fn run(mut self, patience: Option<Duration>) -> Ended {
        let Some(patience) = patience else { return self.collect().await };
        match timeout(patience, self.collect()).await {
            Ok(ended) => ended,
            Err(_) => {
                self.hand_over();
                Ended::OverCap
            }
        }
    }

    async fn collect(&mut self) -> Ended {
        while let Some(source) = &mut self.source {
            let Some(frame) = poll_fn(|cx| source.body.as_mut().poll_frame(cx)).await else { break };
            let Ok(frame) = frame else { return self.broken_off() };
            // RFC 9111 §3.3: trailers are not kept.
            let Ok(mut data) = frame.into_data() else { continue };
            let chunk = data.copy_to_bytes(data.remaining());
            let over = self.payload.len() + chunk.len() > self.cap;
            if !over {
                self.payload.extend_from_slice(&chunk);
            }
            self.to.change(|state| state.chunks.push(chunk));
            if over {
                self.hand_over();
                return Ended::OverCap;
            }
        }
        if self.whole.is_some_and(|whole| whole != self.payload.len() as u64) {
            return self.broken_off();
        }
        self.end(End::Complete);
        Ended::Payload(Payload::from(std::mem::take(&mut self.payload).freeze()))
    }
}

impl<B> Pump<B> {
    fn end(&mut self, end: End) {
        self.source = None;
        self.to.change(|state| state.end = Some(end));
    }

    fn broken_off(&mut self) -> Ended {
        self.end(End::BrokenOff);
        Ended::BrokenOff
    }

    fn hand_over(&mut self) {
        if let Some(Uncollected { body, rest }) = self.source.take() {
            let _ = rest.send(body); // the client may be gone; then the origin sees it
        }
        self.end(End::HandedOver);
    }
}

/// Aborted, for instance because it takes longer than a fetch may: that ends the lease, not the client's answer.
impl<B> Drop for Pump<B> {
    fn drop(&mut self) {
        match self.source {
            Some(_) if thread::panicking() => _ = self.broken_off(), // a body that panicked is not polled again
            Some(_) => self.hand_over(),
            None => {}
        }
    }
}

const BROKE_OFF: &str = "the body of the response broke off";
