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
};
use tokio::sync::oneshot;

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
                // Too large to be collected: the rest comes from the origin directly, with its back-pressure. Others do
                // not get here, they are let in early only where the size is known.
                (Err(End::OverCap), Some(rest)) => match ready!(Pin::new(rest).poll(cx)) {
                    Ok(mut body) => {
                        let frame = body.as_mut().poll_frame(cx);
                        source.set(Source::Rest { body });
                        ready!(frame)
                    }
                    Err(_) => return Poll::Ready(Some(Err(BROKE_OFF.into()))),
                },
                (Err(End::OverCap | End::BrokenOff), _) => return Poll::Ready(Some(Err(BROKE_OFF.into()))),
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
    OverCap,
}

impl Growing {
    fn reader(self: &Arc<Self>) -> Reader {
        let mut state = self.lock();
        state.readers += 1;
        Reader { body: self.clone(), number: state.readers, chunk: 0, read: 0 }
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
    #[expect(clippy::needless_pass_by_ref_mut, reason = "as every poll has it")]
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, End>> {
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
    /// In a box, because it may be handed on when half of it is read.
    body: Pin<Box<B>>,
    to: Collected,
    rest: oneshot::Sender<Pin<Box<B>>>,
    payload: BytesMut,
    /// How long the payload has to be in the end, where the head says it.
    whole: Option<u64>,
    cap: usize,
}

/// Ends the readers of a body that is not collected any more.
struct Collected(Arc<Growing>);

impl<B: Body<Error: Into<BoxError>>> Pump<B> {
    /// Made before the future that runs it, which may be dropped before it is polled. `head` goes before the body in
    /// the payload, and is part of what may not exceed the cap. A body that ends before or after `length` is not whole.
    pub(super) fn new(body: B, head: &[u8], length: Option<u64>, cap: usize) -> (Self, Arc<Growing>, GuardBody<B>) {
        let growing = Arc::new(Growing { state: Mutex::default(), size: body.size_hint().exact() });
        let (rest, hand_over) = oneshot::channel();
        let source = Source::Growing { reader: growing.reader(), rest: Some(hand_over) };
        let (to, payload) = (Collected(growing.clone()), BytesMut::from(head));
        let whole = length.map(|length| length.saturating_add(head.len() as u64));
        (Self { body: Box::pin(body), to, rest, payload, whole, cap }, growing, GuardBody { source })
    }

    pub(super) async fn run(mut self) -> Ended {
        while let Some(frame) = poll_fn(|cx| self.body.as_mut().poll_frame(cx)).await {
            let Ok(frame) = frame else { return Ended::BrokenOff };
            // RFC 9111 §3.3: trailers are not kept.
            let Ok(mut data) = frame.into_data() else { continue };
            let chunk = data.copy_to_bytes(data.remaining());
            let over = self.payload.len() + chunk.len() > self.cap;
            if !over {
                self.payload.extend_from_slice(&chunk);
            }
            self.to.0.change(|state| {
                state.chunks.push(chunk);
                state.end = over.then_some(End::OverCap);
            });
            if over {
                let _ = self.rest.send(self.body); // the client may be gone; then the origin sees it
                return Ended::OverCap;
            }
        }
        if self.whole.is_some_and(|whole| whole != self.payload.len() as u64) {
            return Ended::BrokenOff;
        }
        self.to.0.change(|state| state.end = Some(End::Complete));
        Ended::Payload(Payload::from(self.payload.freeze()))
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.0.change(|state| _ = state.end.get_or_insert(End::BrokenOff));
    }
}

const BROKE_OFF: &str = "the body of the response broke off";
